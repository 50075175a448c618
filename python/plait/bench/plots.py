"""Plots benchmark rows: bus bandwidth over message size."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

from plait.by_size import style
from plait.outputs import human_bytes, load_pyplot, save

Point = tuple[str, int, float]  # line, size, busbw


def plot_bench(rows: list[dict[str, Any]], task: dict[str, Any], file: str) -> None:
    """Plots rows of CPU ranks, out of place: a line per strategy and type.

    With the chosen strategy of each size, a thin line joins the points of a type.
    """
    points = [(f"{row['name']} {row['type']}", row["size"], row["busbw"]) for row in rows]
    chosen = [] if task["strategies"] else rows
    joined = [(row["type"], row["size"], row["busbw"]) for row in chosen]
    what = task["collective"] + (f" ({rows[0]['op']})" if rows[0]["op"] else "")
    where = f"{task['ranks']} CPU ranks of {platform.node()}"
    _plot(points, f"{what}, {where}, out of place", file, joined)


def plot_gpu_bench(rows: list[dict[str, Any]], file: str) -> None:
    """Plots rows of GPUs: a line per collective, type and variant; NCCL's lines are dotted."""
    points = []
    for row in rows:
        kind = f"{row['collective']} {row['type']}"
        points.append((f"plait {kind} {row['way']}".strip(), row["size"], row["plait_busbw"]))
        if "nccl_busbw" in row:
            points.append((f"nccl {kind}", row["size"], row["nccl_busbw"]))
    _plot(points, f"GPUs of {platform.node()}", file)


def _plot(points: list[Point], title: str, file: str, joined: Sequence[Point] = ()) -> None:
    """Plots points, each line in order of size. joined: lines to draw thin and unnamed."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for line in _lines(joined).values():
        axes.plot(*zip(*line, strict=True), "-", color="#bbb", linewidth=1)
    for number, (label, line) in enumerate(_lines(points).items()):
        look = style(number)
        of_nccl = label.startswith("nccl ")
        axes.plot(
            *zip(*line, strict=True),
            color=look.colour,
            dashes=(1, 1) if of_nccl else look.dashes or (None, None),
            marker=look.marker,
            markersize=4,
            label=label,
        )
    axes.set(yscale="log", xlabel="message size", ylabel="busbw (GB/s)", title=title)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: human_bytes(int(size)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    save(figure, file, 150)


def _lines(points: Sequence[Point]) -> dict[str, list[tuple[int, float]]]:
    lines: dict[str, set[tuple[int, float]]] = {}
    for name, size, busbw in points:
        lines.setdefault(name, set()).add((size, busbw))
    return {name: sorted(of_name) for name, of_name in lines.items()}
