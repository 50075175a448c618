"""Limits the overhead of a call from Python to 6 us (2.1 us on a 2.5 GHz Xeon, 2026-11-25)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = (str(Path(__file__).resolve().parents[2] / "bench"), "python-call")
MOST_US = 6.0


@pytest.mark.alone
def test_a_call_of_one_rank_takes_microseconds():
    done = subprocess.run([sys.executable, *BENCH], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["least_us"] < MOST_US
