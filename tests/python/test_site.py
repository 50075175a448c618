"""Tests the site of docs/: every page is listed, and links lead to pages of the site."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("site_of_docs", ROOT / "tools" / "site.py")
assert SPEC is not None and SPEC.loader is not None
site = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(site)


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    listed = set(re.findall(r"^(?:.*<)?([\w/]+)>?$", index, re.M))
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    made = {"commands", "readme", "architecture", "changelog", "contributing", "design/README"}
    assert listed == pages | made


def test_links_are_moved_with_their_pages(tmp_path):
    text = site.moved(ROOT / "README.md", Path("readme.md"))
    assert "](docs/" not in text and "](nccl.md)" in text and "](architecture.md)" in text
    place = site.place_of(ROOT / "docs" / "design" / "plans.md")
    assert place is not None and place.parts[0] == "design"


def test_the_page_of_commands_has_each_commands_help():
    page = site.commands()
    for name in ("topo", "plan", "verify", "bench", "run", "launch", "doctor"):
        assert f"## {name}\n```text\nUsage: plait {name} " in page


def test_it_builds_without_a_warning(tmp_path):
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason=f"wanted {package} (make docs), found none")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "site.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "examples.html").exists()
