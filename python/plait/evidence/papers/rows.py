"""Rows that compare a paper's claim with the simulator, and the machines needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import plait
from plait.evidence.calibrate import machine as measured_node
from plait.evidence.calibrate import nccl_reached
from plait.evidence.sketch import ring_kernel

MB = 1 << 20
WITHIN = 0.10  # of a claim, within which a row holds
EQUAL = 0.01  # of a time, within which two plans or gains count as equal


@dataclass(frozen=True)
class PaperRow:
    """A claim of a paper and the simulated figure."""

    id: str
    kind: str  # "must" or "show"
    what: str
    claim: str
    claimed: float | None  # None = a claim on order, decided by `holds`
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
    """Returns a row of a claim on order."""
    return PaperRow(number, kind, what, "order", None, None, holds=holds, reason=reason)


def times(
    number: str, what: str, claimed: float, simulated: float, kind: str = "must", reason: str = ""
) -> PaperRow:
    """Returns a row of a claim of a speedup."""
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


def hop_gb_per_s(topology: plait.Topology, src: int, dst: int) -> float:
    """Returns GB/s of a ring's hop between two ranks: the direct link, else through the host."""
    paths = topology.paths_between(src, dst)
    hops = [path for path in paths if len(path.links) == 1]
    hops = hops or [path for path in paths if path.name.startswith("host:")]
    return max(topology.path_gb_per_s(path) for path in hops)


def _rings_gb_per_s(topology: plait.Topology, orders: list[list[int]]) -> float:
    """Returns GB/s of all rings together; each has the speed of the slowest hop."""
    return sum(
        min(hop_gb_per_s(topology, order[k - 1], rank) for k, rank in enumerate(order))
        for order in orders
    )


def same_time_mib(
    topology: plait.Topology, orders: list[list[int]], ranks: int, size: int
) -> float:
    """Returns the MiB that the H200's ring moves in the time of these rings for `size` bytes."""
    measured = _rings_gb_per_s(measured_node(), [[*range(ranks)]])
    return size / MB * measured / _rings_gb_per_s(topology, orders)


def rings_us(topology: plait.Topology, orders: list[list[int]], ranks: int, size: int) -> float:
    """Returns us of NCCL's rings at the measured fraction of the modelled speed.

    On the H200 NCCL loses a fixed time. Hence rings of 1 / k of the H200's speed reach the same
    fraction with 1 / k of the bytes. The rule is the same for all machines.
    """
    same_time = same_time_mib(topology, orders, ranks, size)
    return us(ring_kernel(topology, orders, size), topology) / nccl_reached(ranks, same_time)


@cache
def nccl_us(name: str, size: int, ranks: int) -> float:
    """Returns us of NCCL's rings on a machine of the papers."""
    orders = [[*range(ranks)]]
    if name in ("cedar", "narval") and ranks == 4:  # all pairs are linked: three rings, both ways
        orders = [[0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
        orders += [order[::-1] for order in orders]
    return rings_us(machine(name), orders, ranks, size)
