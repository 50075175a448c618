"""Tests that what calls run is a row among all ways, and no slower by prediction than the best of
the rows that may run, over all shipped machines and sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

import plait
from plait import by_size, ways
from plait.bench.sizes import request_for
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
        request = request_for("all_reduce", size, "fp32", "sum", ranks, 0, ranks - 1, shape="")
        found = ways.of_call(machine, request)
        assert [way.runs for way in found.rows].count(True) == 1
        assert found.running.us <= MOST * found.best.us, (size, found.running, found.best)


def test_the_table_over_sizes_marks_what_runs_at_each_size():
    """Also where a call runs with other parameters than the fastest."""
    for name in ("mist", "dgx1v", "l40s-x4"):
        machine = plait.load_topology(name)
        found = by_size.predict(machine, "all_reduce", usual_ranks(machine), [1 << 12, 1 << 22])
        _, rows = by_size.table_rows(found)
        for column in (1, 2):
            marked = [row for row in rows if "*" in row[column]]
            running = [*found.ways.values()][column - 1].running
            assert [row[0] for row in marked] == [by_size.line_name(running)]
            assert marked[0][column].split("*")[0] == by_size._short(running.us)
