"""Pictures of benchmark rows; matplotlib is imported only when a picture is asked for."""

from __future__ import annotations

from typing import Any

from plait.outputs import load_pyplot, save


def plot_bench(rows: list[dict[str, Any]], file: str) -> None:
    """busbw over message size, one line a (strategy, type); PNG or SVG by the file's ending."""
    pyplot = load_pyplot()
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        lines.setdefault(f"{row['name']} {row['type']}", []).append((row["size"], row["busbw"]))
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for label, points in sorted(lines.items()):
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=label)
    axes.set(xscale="log", yscale="log", xlabel="message size (bytes)", ylabel="busbw (GB/s)")
    axes.set_xscale("log", base=2)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    save(figure, file, 150)


def plot_gpu_bench(rows: list[dict[str, Any]], file: str) -> None:
    """busbw over message size of plait and of NCCL, one colour a (collective, type)."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    kinds = sorted({(row["collective"], row["type"]) for row in rows})
    for number, (collective, plait_type) in enumerate(kinds):
        for library, style in (("plait", "-o"), ("nccl", "--s")):
            points = sorted(
                (row["size"], row[f"{library}_busbw"])
                for row in rows
                if (row["collective"], row["type"]) == (collective, plait_type)
                and f"{library}_busbw" in row
            )
            if points:
                label = f"{library} {collective} {plait_type}"
                axes.plot(*zip(*points, strict=True), style, markersize=3, label=label)
                axes.lines[-1].set_color(f"C{number}")
    axes.set(yscale="log", xlabel="message size (bytes)", ylabel="busbw (GB/s)")
    axes.set_xscale("log", base=2)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    save(figure, file, 150)
