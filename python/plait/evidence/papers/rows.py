"""A claim of a paper beside what the simulator says, and the machines they are made on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import plait
from plait.evidence.calibrate import machine as measured_node
from plait.evidence.calibrate import nccl_reached
from plait.evidence.sketch import ring_kernel

MB = 1 << 20
WITHIN = 0.10  # of a claim: a row holds
EQUAL = 0.01  # of a time: two plans, or two gains, are as good as each other


@dataclass(frozen=True)
class PaperRow:
    """One claim of a paper beside what the simulator says."""

    id: str
    kind: str  # "must" or "show"
    what: str
    claim: str
    claimed: float | None  # None: an order, which `holds` judges
    simulated: float | None
    unit: str = "x"
    holds: bool | None = None
    reason: str = ""

    @property
    def deviation(self) -> float | None:
        if self.claimed is None or self.simulated is None:
            return None
        return self.simulated / self.claimed - 1.0

    @property
    def ok(self) -> bool:
        if self.holds is not None:
            return self.holds
        return self.deviation is not None and abs(self.deviation) <= WITHIN + 1e-9


def order(number: str, what: str, holds: bool, kind: str = "must", reason: str = "") -> PaperRow:
    """A claim about what is ahead of what."""
    return PaperRow(number, kind, what, "order", None, None, holds=holds, reason=reason)


def times(
    number: str, what: str, claimed: float, simulated: float, kind: str = "must", reason: str = ""
) -> PaperRow:
    """A claim of so many times the speed of another."""
    return PaperRow(number, kind, what, f"{claimed}x", claimed, simulated, reason=reason)


@cache
def machine(name: str) -> plait.Topology:
    return plait.load_topology(name)


def us(plan: plait.Plan, topology: plait.Topology) -> float:
    return plait.simulate(plan, topology).total_ns / 1e3


def missing(number: str, what: str, claim: str, reason: str) -> PaperRow:
    return PaperRow(
        number, "show", what, claim, None, None, holds=False, reason=f"not simulated: {reason}"
    )


def grid(**values: Iterable[int]) -> tuple[tuple[tuple[str, int], ...], ...]:
    found: list[tuple[tuple[str, int], ...]] = [()]
    for key, options in values.items():
        found = [(*row, (key, option)) for row in found for option in options]
    return tuple(found)


def _hop_gb_per_s(topology: plait.Topology, src: int, dst: int) -> float:
    """Of a ring's hop between two ranks: by their link, else through the host."""
    paths = topology.paths_between(src, dst)
    hops = [path for path in paths if len(path.links) == 1]
    hops = hops or [path for path in paths if path.name.startswith("host:")]
    return max(topology.path_gb_per_s(path) for path in hops)


def _rings_gb_per_s(topology: plait.Topology, orders: list[list[int]]) -> float:
    """Of all rings together; each is as fast as its slowest hop."""
    return sum(
        min(_hop_gb_per_s(topology, order[k - 1], rank) for k, rank in enumerate(order))
        for order in orders
    )


@cache
def nccl_us(name: str, size: int, ranks: int) -> float:
    """NCCL's rings on the machine, at the part of the model's speed it was measured to reach.

    Measured on the H200: what NCCL loses is time, so rings of 1 / k of the H200's speed reach with
    1 / k of the bytes what the H200's reach. One rule for all machines.
    """
    topology = machine(name)
    orders = [[*range(ranks)]]
    if name in ("cedar", "narval") and ranks == 4:  # all pairs linked: three rings, both ways
        orders = [[0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
        orders += [order[::-1] for order in orders]
    measured = _rings_gb_per_s(measured_node(), [[*range(ranks)]])
    same_time = size / MB * measured / _rings_gb_per_s(topology, orders)
    return us(ring_kernel(topology, orders, size), topology) / nccl_reached(ranks, same_time)
