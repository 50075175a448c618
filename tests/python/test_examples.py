"""Every numbered example runs, and shows what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(name: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_why_results_differ():
    said = run("07_same_bits.py")
    page = (ROOT / "docs" / "same_bits.md").read_text()
    shown = re.search(r"```\n(one sum.*?)```", page, re.S)[1]
    assert shown in said, said
    bits = dict(re.findall(r"^  (\S+) +([0-9a-f]{8})  ", said, re.M))
    in_rank_order = {bits[name] for name in ("direct,pieces=1", "direct,pieces=4", "one_shot")}
    assert len(in_rank_order) == 1 and len(set(bits.values())) == 4
