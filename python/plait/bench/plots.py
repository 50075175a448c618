"""Pictures of benchmark rows: bus bandwidth over message size."""

from __future__ import annotations

import platform
from typing import Any

from plait.outputs import human_bytes, load_pyplot, save


def plot_bench(rows: list[dict[str, Any]], file: str) -> None:
    """Of CPU ranks: a line a strategy and type."""
    points = [(f"{row['name']} {row['type']}", row["size"], row["busbw"]) for row in rows]
    _plot(points, f"{rows[0]['op']} over CPU ranks of {platform.node()}", file)


def plot_gpu_bench(rows: list[dict[str, Any]], file: str) -> None:
    """Of GPUs: a line of plait's a collective, type and way asked for; NCCL's in dashes."""
    points = []
    for row in rows:
        kind = f"{row['collective']} {row['type']}"
        points.append((f"plait {kind} {row['way']}".strip(), row["size"], row["plait_busbw"]))
        if "nccl_busbw" in row:
            points.append((f"nccl {kind}", row["size"], row["nccl_busbw"]))
    _plot(points, f"GPUs of {platform.node()}", file)


def _plot(points: list[tuple[str, int, float]], title: str, file: str) -> None:
    """(line, size, busbw) as a picture; a line's points in order of size."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for label in dict.fromkeys(label for label, *_ in points):
        line = sorted({(size, busbw) for of, size, busbw in points if of == label})
        style = "--s" if label.startswith("nccl ") else "-o"
        axes.plot(*zip(*line, strict=True), style, markersize=3, label=label)
    axes.set(yscale="log", xlabel="message size", ylabel="busbw (GB/s)", title=title)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: human_bytes(int(size)))
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    save(figure, file, 150)
