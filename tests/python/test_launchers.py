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

from plait import launch

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


SEVERAL_HOSTS = {
    "torchrun": {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"},
    "mpirun": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "job@1",
    },
    "mpiexec": {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2", "PMI_PORT": "host:7"},
    "srun": {
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "4",
        "SLURM_NNODES": "2",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
    },
}


def run_under(variables: dict[str, str], program: str) -> subprocess.CompletedProcess[str]:
    """A Python program of one process, with a launcher's variables."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def init_under(variables: dict[str, str]) -> str:
    """What plait.init() prints of its error; it must not wait for ranks that cannot come."""
    said = run_under(variables, "import plait; plait.init(arrive_s=8)")
    assert said.returncode != 0
    return said.stderr


@pytest.mark.parametrize("launcher", SEVERAL_HOSTS)
def test_ranks_on_several_hosts_are_refused_at_once(launcher):
    said = init_under(SEVERAL_HOSTS[launcher])
    assert "UnsupportedError: unsupported: wanted all ranks on one host, at most 16 of them" in said
    assert "found 2 of 4 on this one" in said
    assert "docs/nccl.md" in said and "DeadlineError" not in said


def test_more_ranks_than_a_communicator_takes_are_refused_at_once():
    said = init_under({"RANK": "1", "WORLD_SIZE": "100", "LOCAL_WORLD_SIZE": "100"})
    assert "unsupported: ranks: wanted 1..16, all on one host, found 100" in said
    said = init_under({"RANK": "1", "WORLD_SIZE": "17", "LOCAL_WORLD_SIZE": "17"})
    assert "unsupported: ranks: wanted 1..16, all on one host, found 17" in said


def test_a_host_of_several_may_have_a_communicator_of_its_own():
    variables = SEVERAL_HOSTS["torchrun"] | {"PLAIT_RANKS": "1", "PLAIT_RANK": "0"}
    done = run_under(variables, "import plait; print(plait.init().ranks)")
    assert done.stdout == "1\n", done.stderr


SAID_OF_A_LATE_RANK = {
    "meeting": ["rank 0 waits for rank 1 of 3 to come to rendezvous 'fd:"],
    "call": [f"rank {rank} waits for rank 1 to enter call 1 (" for rank in (0, 2)],
    "send": [
        "rank 0 waits for rank 1 to come to its end of a send, receive or exchange: 10 s so far",
        "rank 2 waits for rank 0, 1 to enter call 2 (",
    ],
}


def test_a_rank_that_waits_says_for_whom(capfd):
    """Three jobs at once, since each takes 14 s."""
    folder = str(Path(__file__).parent)
    jobs = [
        launch.start("rank_programs:late", 3, {"late_to": late_to}, {"PLAIT_DEBUG": ""}, folder)
        for late_to in SAID_OF_A_LATE_RANK
    ]
    for job in jobs:
        assert len(list(job.lines())) == 3
        assert job.wait() == [0, 0, 0]
    lines = [line for line in capfd.readouterr().err.splitlines() if " s so far" in line]
    wanted = [said for each in SAID_OF_A_LATE_RANK.values() for said in each]
    for said in wanted:
        assert sum(f"PLAIT WARN {said}" in line for line in lines) == 1, (said, lines)
