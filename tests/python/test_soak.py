"""bench/soak.py on host memory: a clean run, spoilt results that it must see, a rank that stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SOAK = Path(__file__).parents[2] / "bench" / "soak.py"
SMALL = ("--host", "--epoch", "1", "--most-mib", "0.25", "--slab-mib", "4")


def soak(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """(exit status, the JSON line, standard error)."""
    command = [sys.executable, str(SOAK), *SMALL, *arguments]
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


def test_a_rank_that_stops_ends_the_job_with_its_name():
    command = [sys.executable, str(SOAK), *SMALL, "--seconds", "60", "--stuck", "3"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    children: list[str] = []
    until = time.monotonic() + 30
    while len(children) < 2 and time.monotonic() < until:
        tasks = Path(f"/proc/{job.pid}/task").glob("*/children")
        children = " ".join(task.read_text() for task in tasks).split()
        time.sleep(0.05)
    time.sleep(2.0)  # into the batches
    os.kill(int(children[1]), signal.SIGSTOP)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 3, said
    assert "rank 1" in " ".join(json.loads(said)["errors"]), said
