"""Judges the goals of a run from its files: yes, NO, or not measured.

`run` writes most of these files, and tables.py prints the goals. Overlap is a step of `evidence`,
whose other steps print verdicts of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.lib import rows
from bench.programs.calls import HOW, Calls, VariantTimes, busbw, calls_of, mean, of_both
from bench.programs.items import GIB, KIB, MIB, OTHERS, SYMMETRIC_SIZES, SYMMETRIC_TYPES, powers
from plait.outputs import human_bytes

GRAPH, EAGER = 0, 1
MOST = 4 * GIB


@dataclass(frozen=True)
class Figure:
    """A goal: a call of fp32 by plait's choice, or by a variant with `variant` in its name.
    `bound`: most us, or least GB/s."""

    ranks: int
    size: int
    bound: float
    collective: str = "all_reduce"
    how: int = GRAPH
    is_speed: bool = False
    variant: str = ""


def times(ranks: int, bounds: dict[int, float]) -> list[Figure]:
    return [Figure(ranks, size, us) for size, us in bounds.items()]


def speeds(ranks: int, bounds: dict[int, float], how: int = GRAPH) -> list[Figure]:
    return [Figure(ranks, size, gb, how=how, is_speed=True) for size, gb in bounds.items()]


FIGURES = (
    *times(8, {KIB: 3.5, 64 * KIB: 4.8, MIB: 11.0, 4 * MIB: 27.0, 16 * MIB: 92.0}),
    *speeds(8, {64 * MIB: 324.0, 256 * MIB: 354.0, GIB: 362.0}),
    Figure(8, GIB, 376.0, how=EAGER, is_speed=True, variant="host_"),
    Figure(8, GIB, 345.0, "all_to_all", is_speed=True),
    *speeds(4, {64 * MIB: 337.0, GIB: 363.0}),
    *speeds(4, {GIB: 378.0}, EAGER),
    *speeds(2, {64 * MIB: 350.0, GIB: 415.0}),
)
AS_FAST = 1.0  # NCCL's time over plait's, at every size
MEANS = {"all_reduce": 1.5} | dict.fromkeys(OTHERS, 1.3)
PINNED = {
    "pinned_tree": "pinned to its tree and 8 channels",
    "pinned_ring": "pinned to its ring and 1 channel",
}
OVER_PINNED = 2.0
SLOW_DOWN_SHARE = 0.25  # plait's slow-down of products over NCCL's, at most


def verdict(text: str, met: bool | None) -> str:
    """Returns the line of a goal. met: None if it was not measured."""
    return f"{text}: {'not measured' if met is None else 'yes' if met else 'NO'}"


def fastest_with(variants: VariantTimes, word: str, how: int) -> float:
    """Returns the us of the fastest variant with `word` in its name; 0 if there is none."""
    found = [us[how] for name, us in variants.by.items() if word in name and us[how] > 0]
    return min(found, default=0.0)


def figure(calls: Calls, one: Figure) -> str:
    variants = calls.get((one.collective, "fp32", one.size), VariantTimes())
    us = fastest_with(variants, one.variant, one.how) if one.variant else variants.us(one.how)
    unit = "GB/s" if one.is_speed else "us"
    by = f" by {one.variant}*" if one.variant else ""
    said = f"{one.collective} {human_bytes(one.size)} {HOW[one.how]}{by}"
    if us <= 0:
        return verdict(f"{said}, goal {one.bound} {unit}", None)
    if one.is_speed:
        found = busbw(one.collective, one.size, one.ranks, us)
        return verdict(f"{said}: {found:.1f} GB/s, goal {one.bound}", found >= one.bound)
    return verdict(f"{said}: {us:.2f} us, goal {one.bound}", us <= one.bound)


def at_every_size(said: str, ratios: dict[int, float], sizes: list[int], bound: float) -> str:
    """Judges that the ratio is at least `bound` at all sizes; names the sizes behind or missing."""
    behind = [f"{human_bytes(one)} {ratio:.2f}" for one, ratio in ratios.items() if ratio < bound]
    missing = [human_bytes(one) for one in sizes if one not in ratios]
    more = f"; behind at {', '.join(behind)}" if behind else ""
    more += f"; not measured at {', '.join(missing)}" if missing and ratios else ""
    met = None if not ratios or (missing and not behind) else not behind
    return verdict(f"{said} at each of {len(sizes)} sizes{more}", met)


def ratios_of(calls: Calls, collective: str, kind: str, how: int) -> dict[int, float]:
    """Returns NCCL's time over that of plait's choice, by size."""
    return {
        size: variants.ratio(how)
        for (name, of, size), variants in sorted(calls.items())
        if (name, of) == (collective, kind) and variants.ratio(how)
    }


def beside_nccl(calls: Calls) -> Iterator[str]:
    for collective, least in MEANS.items():
        first = KIB if collective == "all_reduce" else 4 * KIB
        sizes = powers(first, MOST, 2)
        for how in (GRAPH, EAGER):
            ratios = ratios_of(calls, collective, "fp32", how)
            at_asked = {size: ratio for size, ratio in ratios.items() if size in sizes}
            said = f"{collective} {HOW[how]}: NCCL takes as long or longer"
            yield at_every_size(said, at_asked, sizes, AS_FAST)
            whole = mean(list(ratios.values())) if ratios else 0.0
            said = f"{collective} {HOW[how]}: geometric mean {whole:.2f}, goal {least}"
            yield verdict(said, whole >= least if ratios else None)


def beside_pinned(folder: Path) -> Iterator[str]:
    for section, said in PINNED.items():
        calls = calls_of(folder, section)
        for how in (GRAPH, EAGER):
            ratios = ratios_of(calls, "all_reduce", "fp32", how)
            head = f"NCCL {said}, {HOW[how]}: {OVER_PINNED:.0f} times plait's time"
            yield at_every_size(head, ratios, powers(KIB, MOST, 2), OVER_PINNED)


def beside_symmetric(folder: Path) -> Iterator[str]:
    """Judges plait against PyTorch's symmetric memory. A size that PyTorch refuses has ratio 0, and
    no goal."""
    found = list(rows.of_files(folder, "gpu_symmetric_*.csv"))
    for kind in SYMMETRIC_TYPES.values():
        of_kind = [row for row in found if row["type"] == kind and row["wrong"] == "0"]
        refused = [int(row["bytes"]) for row in of_kind if float(row["ratio"]) == 0]
        ratios = {int(row["bytes"]): float(row["ratio"]) for row in of_kind}
        ratios = {size: ratio for size, ratio in ratios.items() if size not in refused}
        sizes = [size for size in SYMMETRIC_SIZES if size not in refused]
        said = f"PyTorch's symmetric memory takes as long or longer, {kind}"
        if refused:
            said += f" (refused: {', '.join(human_bytes(size) for size in refused)})"
        yield at_every_size(said, ratios, sizes, AS_FAST)


def beside_products(folder: Path) -> str:
    """Judges plait's least slow-down of products against NCCL's."""
    slow: dict[str, list[tuple[float, str]]] = {"nccl": [], "plait": []}
    for row in rows.of_files(folder, "gpu_overlap_*.csv"):
        if row.get("collective") == "all_reduce":
            budget = f"a budget of {row['sm_budget']}" if row["sm_budget"] else "its own choice"
            slow[row["by"]].append((float(row["slow_down_percent"]), budget))
    said = "products with all_reduces of 256 MiB: slowed by"
    if not slow["nccl"] or not slow["plait"]:
        return verdict(f"{said} a quarter of NCCL's percentage at most", None)
    theirs, (ours, by) = min(slow["nccl"])[0], min(slow["plait"])
    met = ours <= max(theirs, 0.0) * SLOW_DOWN_SHARE
    return verdict(f"{said} {ours:.1f} % by plait with {by}, {theirs:.1f} % by NCCL", met)


def goals(folder: Path, ranks: int) -> Iterator[str]:
    """Yields a line per goal. A figure that names a variant may come from the schedules."""
    table = calls_of(folder, "table")
    swept = of_both(calls_of(folder, "schedules"), calls_of(folder, "slots"))
    yield "### goals"
    for one in FIGURES:
        if one.ranks == ranks:
            yield figure(swept if one.variant else table, one)
    yield from beside_nccl(table)
    yield from beside_pinned(folder)
    yield from beside_symmetric(folder)
    yield beside_products(folder)
