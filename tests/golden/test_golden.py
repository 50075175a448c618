"""Printed plans, reports and command output, held against files in this folder.

After a wanted change: PLAIT_UPDATE_GOLDEN=1 pytest tests/golden, and read the difference.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import plait

FOLDER = Path(__file__).parent


def check(name: str, text: str) -> None:
    """Compares text with the file of that name, or writes the file where asked to."""
    file = FOLDER / name
    if os.environ.get("PLAIT_UPDATE_GOLDEN"):
        file.write_text(text)
    assert file.read_text() == text, f"{name} differs; see the top of this file"


def command(*words: str) -> str:
    env = {key: value for key, value in os.environ.items() if key != "PLAIT_UPDATE_GOLDEN"}
    done = subprocess.run(
        [sys.executable, "-m", "plait.cli", *words],
        capture_output=True,
        text=True,
        env={**env, "COLUMNS": "120"},
        timeout=120,
    )
    return done.stdout + done.stderr + f"exit status {done.returncode}\n"


@pytest.mark.parametrize(
    "strategy", ["one_shot", "two_shot", "direct", "ring", "recursive_doubling"]
)
def test_printed_plan(strategy):
    topology = plait.load_topology("hgx-h200")
    request = plait.Request("all_reduce", 1024, "bf16", "sum", 3)
    check(f"plan_{strategy}.txt", str(plait.propose_one(topology, request, strategy)))


def test_printed_plan_over_three_paths():
    topology = plait.load_topology("mist")
    request = plait.Request("all_reduce", 1 << 20, "fp32", "sum", 2)
    check("plan_pairwise_mist.txt", str(plait.propose_one(topology, request, "pairwise")))


def test_printed_report_of_a_broken_plan():
    topology = plait.load_topology("hgx-h200")
    request = plait.Request("all_reduce", 256, "fp32", "sum", 2)
    text = plait.propose_one(topology, request, "direct").to_json()
    broken = text.replace('"wait"', '"signal"', 1)
    assert broken != text
    check("report_broken.txt", str(plait.verify(plait.Plan.from_json(broken))))


@pytest.mark.parametrize("machine", ["mist", "dgx1v"])
def test_topo_command(machine):
    check(f"topo_{machine}.txt", command("topo", "-T", machine))


def test_error_lines():
    words = [
        ("topo", "-T", "atlantis"),
        ("plan", "all_reduce", "-d", "fp12"),
        ("plan", "all_reduce", "-T", "mist", "--ranks", "9"),
        ("verify",),
    ]
    check("errors.txt", "".join(f"$ plait {' '.join(line)}\n{command(*line)}" for line in words))
