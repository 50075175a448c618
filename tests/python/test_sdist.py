"""Tests that the source distribution has exactly the files of the checkout."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("sdist", ROOT / "tools" / "sdist.py")
assert SPEC is not None and SPEC.loader is not None
sdist = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(sdist)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return sdist.make(tmp_path_factory.mktemp("sdist"))


def test_it_holds_what_the_checkout_holds(archive):
    assert "src/plan/builder.cpp" in sdist.files_in(archive)
    assert sdist.differences(archive) == []


def test_a_file_that_it_lacks_is_named(archive, monkeypatch):
    every = sdist.tidy.tracked()
    if not every:
        pytest.skip("no git checkout here to compare with")
    new = sdist.tidy.ROOT / "src" / "new.cpp"
    monkeypatch.setattr(sdist.tidy, "tracked", lambda: [*every[1:], new])
    named = sdist.differences(archive)
    assert named == [
        "src/new.cpp: in the checkout, not in the sdist",
        f"{every[0].relative_to(sdist.tidy.ROOT)}: in the sdist, not in the checkout",
    ]
