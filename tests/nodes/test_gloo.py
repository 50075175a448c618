"""Communicators over several nodes without MPI: torch.distributed's gloo carries messages."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).parent / "torch_job.py"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="wants torch (a CPU wheel will do)"
)


def run(*words: str, ranks: int = 4, **env: str) -> dict[str, object]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    done = subprocess.run(
        [*command, "--master-port", port, str(JOB), *words],
        env={**os.environ, "PLAIT_NODE_SIZE": "2", "PLAIT_ARRIVE_S": "60", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("ranks", [4, 5])
def test_every_collective_has_the_bits_of_rank_order(ranks):
    found = run("collectives", ranks=ranks, PLAIT_BITWISE="1")
    assert found["wrong"] == [] and found["checks"] > 200 * ranks


def test_some_ranks_in_another_order_make_a_communicator_by_id():
    found = run("subset", ranks=5)
    assert found["wrong"] == [] and found["ranks"] == 4 and found["checks"] == 4 * (3 * 3 * 2 + 2)


def test_ids_that_differ_are_an_error_on_all_at_once():
    found = run("differ", ranks=3, PLAIT_ARRIVE_S="60")
    assert found["wrong"] == [] and found["checks"] == 3


def test_a_rank_that_was_refused_meets_the_others_when_all_try_again():
    found = run("behind", ranks=3)
    assert found["wrong"] == [] and found["checks"] > 3


@pytest.mark.parametrize("words", [("strategies", "multi_node"), ("refusals",), ("pairs",)])
def test_what_goes_over_mpi_goes_over_gloo(words):
    found = run(*words)
    assert found["wrong"] == [] and found["checks"] >= 4 * 6


INTERRUPTED = """
import signal, sys, time
import numpy as np
import torch.distributed as dist
import plait
dist.init_process_group("gloo")
comm = plait.init()
comm.all_reduce(np.ones(3))
def raises(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, raises)
if comm.rank == 1:
    time.sleep(5)
began = time.monotonic()
try:
    if comm.rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
    comm.all_reduce(np.ones(3))
except (KeyboardInterrupt, plait.Error) as error:
    print(comm.rank, type(error).__name__, round(time.monotonic() - began), flush=True)
"""


def test_an_interrupt_is_heard_and_is_no_lost_rank(tmp_path):
    """The wait runs Python code of the transport, so the signal handler may run there."""
    (tmp_path / "job.py").write_text(INTERRUPTED)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*words, str(tmp_path / "job.py")],
        env={**os.environ, "PLAIT_NODE_SIZE": "1", "PLAIT_ARRIVE_S": "30"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert said["0"][0] == "KeyboardInterrupt" and int(said["0"][1]) < 5, (said, done.stderr)
    assert said["1"][0].endswith("Error") and int(said["1"][1]) < 10, said


LOST = """
import datetime, os, plait, signal, sys, time
import numpy as np, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
def report(call):
    try:
        call()
        said = "no error"
    except plait.Error as error:
        said = f"{type(error).__name__} {error}"
    sys.stdout.write(said.replace("\\n", "; ") + "\\n")
    sys.stdout.flush()
time.sleep(4 if rank == 2 else 0)
report(lambda: plait.init(arrive_s=2))
dist.barrier()
comm = plait.init(arrive_s=30, deadline_s=30)
comm.barrier()
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
report(lambda: [comm.all_reduce(np.ones(10)) for _ in range(100000)])
report(lambda: plait.init(arrive_s=2))
os._exit(0)
"""


def test_errors_of_late_and_lost_ranks():
    """Rank 2 is late for the first communicator; rank 0, which holds the store, ends later."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3"}
    env = {**os.environ, **settings, "PLAIT_NODE_SIZE": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LOST],
            env={**env, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    said = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    for first, *_ in said:
        assert "DeadlineError" in first and "no rank 2" in first, said
    for _, call, again in said[1:]:
        assert call.startswith("PeerLostError") and "rank 0" in call, said
        assert again.startswith("PeerLostError") and "store of torch.distributed" in again, said
        assert "Traceback" not in call + again
