"""Times of all_reduces beside NCCL: recorded on a kind of GPUs, or predicted for a machine.

`python tools/doc_tables.py` writes beside_nccl.csv from bench/results, so that installed packages
have the recorded rows too.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import plait
from plait.evidence.calibrate import NCCL_US
from plait.evidence.papers.rows import hop_gb_per_s, rings_us, same_time_mib

FILE = Path(__file__).with_name("beside_nccl.csv")
FIELDS = ("model", "gpus", "bytes", "plait_us", "nccl_us", "engine", "file", "machine")
LEAST_MIB = 64.0  # of the H200's ring; the loss of smaller rings was not measured


@dataclass(frozen=True)
class Beside:
    """An all_reduce of fp32 in CUDA graphs. engine: of plait, when measured."""

    plait_us: float
    nccl_us: float
    engine: str
    source: str

    @property
    def ratio(self) -> float:
        """NCCL's time over plait's: above 1, plait is faster."""
        return self.nccl_us / self.plait_us


@cache
def _rows() -> list[dict[str, str]]:
    with FILE.open(newline="") as stream:
        return list(csv.DictReader(stream))


def recorded(machine: plait.Topology, ranks: int) -> dict[int, Beside]:
    """Returns recorded times by message bytes on such GPUs behind an NVSwitch; empty if none."""
    devices = machine.devices
    places = machine.rank_devices()[:ranks]
    models = {devices[place].model for place in places}
    if len(models) != 1 or len({devices[place].node for place in places}) != 1:
        return {}
    if not _are_behind_a_switch(machine, places):
        return {}
    model = next(iter(models))
    return {
        int(row["bytes"]): Beside(
            float(row["plait_us"]),
            float(row["nccl_us"]),
            row["engine"],
            f"{row['machine']} (bench/results/{row['file']})",
        )
        for row in _rows()
        if row["model"] == model and int(row["gpus"]) == ranks
    }


def recorded_ranks(machine: plait.Topology) -> list[int]:
    """Returns the numbers of ranks that were measured on such GPUs."""
    counts = sorted({int(row["gpus"]) for row in _rows()})
    most = len(machine.rank_devices())
    return [ranks for ranks in counts if ranks <= most and recorded(machine, ranks)]


def _are_behind_a_switch(machine: plait.Topology, places: list[int]) -> bool:
    ports = {(link.src, link.dst): link for link in machine.links if link.kind == "nvlink"}
    return all(
        pair in ports and ports[pair].resources and ports[pair].width == 18
        for pair in permutations(places, 2)
    )


def predicted_us(machine: plait.Topology, ranks: int, size: int) -> float:
    """Returns the predicted us of NCCL's rings among the GPUs of a node; 0 = not known.

    The efficiency of rings was measured on H200 for 2, 4 and 8 ranks and large messages. Machines
    whose rings are others than 0, 1, 2, ... are not modelled, nor GPUs without NVLink.
    """
    devices = machine.devices
    places = machine.rank_devices()[:ranks]
    of_nvidia = all("AMD" not in devices[place].model for place in places)
    is_node = len({devices[place].node for place in places}) == 1
    if ranks not in NCCL_US or not of_nvidia or not is_node or devices[places[0]].kind != "gpu":
        return 0.0
    orders = _rings(machine, places)
    if not orders or same_time_mib(machine, orders, ranks, size) < LEAST_MIB:
        return 0.0
    return rings_us(machine, orders, ranks, size)


def _rings(machine: plait.Topology, places: list[int]) -> list[list[int]]:
    """Returns the rings that NCCL makes, as far as they are modelled."""
    links = {(link.src, link.dst): link for link in machine.links if link.kind == "nvlink"}
    ranks = len(places)
    among = {pair: link for pair, link in links.items() if {*pair} <= {*places}}
    if not among:
        return []
    is_full = len(among) == ranks * (ranks - 1)
    if is_full and not any(link.resources for link in among.values()) and ranks > 2:
        if ranks != 4:
            return []
        orders = [[0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
        return orders + [order[::-1] for order in orders]
    if not is_full and _has_other_ring(among, places):
        return []
    try:
        for one, next_one in pairwise([*range(ranks), 0]):
            hop_gb_per_s(machine, one, next_one)
    except ValueError:  # no path of a hop
        return []
    return [[*range(ranks)]]


def _has_other_ring(among: dict[tuple[int, int], Any], places: list[int]) -> bool:
    """True if NVLinks alone join all GPUs in a ring."""
    first, *rest = places
    return any(
        all(pair in among for pair in pairwise([first, *order, first]))
        for order in permutations(rest)
    )
