"""Short runs of bench soak, kills and accuracy; skipped with fewer than two GPUs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plait import gpu

GPUS = gpu.count()
BENCH = Path(__file__).parents[2] / "bench"
SCALE = float(os.environ.get("PLAIT_TEST_SCALE", "1"))
RANKS = str(4 if GPUS >= 4 else 2)
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, found {GPUS}: {gpu.why_none() or 'one'}"),
    pytest.mark.timeout(240 + 60 * SCALE),
]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def run(program: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """(exit status, the JSON line, standard error)."""
    command = [sys.executable, str(BENCH), program, "--ranks", RANKS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    return done.returncode, json.loads(lines[-1]), done.stderr


def test_survivors_of_killed_ranks_know_who_and_give_their_memory_back():
    status, row, said = run("kills", "--rounds", str(max(2, round(4 * SCALE))))
    assert status == 0 and row["faults"] == [], (row, said)
    assert row["told_ms"]["most"] < 2000, row


@needs_torch
def test_random_collectives_leave_nothing_wrong_and_nothing_behind():
    status, row, said = run("soak", "--seconds", str(15 * SCALE))
    assert status == 0 and row["wrong"] == 0 and row["leaks"] == [], (row, said)
    assert row["calls"] > 100 and row["graphs"] > 0, row


@needs_torch
def test_spoilt_results_on_gpus_are_seen():
    status, row, said = run("soak", "--seconds", "3", "--most-mib", "16", "--break")
    assert status == 0 and row["wrong"] == row["broken"] > 0, (row, said)


@needs_torch
def test_errors_are_no_larger_than_nccls_and_bits_stay():
    status, row, said = run("accuracy", "--most-mib", "16")
    assert status == 0 and row["faults"] == [] and row["rows"] >= 8, (row, said)
