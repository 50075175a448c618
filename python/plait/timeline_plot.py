"""Plots a timeline: a row for each rank with its work, a row for each resource with its load, and
lanes on demand.

Imports matplotlib only when a plot is made.
"""

from __future__ import annotations

from typing import Any

import plait
from plait.outputs import load_pyplot, save
from plait.timeline_rows import (
    COLOURS,
    WORK,
    LaneRows,
    Rows,
    lane_rows,
    rank_rows,
    resource_rows,
)

HATCHES = {"reduce": "////", "join": "...."}  # readable without colour
ROW_INCHES = 0.24


def plot(timeline: plait.Timeline, plan: plait.Plan, file: str, lanes: bool = False) -> None:
    """Writes a PNG or SVG (by suffix) of ranks and resources over time; `lanes` adds the lanes."""
    ranks, resources = rank_rows(timeline, plan), resource_rows(timeline)
    drawn = lane_rows(timeline, plan) if lanes else LaneRows([], "")
    heights = [len(ranks.rows), len(resources.rows), *([len(drawn.lanes)] if lanes else [])]
    heights = [max(1, height) + 2 for height in heights]  # 2: a part's title and axis
    figure, axes = load_pyplot().subplots(
        len(heights),
        1,
        figsize=(11, 0.8 + ROW_INCHES * sum(heights)),
        height_ratios=heights,
        layout="constrained",
    )
    figure.suptitle(f"{timeline.plan} on {timeline.topology}: {timeline.total_ns / 1e3:.1f} us")
    _fill(axes[0], ranks, "ranks: part of the lanes at work (busy share of the call)")
    _fill(axes[1], resources, "links and memories: load / capacity (busy share of the call)")
    if lanes:
        _bars(axes[2], drawn)
    _legend(axes[0], WORK)
    for axis in axes:
        axis.set_xlim(0, max(timeline.total_ns, 1e-9) / 1e3)
    axes[-1].set_xlabel("microseconds")
    save(figure, file, 130)


def _fill(axis: Any, shown: Rows, title: str) -> None:
    """Draws shares over time, stacked by kind, a row of height 0.8 each."""
    for number, row in enumerate(shown.rows):
        low = [number + 0.4] * len(row.times_us)
        for kind, shares in row.shares.items():
            high = [at - 0.8 * share for at, share in zip(low, shares, strict=True)]
            style = {"facecolor": COLOURS[kind], "linewidth": 0}
            if kind in HATCHES:
                style |= {"hatch": HATCHES[kind], "edgecolor": "white"}
            axis.fill_between(row.times_us, low, high, step="post", **style)
            low = high
        axis.axhline(number + 0.4, color="#bbbbbb", linewidth=0.5)
    _label(axis, [row.label for row in shown.rows], title, shown.note)


def _bars(axis: Any, shown: LaneRows) -> None:
    """Draws a bar for each op of a lane."""
    for number, (_, spans) in enumerate(shown.lanes):
        for kind, colour in COLOURS.items():
            bars = [(start, end - start) for start, end, of, _ in spans if of == kind]
            axis.broken_barh(bars, (number - 0.4, 0.8), facecolors=colour)
    _label(axis, [name for name, _ in shown.lanes], "lanes", shown.note)
    _legend(axis, tuple(COLOURS))


def _label(axis: Any, labels: list[str], title: str, note: str) -> None:
    axis.set_yticks(range(len(labels)), labels, fontsize=7)
    axis.set_ylim(max(len(labels), 1) - 0.5, -0.5)
    axis.set_title(f"{title}: {note}" if note else title, fontsize=8, loc="left", wrap=True)
    axis.tick_params(axis="x", labelsize=7)


def _legend(axis: Any, kinds: tuple[str, ...]) -> None:
    """Puts the legend beside the title, where it hides no row."""
    keys = [
        load_pyplot().Rectangle(
            (0, 0), 1, 1, facecolor=COLOURS[kind], hatch=HATCHES.get(kind), edgecolor="white"
        )
        for kind in kinds
    ]
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1}
    axis.legend(keys, kinds, fontsize=7, ncols=len(keys), frameon=False, **place)
