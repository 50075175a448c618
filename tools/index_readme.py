"""README.md -> the description that package indexes show.

There a link to a file of the checkout leads nowhere, so the file's name stands in its place. A
provider of scikit-build-core: pyproject.toml names it for the field `readme`.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")
WHERE = "Files that are named here are in plait's source distribution.\n"


def _named(match: re.Match[str]) -> str:
    """`[docs/c.md](docs/c.md)` is the name alone; other words keep it beside them."""
    words, target = match.groups()
    return f"`{target}`" if words == target else f"{words} (`{target}`)"


def description(text: str) -> str:
    head, title, rest = text.partition("# plait\n")
    return f"{head}{title}\n{WHERE}{LINK.sub(_named, rest)}"


def dynamic_metadata(field: str, settings: object = None, project: object = None) -> dict[str, str]:
    """What scikit-build-core asks for."""
    if field != "readme":
        raise ValueError(f"wanted the field readme, found {field}")
    text = (ROOT / "README.md").read_text()
    return {"content-type": "text/markdown", "text": description(text)}
