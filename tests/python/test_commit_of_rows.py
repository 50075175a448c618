"""Tests the commit that measured rows name: of the package that runs, never of another build."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench.lib import rows  # noqa: E402
from bench.programs import gpu_run  # noqa: E402

NAME = ("-c", "user.name=a", "-c", "user.email=a@b")


def git(folder, *words):
    job = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, timeout=60)
    assert job.returncode == 0, job.stderr
    return job.stdout.strip()


def with_package(folder, commit=""):
    (folder / "plait").mkdir(parents=True)
    (folder / "plait" / "__init__.py").touch()
    if commit:
        (folder / "commit").write_text(commit + "\n")
    return folder


@pytest.fixture
def tree(tmp_path):
    """Makes a tree with bench and a package, without git."""
    tree = with_package(tmp_path / "tree" / "python").parent
    (tree / "bench" / "lib").mkdir(parents=True)
    shutil.copy(rows.__file__, tree / "bench" / "lib")
    return tree


def checked_in(tree):
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, *NAME, "commit", "-q", "-m", "all")
    return git(tree, "rev-parse", "--short", "HEAD")


def commit_of(tree, package):
    """Returns the commit of rows of the tree's bench by the package in the folder."""
    env = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-c", "from bench.lib import rows; print(rows.commit())"]
    job = subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True, timeout=60)
    assert job.returncode == 0, job.stderr
    return job.stdout.strip()


def test_a_staged_package_names_its_commit(tree, tmp_path):
    staged = with_package(tmp_path / "staged", "1234567")
    assert commit_of(tree, staged) == "1234567"
    checked_in(tree)
    # A folder of an older stage does not count.
    with_package(tree / "build" / "run", "7654321")
    assert commit_of(tree, staged) == "1234567"


def test_a_package_of_a_checkout_has_the_commit_of_the_checkout(tree):
    made = checked_in(tree)
    with_package(tree / "build" / "run", "7654321")
    assert commit_of(tree, tree / "python") == made
    (tree / "python" / "plait" / "__init__.py").write_text("changed = True\n")
    assert commit_of(tree, tree / "python") == f"{made}-dirty"


def test_a_package_from_elsewhere_has_no_known_commit(tree, tmp_path):
    checked_in(tree)
    assert commit_of(tree, with_package(tmp_path / "other")) == rows.UNKNOWN


def test_a_copy_of_a_tree_in_a_checkout_has_no_known_commit(tree):
    (tree.parent / "file").touch()
    git(tree.parent, "init", "-q")
    git(tree.parent, "add", "file")
    git(tree.parent, *NAME, "commit", "-q", "-m", "another project")
    assert commit_of(tree, tree / "python") == rows.UNKNOWN


def test_a_run_asks_for_the_commit_of_an_unknown_build(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "commit", lambda: rows.UNKNOWN)
    given = SimpleNamespace(
        out=tmp_path, dry=False, machine="h200x2", gpus=2, commit="", budget_s=1
    )
    with pytest.raises(SystemExit, match="name --commit"):
        gpu_run.run(given)
