"""Runs every example of docs/start.md as written and compares the output."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plait import places

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "start.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
TEN_LINES = 13  # with blank lines and the code that C needs
NEEDS = {
    "C": ("gcc", None),
    "C++": ("g++", None),
    "PyTorch": ("torchrun", "torch"),
    "NCCL": ("torchrun", "torch"),
    "MPI": ("mpirun", "mpi4py"),
    "Python": (None, None),
}


def ways() -> dict[str, list[tuple[str, str]]]:
    """Returns the code blocks of each section: language and text."""
    _, _, text = PAGE.partition("## Ten lines from each side\n")
    text, _, _ = text.partition("\n## ")
    parts = re.split(r"^### (.*)$", text, flags=re.M)[1:]
    named = zip(parts[::2], parts[1::2], strict=True)
    return {name: [(kind, body) for kind, body in BLOCK.findall(part)] for name, part in named}


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of a shell with plait active, and torchrun of a separate torch
    folder."""
    of_plait = folder / "bin"
    of_plait.mkdir()
    (of_plait / "torchrun").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    )
    (of_plait / "torchrun").chmod(0o755)
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if importlib.util.find_spec("torch") is not None:
        paths.insert(0, str(of_plait))
    modules = [os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(":") if one]
    return {
        **os.environ,
        "PYTHONPATH": ":".join(modules),
        "PATH": ":".join(paths),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def test_the_page_has_every_way_in():
    assert set(ways()) == set(NEEDS)
    assert [kind for kind, _ in ways()["Python"]] == ["python", "sh", "text"]


@pytest.mark.parametrize("name", ways())
def test_a_way_in_runs_as_it_is_written(name, tmp_path):
    program, commands, expected = ways()[name]
    tool, module = NEEDS[name]
    env = environment(tmp_path)
    if module is not None and importlib.util.find_spec(module) is None:
        pytest.skip(f"wanted {module}, found none")
    if tool is not None and shutil.which(tool, path=env["PATH"]) is None:
        pytest.skip(f"wanted {tool}, found none")
    if name in ("C", "C++") and not (places.cmake() / "plaitConfig.cmake").exists():
        pytest.skip("wanted plait as it is installed, found it in another layout")
    file = re.match(r"(?:#|//|/\*) (\S+)", program[1])[1]
    assert program[1].count("\n") <= TEN_LINES + 2
    (tmp_path / file).write_text(program[1])
    done = subprocess.run(
        ["bash", "-e", "-c", commands[1]],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line]
    assert said == expected[1].splitlines(), done.stdout + done.stderr
