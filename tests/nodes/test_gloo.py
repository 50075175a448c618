"""Communicators over several nodes without an MPI: torch.distributed's gloo carries messages."""

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
