"""Holds that every strategy is ranked first for some request on a shipped machine.

A strategy that is never first serves no call: its place is a program's own file ("Your own" in
docs/strategies.md). Run as a program, this file counts first places over collectives, sizes and 2
to 16 ranks, by sum order: `python tests/python/test_first_strategies.py hgx-h200 mist-2`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product

import pytest

import plait

BUDGET_OPS = 50_000  # as in the choice of a call
BYTES_OF = {"fp32": 4, "int32": 4, "bf16": 2}
SUMMED = ("all_reduce", "reduce_scatter", "reduce")
MOVED = ("all_gather", "all_to_all", "broadcast", "gather", "scatter", "send_recv", "copy")

# By strategy: machine, ranks, collective, type, bytes, and the sum order among whose plans the
# strategy is fastest by simulation. Calls on up to two nodes take the first plan in rank order.
FIRST = {
    "one_shot": ("hgx-h200", 2, "all_reduce", "fp32", 8, "rank"),
    "two_shot": ("hgx-h200", 3, "all_reduce", "fp32", 2 << 20, "rank"),
    "direct": ("hgx-h200", 2, "all_reduce", "fp32", 128 << 20, "rank"),
    "flat": ("hgx-h200", 3, "all_reduce", "fp32", 16 << 20, "rank"),
    "hierarchical": ("mist", 3, "all_reduce", "fp32", 2 << 20, "any"),
    "pairwise": ("cedar", 2, "all_reduce", "fp32", 128 << 20, "rank"),
    "fold": ("hgx-h200", 6, "all_reduce", "fp32", 2 << 20, "rank"),
    "phases": ("hgx-h200", 2, "all_reduce", "fp32", 16 << 20, "rank"),
    "ring": ("hgx-h200", 2, "all_reduce", "int32", 16 << 20, "rank"),
    "recursive_doubling": ("hgx-h200", 4, "all_gather", "fp32", 64, "rank"),
    "rabenseifner": ("hgx-h200", 4, "all_reduce", "fp32", 16 << 20, "any"),
    "tree": ("hgx-h200", 2, "gather", "fp32", 16 << 20, "rank"),
    "bruck": ("hgx-h200", 2, "all_to_all", "fp32", 16 << 20, "rank"),
    "staged": ("mist", 3, "reduce", "fp32", 512, "rank"),
    "rerouted": ("mist", 3, "all_reduce", "fp32", 16 << 20, "rank"),
    "striped": ("hgx-h200", 2, "send_recv", "fp32", 16 << 20, "rank"),
    "multi_node": ("mist-2", 5, "all_gather", "fp32", 8, "rank"),
    "leaders": ("mist-2", 5, "all_reduce", "fp32", 1 << 30, "any"),
    "node_order": ("mist-2", 5, "all_reduce", "fp32", 8, "rank"),
    "library": ("mist-2", 5, "all_reduce", "fp32", 64, "any"),
}


def request_of(collective: str, kind: str, nbytes: int, ranks: int) -> plait.Request:
    return plait.Request(collective, max(1, nbytes // BYTES_OF[kind]), kind, ranks=ranks)


def first(machine: plait.Topology, request: plait.Request) -> dict[str, str]:
    """Returns the first strategy by sum order: "any", and "rank" if a plan has rank order."""
    plans = [one.plan for one in plait.ranked(machine, request, BUDGET_OPS)[0]]
    in_rank_order = [plan for plan in plans if plan.sum_order == "rank_order"]
    lists = {"any": plans, "rank": in_rank_order}
    return {order: of_order[0].strategy for order, of_order in lists.items() if of_order}


def test_every_strategy_has_a_case():
    assert list(FIRST) == [info.name for info in plait.strategies()]


@pytest.mark.parametrize("strategy", FIRST)
def test_the_strategy_is_ranked_first(strategy):
    machine, ranks, collective, kind, nbytes, order = FIRST[strategy]
    request = request_of(collective, kind, nbytes, ranks)
    assert first(plait.load_topology(machine), request)[order] == strategy


def requests(machine: plait.Topology) -> Iterator[plait.Request]:
    """Yields requests of 8 B to 1 GiB on 2 to 16 ranks."""
    calls = [*product(SUMMED, BYTES_OF), *((moved, "fp32") for moved in MOVED)]
    for ranks, (collective, kind), power in product(range(2, 17), calls, range(3, 31, 3)):
        yield request_of(collective, kind, 1 << power, ranks)


def main(machines: list[str]) -> None:
    places: dict[str, Counter[str]] = {"any": Counter(), "rank": Counter()}
    for name in machines:
        machine = plait.load_topology(name)
        for request in requests(machine):
            try:
                for order, strategy in first(machine, request).items():
                    places[order][strategy] += 1
            except plait.Error:
                continue  # more ranks than the machine has
    for info in plait.strategies():
        print(f"{info.name:20}{places['any'][info.name]:8}{places['rank'][info.name]:8}")


if __name__ == "__main__":
    main(sys.argv[1:])
