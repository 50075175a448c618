"""Tests the package description: README.md without links that break on an index."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("index_readme", ROOT / "tools" / "index_readme.py")
assert SPEC is not None and SPEC.loader is not None
index_readme = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(index_readme)
README = (ROOT / "README.md").read_text()


def relative_links(text: str) -> list[str]:
    targets = re.findall(r"\]\(([^)]+)\)", text)
    return [one for one in targets if not re.match(r"\w+:", one)]


def test_files_are_named_where_links_would_lead_nowhere():
    made = index_readme.description(
        "# plait\nsee [docs/c.md](docs/c.md), [the page](docs/a.md#b) and [x](https://x.org/y)\n"
    )
    assert made.startswith("# plait\n\nFiles that are named here")
    assert made.endswith("see `docs/c.md`, the page (`docs/a.md#b`) and [x](https://x.org/y)\n")


def test_every_file_that_the_readme_links_exists():
    links = relative_links(README)
    assert len(links) > 20
    assert [one for one in links if not (ROOT / one.partition("#")[0]).exists()] == []


def test_what_is_installed_has_no_relative_link():
    metadata = importlib.metadata.metadata("plait")
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    assert "moves and reduces data between the GPUs" in text
    assert relative_links(text) == [] and "`docs/start.md`" in text
