"""tests/README.md has a row for each folder of tests, and names files that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "README.md").read_text()


def test_every_folder_has_a_row():
    listed = re.findall(r"^\| `(\w+)(?:/NAME)?` \|", PAGE, re.M)
    folders = [one.name for one in TESTS.iterdir() if one.is_dir() and one.name[0] not in "._"]
    assert sorted(listed) == sorted(one for one in folders if any((TESTS / one).iterdir()))


def test_named_files_exist():
    """A name is a path from the repository, or a file somewhere in tests/ or src/."""
    named = re.findall(r"`(?:tests/)?([\w/]+\.(?:cpp|hpp|py|def|sh|cu))`", PAGE)
    root = TESTS.parent
    folders = (TESTS, root / "src")
    missing = [
        one
        for one in named
        if "NAME" not in one
        and not (root / one).exists()
        and not any(list(folder.rglob(one)) for folder in folders)
    ]
    assert named and missing == []
