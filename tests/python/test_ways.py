"""Tests that what calls run is a row among all ways, and no slower by prediction than the best of
the rows that may run, over all shipped machines and sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

import plait
from plait import ways
from plait.commands.plan import usual_ranks

MACHINES = sorted(file.stem for file in (Path(__file__).parents[2] / "topologies").glob("*.json"))
NODES = ("cedar-2", "delta-ai-2", "hgx-h200-2", "mist-2", "mist-4")
SIZES = [1 << power for power in range(10, 31, 4)] + [16 << 20, 256 << 20, 1 << 30]
MOST = 1.05  # the error of predictions, by which the core prefers engines to plans


@pytest.mark.parametrize("name", [*MACHINES, *NODES])
def test_what_runs_is_no_slower_than_the_best_that_may_run(name):
    machine = plait.load_topology(name)
    ranks = min(usual_ranks(machine), 64)
    for size in sorted(set(SIZES)):
        request = plait.Request("all_reduce", size // 4, "fp32", ranks=ranks)
        found = ways.of_call(machine, request)
        assert [way.runs for way in found.rows].count(True) == 1
        assert found.running.us <= MOST * found.best.us, (size, found.running, found.best)
