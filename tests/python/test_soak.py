"""Tests bench soak on host memory: a clean run, spoilt results to find, a rank that stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plait

pytestmark = pytest.mark.alone  # judges the work and the end of a run of some seconds
ROOT = Path(__file__).parents[2]
SOAK = (str(ROOT / "bench"), "soak")
SMALL = ("--host", "--epoch", "1", "--most-mib", "0.25", "--slab-mib", "4")


def soak(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Returns (exit status, the JSON line, standard error)."""
    command = [sys.executable, *SOAK, *SMALL, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_clean_run_finds_nothing_wrong():
    status, row, _ = soak("--ranks", "3", "--seconds", "4")
    assert status == 0 and row["wrong"] == 0 and row["leaks"] == [], row
    assert row["calls"] >= 50 and row["communicators"] >= 2 and row["statuses"] == [0, 0, 0], row


def test_every_spoilt_result_is_seen():
    status, row, said = soak("--ranks", "2", "--seconds", "2", "--break")
    assert status == 0 and row["wrong"] == row["broken"] > 0, row
    assert "1 wrong:" in said, said


def test_torch_computes_what_numpy_does(monkeypatch):
    """Compares the check of results on GPUs with the check on hosts, on the same data."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    from bench.lib import oracle

    on_host, by_torch = oracle.HostArrays(), oracle.TorchArrays("cpu")
    for kind in (*oracle.FLOATS, *oracle.INTEGERS):
        for op in oracle.ON_FLOATS if kind in oracle.FLOATS else oracle.ON_INTEGERS:
            request = plait.Request("all_reduce", 3001, kind, op, 3)
            case = oracle.ExpectedCall(on_host, request, 5)
            drawn = [case.drawn(rank) for rank in range(3)]
            same = []
            for array in drawn:
                there = by_torch.slab(array.nbytes)
                there[:] = by_torch.xp.from_numpy(array.view(np.uint8))
                same.append(by_torch.view(there, 0, len(array), kind))
            wanted = on_host.reduced(op, kind, drawn)
            found = by_torch.reduced(op, kind, same)
            assert by_torch.on_host(found, kind).tobytes() == wanted.tobytes(), (kind, op)


def test_torch_draws_and_compares(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    from bench.lib import oracle

    on = oracle.TorchArrays("cpu")
    for kind in (*oracle.FLOATS, *oracle.INTEGERS):
        for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "scatter"):
            case = oracle.ExpectedCall(on, plait.Request(name, 1001, kind, "sum", 3, 1, 2), 9)
            wanted = case.expected(2)
            assert case.wrong(2, wanted) == 0
            size = oracle.size_of(kind)
            output = on.view(on.slab(len(wanted) * size + 64), 3 * size, len(wanted), kind)
            on.fill(output, oracle.POISON)
            assert case.wrong(2, output) > 900, (name, kind)
            on.signed(output)[:] = on.signed(wanted)
            on.signed(output)[7:8] ^= 1
            assert case.wrong(2, output) == 1, (name, kind)


def process_of(rank: int, launcher: int) -> int:
    """Returns the process of a rank among the launcher's children; 0 before that process starts."""
    tasks = Path(f"/proc/{launcher}/task").glob("*/children")
    for child in " ".join(task.read_text() for task in tasks).split():
        with suppress(OSError):  # the child has ended
            if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                return int(child)
    return 0


def test_a_rank_that_stops_ends_the_job_with_its_name():
    command = [sys.executable, *SOAK, *SMALL, "--seconds", "60", "--stuck", "3"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while not (stopped := process_of(1, job.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    assert stopped, "rank 1 was not started"
    time.sleep(2.0)  # until batches run
    os.kill(stopped, signal.SIGSTOP)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 3, said
    assert "rank 1" in " ".join(json.loads(said)["errors"]), said
