"""Groups the rows of a run by call: plait's time by variant, NCCL's time, and the ratio.

goals.py and tables.py read runs through this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import plait
from bench.lib import rows
from bench.programs.items import CHOSEN
from plait.bench import engines

HOW = ("graph", "eager")
T = TypeVar("T")


@dataclass
class VariantTimes:
    """Times of one call: [us in a graph, us eagerly] by variant."""

    by: dict[str, list[float]] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=lambda: ["", ""])  # by how

    def us(self, how: int) -> float:
        """Returns the time of plait's choice; 0 if it was not timed."""
        return self.by[self.chosen[how]][how] if self.chosen[how] in self.by else 0.0

    def ratio(self, how: int, variant: str = "") -> float:
        """Returns NCCL's time over that of plait's choice, or of `variant`; 0 if one is missing."""
        ours, theirs = self.by.get(variant or self.chosen[how]), self.by.get("nccl")
        return theirs[how] / ours[how] if ours and theirs and ours[how] > 0 else 0.0


Calls = dict[tuple[str, str, int], VariantTimes]  # (collective, type, bytes)


def calls_of(folder: Path, section: str) -> Calls:
    """Returns the calls of a section, without rows that have wrong elements."""
    found: Calls = {}
    for row in rows.of_files(folder, f"gpu_run_{section}_*.csv"):
        if row["wrong"] != "0":
            continue
        key = (row["collective"], row["type"], int(row["bytes"]))
        variants = found.setdefault(key, VariantTimes())
        variant = row["way"].removeprefix("plait ")
        name = "nccl" if variant.startswith("nccl") else spelled(variant)
        variants.by[name] = [float(row[f"{how}_us"]) for how in HOW]
        for how, us in enumerate(variants.by[name]):
            if row["params"] == CHOSEN and us > 0:  # 0: another engine serves this launch
                variants.chosen[how] = name
    return found


def spelled(variant: str) -> str:
    """Returns a variant with its parameters ordered by name."""
    engine, params = engines.parted(variant)
    return engines.variant_of(engine, dict(sorted(params.items())))


def either(first: list[T], second: list[T]) -> list[T]:
    """Returns `first`, with empty items taken from `second`."""
    return [one or other for one, other in zip(first, second, strict=True)]


def of_both(one: Calls, two: Calls) -> Calls:
    """Merges the variants of two sections by call; `one` counts if both have a variant."""
    merged: Calls = {}
    for key in {*one, *two}:
        first, second = one.get(key, VariantTimes()), two.get(key, VariantTimes())
        none = [0.0] * len(HOW)
        by = {
            name: either(first.by.get(name, none), second.by.get(name, none))
            for name in {**second.by, **first.by}
        }
        merged[key] = VariantTimes(by, either(first.chosen, second.chosen))
    return merged


def busbw(collective: str, size: int, ranks: int, us: float) -> float:
    name = collective.partition(" ")[0]
    request = plait.Request(name, size, "uint8", "sum", ranks, 0, min(1, ranks - 1))
    return request.busbw_factor() * size / us / 1e3 if us > 0 else 0.0


def mean(ratios: list[float]) -> float:
    return math.exp(sum(math.log(one) for one in ratios) / len(ratios))
