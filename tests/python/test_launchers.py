"""Ranks started by real launchers, straight and through a script around each: they meet and sum.

Which launchers are tried is what PATH holds; the others are left out, with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(__file__).parent / "launched_rank.py")
LAUNCHERS = ("torchrun", "mpirun")
# Without exec, and with a command after it so that no shell makes the last command its own process:
# then each rank has a parent of its own.
SCRIPT = ["sh", "-c", '"$@"; status=$?; exit $status', "sh"]


def command(launcher: str, ranks: int, program: list[str]) -> list[str]:
    """The launcher's command line for a program that is no Python script to it."""
    path = shutil.which(launcher)
    if path is None:
        pytest.skip(f"no {launcher} on PATH")
    if launcher == "torchrun":
        return [path, "--standalone", f"--nproc-per-node={ranks}", "--no-python", *program]
    asked = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    is_open_mpi = "Open MPI" in asked.stdout or "Open RTE" in asked.stdout
    return [path, *(["--oversubscribe"] if is_open_mpi else []), "-n", str(ranks), *program]


def start(
    launcher: str, ranks: int, folder: Path, addend: int, around: list[str]
) -> subprocess.Popen[str]:
    folder.mkdir()
    program = [*around, sys.executable, PROGRAM, str(folder), str(addend)]
    env = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        command(launcher, ranks, program),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def check(job: subprocess.Popen[str], ranks: int, folder: Path, addend: int) -> None:
    said, _ = job.communicate(timeout=120)
    assert job.returncode == 0, said
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    total = [float(sum(rank + addend for rank in range(ranks)))]
    assert found == [{"rank": rank, "ranks": ranks, "total": total} for rank in range(ranks)]


@pytest.mark.parametrize("around", [[], SCRIPT], ids=["straight", "through a script"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_a_launcher_meet(launcher, around, tmp_path):
    check(start(launcher, 3, tmp_path / "job", 1, around), 3, tmp_path / "job", 1)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_jobs_at_once_do_not_meet(launcher, tmp_path):
    folders = [tmp_path / "one", tmp_path / "other"]
    jobs = [start(launcher, 2, folder, 10**i, []) for i, folder in enumerate(folders)]
    for i, (job, folder) in enumerate(zip(jobs, folders, strict=True)):
        check(job, 2, folder, 10**i)
