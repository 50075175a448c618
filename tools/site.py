"""Builds a site from the pages of docs/ and of the root folder: python tools/site.py FOLDER

Sphinx reads a copy in build/site. Links between pages lead to the page's place in the site; a link
to a file without a place becomes the file's path. Warnings are errors.
"""

import contextlib
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "site" / "docs"
ROOT_PAGES = {
    "README.md": "readme.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
CONF = """project = "plait"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "plait"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]
myst_heading_anchors = 4
autodoc_typehints = "description"
"""
# Code has up to 100 columns, and some tables eight.
FRAME = """
## The report of {machine}

`plait report -T {machine}`, without the papers' experiments
([alone](_static/{machine}.html)):

```{{raw}} html
<iframe src="_static/{machine}.html" title="report of {machine}"></iframe>
```
"""
CSS = """.content { width: 58em; max-width: 100%; }
.content pre { font-size: 0.85em; }
.content table { font-size: 0.9em; }
iframe { width: 100%; height: 50em; border: 1px solid #ddd; }
"""
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def place_of(target: Path) -> Path | None:
    """Returns the path of a repository's file in the site; None if absent."""
    inside = target.relative_to(ROOT)
    if inside.name in ROOT_PAGES and len(inside.parts) == 1:
        return Path(ROOT_PAGES[inside.name])
    if inside.parts[0] == "docs" and inside.suffix == ".md":
        return Path(*inside.parts[1:])
    return None


def moved(page: Path, place: Path) -> str:
    """Returns a page's text with links from its place in the site."""
    up = "../" * (len(place.parts) - 1)

    def link(found: re.Match[str]) -> str:
        target = (page.parent / found[2]).resolve()
        there = place_of(target)
        if there is not None:
            return f"[{found[1]}]({up}{there.as_posix()}{found[3] or ''})"
        return f"{found[1]} (`{target.relative_to(ROOT)}`)"

    return LINK.sub(link, page.read_text())


def commands() -> str:
    """Returns the page of commands, made from the help texts."""
    from plait.cli import BEFORE_PROGRAMS, COMMANDS, app

    text = ["# Commands", "", "Exit codes are listed under [errors](errors.md).", ""]
    for command in (*COMMANDS, *BEFORE_PROGRAMS):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            app([command.__name__, "--help"], prog_name="plait")
        text += [f"## {command.__name__}", "```text", said.getvalue().strip(), "```", ""]
    return "\n".join(text)


def gather() -> None:
    shutil.rmtree(PAGES.parent, ignore_errors=True)
    for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ROOT_PAGES)]:
        place = place_of(page)
        assert place is not None, page
        (PAGES / place).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / place).write_text(moved(page, place))
    for folder in ("examples", "include"):
        shutil.copytree(ROOT / folder, PAGES.parent / folder)
    with (PAGES / "design" / "README.md").open("a") as index:
        index.write("\n```{toctree}\n:hidden:\n:glob:\n*\n```\n")
    (PAGES / "commands.md").write_text(commands())
    (PAGES / "conf.py").write_text(CONF)
    (PAGES / "_static").mkdir()
    (PAGES / "_static" / "wide.css").write_text(CSS)
    show_reports()


def show_reports() -> None:
    """Adds example reports to the page on reports."""
    import plait
    from plait.commands.report_page import page

    results = ROOT / "bench" / "results"
    with (PAGES / "report.md").open("a") as guide:
        for machine in ("hgx-h200", "rtx-5090-x4"):
            made = page(plait.load_topology(machine), results=results, evidence=[])
            (PAGES / "_static" / f"{machine}.html").write_text(made)
            guide.write(FRAME.format(machine=machine))


def main() -> int:
    gather()
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    return subprocess.run([*build, str(PAGES), sys.argv[1]]).returncode


if __name__ == "__main__":
    sys.exit(main())
