"""Plots a timeline: a row per lane with ops, a row per resource with load.

Imports matplotlib only when a plot is made.
"""

from __future__ import annotations

from typing import Any

import plait
from plait.outputs import load_pyplot, save

COLOURS = {"copy": "#4878a8", "reduce": "#d08030", "signal": "#444444", "wait": "#dddddd"}
MOST_LANES = 48  # more would not be readable


def spans_by_lane(timeline: plait.Timeline, plan: plait.Plan) -> list[tuple[str, list[Any]]]:
    """Returns (lane, [(start_us, end_us, kind, text)]) of each busy lane, by rank."""
    lanes: list[tuple[str, list[Any]]] = [
        (f"rank {rank} {name}", []) for rank, _, name, _ in plan.lanes
    ]
    for span in timeline.spans:
        text = plan.op_text(span.lane, span.op)
        kind = text.split(" ", 1)[0]
        lanes[span.lane][1].append((span.start_ns / 1e3, span.end_ns / 1e3, kind, text))
    return sorted((lane for lane in lanes if lane[1]), key=_by_rank)


def use_over_time(load: Any, total_ns: float) -> tuple[list[float], list[float]]:
    """Returns the times (us) and fractions of capacity at which a resource's load changes."""
    capacity = load.bytes / load.busy_ns if load.busy_ns else 1.0
    steps = [(0.0, 0.0), *load.rates, (total_ns, 0.0)]
    return [at_ns / 1e3 for at_ns, _ in steps], [rate / capacity for _, rate in steps]


def _by_rank(lane: tuple[str, list[Any]]) -> tuple[int, str]:
    _, rank, rest = lane[0].split(" ", 2)
    return int(rank), rest


def plot(timeline: plait.Timeline, plan: plait.Plan, file: str) -> None:
    """Writes a PNG or SVG (by suffix) of lanes and resource loads over time."""
    pyplot = load_pyplot()
    lanes = spans_by_lane(timeline, plan)[:MOST_LANES]
    loads = sorted(timeline.resources, key=lambda load: -load.busy_ns)[:12]
    figure, (top, bottom) = pyplot.subplots(
        2,
        1,
        figsize=(11, 2.5 + 0.22 * (len(lanes) + len(loads))),
        height_ratios=(max(1, len(lanes)), max(1, len(loads))),
        layout="constrained",
    )
    for row, (_, spans) in enumerate(lanes):
        for kind, colour in COLOURS.items():
            bars = [(start, end - start) for start, end, of, _ in spans if of == kind]
            top.broken_barh(bars, (row - 0.4, 0.8), facecolors=colour)
    top.set_yticks(range(len(lanes)), [name for name, _ in lanes], fontsize=6)
    top.invert_yaxis()
    keys = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    top.legend(keys, COLOURS, loc="upper right", fontsize=6, ncols=len(keys))
    top.set_xlabel("microseconds")
    top.set_title(f"{timeline.plan} on {timeline.topology}: {timeline.total_ns / 1e3:.1f} us")
    for row, load in enumerate(loads):
        times_us, heights = use_over_time(load, timeline.total_ns)
        bottom.fill_between(
            times_us,
            row + 0.4,
            [row + 0.4 - 0.8 * part for part in heights],
            step="post",
            color=COLOURS["copy"],
        )
    total = max(timeline.total_ns, 1e-9)
    labels = [f"{load.name} ({100 * load.busy_ns / total:.0f} %)" for load in loads]
    bottom.set_yticks(range(len(loads)), labels, fontsize=6)
    bottom.set_ylim(len(loads) - 0.5, -0.5)
    top.set_xlim(0, total / 1e3)
    bottom.set_xlim(0, total / 1e3)
    bottom.set_xlabel("microseconds; height: load / capacity of the resource")
    save(figure, file, 130)
