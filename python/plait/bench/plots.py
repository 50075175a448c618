"""Pictures of benchmark rows: bus bandwidth over message size."""

from __future__ import annotations

from typing import Any

from plait.outputs import load_pyplot, save


def plot_bench(rows: list[dict[str, Any]], file: str) -> None:
    """Of CPU ranks: a line a strategy and type."""
    _plot([(f"{row['name']} {row['type']}", row["size"], row["busbw"]) for row in rows], file)


def plot_gpu_bench(rows: list[dict[str, Any]], file: str) -> None:
    """Of GPUs: a line of plait's a collective, type and way asked for; NCCL's in dashes."""
    points = []
    for row in rows:
        kind = f"{row['collective']} {row['type']}"
        points.append((f"plait {kind} {row['way']}".strip(), row["size"], row["plait_busbw"]))
        if "nccl_busbw" in row:
            points.append((f"nccl {kind}", row["size"], row["nccl_busbw"]))
    _plot(points, file)


def _plot(points: list[tuple[str, int, float]], file: str) -> None:
    """(line, size, busbw) as a picture; a line's points in order of size."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for label in dict.fromkeys(label for label, *_ in points):
        line = sorted({(size, busbw) for of, size, busbw in points if of == label})
        style = "--s" if label.startswith("nccl ") else "-o"
        axes.plot(*zip(*line, strict=True), style, markersize=3, label=label)
    axes.set(yscale="log", xlabel="message size (bytes)", ylabel="busbw (GB/s)")
    axes.set_xscale("log", base=2)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    save(figure, file, 150)
