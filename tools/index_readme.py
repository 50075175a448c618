"""Makes the description of package indexes from README.md.

Links to files of the checkout lead nowhere on an index: the file's name replaces the link. This
module is a provider of scikit-build-core: pyproject.toml names the module for the field `readme`.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")
WHERE = "Files that are named here are in plait's source distribution.\n"


def _named(match: re.Match[str]) -> str:
    """Replaces a link: `[docs/c.md](docs/c.md)` by the name, other texts by text and name."""
    words, target = match.groups()
    return f"`{target}`" if words == target else f"{words} (`{target}`)"


def description(text: str) -> str:
    head, title, rest = text.partition("# plait\n")
    return f"{head}{title}\n{WHERE}{LINK.sub(_named, rest)}"


def dynamic_metadata(field: str, settings: object = None, project: object = None) -> dict[str, str]:
    """Returns the description to scikit-build-core."""
    if field != "readme":
        raise ValueError(f"wanted the field readme, found {field}")
    text = (ROOT / "README.md").read_text()
    return {"content-type": "text/markdown", "text": description(text)}
