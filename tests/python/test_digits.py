"""Tests examples/train_digits.py: 4 ranks train as a single process does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"


def test_four_ranks_train_as_one_process_does():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    differences = [
        float(line.split()[3]) for line in done.stdout.splitlines() if line[:5].strip().isdigit()
    ]
    assert len(differences) == 30 and max(differences) <= 1e-6
    found = re.search(r"held-out digits: ([\d.]+) and ([\d.]+)", done.stdout)
    assert found is not None and min(map(float, found.groups())) >= 0.95
