"""A picture of a timeline: a row a lane with its ops, a row a path with what crosses it.

matplotlib is imported only here, when a picture is asked for.
"""

from __future__ import annotations

from typing import Any

import plait

COLOURS = {"copy": "#4878a8", "reduce": "#d08030", "signal": "#444444", "wait": "#dddddd"}
MOST_LANES = 48  # more would not be readable


def spans_by_lane(timeline: plait.Timeline, plan: plait.Plan) -> list[tuple[str, list[Any]]]:
    """(lane name, [(start_us, end_us, kind, text)]) of each lane that does something."""
    lanes: list[tuple[str, list[Any]]] = [
        (f"rank {rank} {name}", []) for rank, _, name, _ in plan.lanes
    ]
    for span in timeline.spans:
        text = plan.op_text(span.lane, span.op)
        kind = text.split(" ", 1)[0]
        lanes[span.lane][1].append((span.start_ns / 1e3, span.end_ns / 1e3, kind, text))
    return [lane for lane in lanes if lane[1]]


def plot(timeline: plait.Timeline, plan: plait.Plan, file: str) -> None:
    """Writes a PNG or SVG (by the file's ending) of lanes over time and resources' use."""
    try:
        import matplotlib
    except ImportError:
        raise plait.UnsupportedError(
            "wanted matplotlib for a plot, found none; pip install 'plait[plot]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

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
    top.set_xlabel("microseconds")
    top.set_title(f"{timeline.plan} on {timeline.topology}: {timeline.total_ns / 1e3:.1f} us")
    total = max(timeline.total_ns, 1e-9)
    bottom.barh([load.name for load in loads], [100 * load.busy_ns / total for load in loads])
    bottom.invert_yaxis()
    bottom.tick_params(axis="y", labelsize=6)
    bottom.set_xlabel("% of the time that the resource is busy")
    figure.savefig(file, dpi=130)
    pyplot.close(figure)
