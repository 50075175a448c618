"""Predicts every way of a call over message sizes, and plots them with what a call runs.

`plait simulate -e` and the report share the data and the styles of lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import plait
from plait.bench.sizes import request_for
from plait.outputs import human_bytes, load_pyplot, save, time_text
from plait.plan_size import require_memory
from plait.ways import Way, Ways, of_call

# Colours of Okabe and Ito, which people with any colour vision tell apart. Lines that share a
# colour differ in dash and marker.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
DASHES = ((), (6, 2), (2, 2), (8, 2, 2, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")
RUNS_COLOUR = "#222222"


@dataclass(frozen=True)
class Style:
    colour: str
    dashes: tuple[int, ...]
    marker: str


def style(number: int) -> Style:
    """Returns the style of a line: no two of the first 28 are alike."""
    dashes = DASHES[number // len(COLOURS) % len(DASHES)]
    return Style(COLOURS[number % len(COLOURS)], dashes, MARKERS[number % len(MARKERS)])


@dataclass(frozen=True)
class BySize:
    """Ways of a collective at each message size in bytes."""

    machine: plait.Topology
    collective: str
    ranks: int
    ways: dict[int, Ways]

    @property
    def would_run(self) -> bool:
        """Whether the GPUs run no kernel of plait."""
        return bool(next(iter(self.ways.values())).runs.why_not)

    def lines(self) -> dict[str, dict[int, Way]]:
        """Returns each engine and strategy at its best parameters; the fastest at the end first."""
        found: dict[str, dict[int, Way]] = {}
        for size, of_size in self.ways.items():
            for way in reversed(of_size.rows):  # the fastest of a name last
                if way.us:
                    found.setdefault(line_name(way), {})[size] = way
        return dict(sorted(found.items(), key=lambda item: -_last(item[1])))

    def spans(self, which: Callable[[Ways], Way]) -> list[tuple[int, int, str]]:
        """Returns (first size, last size, line) of sizes in sequence with the same way."""
        spans: list[tuple[int, int, str]] = []
        for size, of_size in self.ways.items():
            name = line_name(which(of_size))
            first = spans.pop()[0] if spans and spans[-1][2] == name else size
            spans.append((first, size, name))
        return spans

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "bytes": size,
                "runs": line_name(of_size.running),
                "ways": [
                    {
                        "name": line_name(way),
                        "kind": way.kind,
                        "label": way.label,
                        "predicted_us": way.us or None,
                        "busbw_gb_per_s": way.busbw or None,
                        "calls": way.may,
                        "runs": way.runs,
                    }
                    for way in of_size.rows
                ],
            }
            for size, of_size in self.ways.items()
        ]


def line_name(way: Way) -> str:
    return f"{way.kind} {way.name}"


def _last(points: dict[int, Way]) -> float:
    return points[max(points)].busbw


def fastest(of_size: Ways) -> Way:
    """Returns the fastest way, whether calls may take it or not."""
    return of_size.rows[0]


def predict(
    machine: plait.Topology,
    collective: str,
    ranks: int,
    sizes: Iterable[int],
    plait_type: str = "fp32",
    op: str = "sum",
    done: Callable[[], None] = lambda: None,
) -> BySize:
    """Predicts all ways at each size. done: called after each size."""
    found = {}
    for size in sizes:
        request = request_for(collective, size, plait_type, op, ranks, 0, int(ranks > 1), shape="")
        if request.count:
            require_memory(machine, request)
            found[size] = of_call(machine, request)
        done()
    if not found:
        raise plait.InvalidArgumentError("wanted a size of one element or more, found none")
    return BySize(machine, collective, ranks, found)


def plot(found: BySize, file: str) -> None:
    """Writes a PNG, SVG or PDF: busbw of all ways over size; what runs is one thick line.

    Two bands below name what runs and the fastest of all at each size.
    """
    pyplot = load_pyplot()
    figure, (axes, band) = pyplot.subplots(
        2, 1, figsize=(11, 7.5), height_ratios=(6, 1), sharex=True, layout="constrained"
    )
    running = {size: of_size.running.busbw for size, of_size in found.ways.items()}
    axes.plot(
        [*running],
        [*running.values()],
        color=RUNS_COLOUR,
        alpha=0.28,
        linewidth=10,
        solid_capstyle="round",
        label="what a call would run" if found.would_run else "what a call runs",
    )
    for number, (name, points) in enumerate(found.lines().items()):
        look = style(number)
        axes.plot(
            [*points],
            [way.busbw for way in points.values()],
            color=look.colour,
            dashes=look.dashes or (None, None),
            marker=look.marker,
            markersize=5,
            linewidth=1.5,
            label=name,
        )
    axes.set(yscale="log", ylabel="busbw (GB/s)")
    axes.set_title(
        f"{found.collective}, {found.ranks} ranks of {found.machine.name}: predicted bandwidth"
    )
    axes.set_xscale("log", base=2)
    sizes = [*found.ways]
    axes.set_xticks(sizes[:: max(1, round(len(sizes) / 12))])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda size, _: human_bytes(int(size)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(labelbottom=True)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small")
    _draw_band(band, found)
    save(figure, file, 150)


def _draw_band(band: Any, found: BySize) -> None:
    """Draws what runs and the fastest of all as named spans of sizes."""
    runs = "would run" if found.would_run else "runs"
    rows = ((runs, found.spans(lambda one: one.running)), ("fastest", found.spans(fastest)))
    for row, (_, spans) in enumerate(rows):
        for number, (first, last, name) in enumerate(spans):
            left, right = first / 2**0.9, last * 2**0.9
            shade = ("#d9d9d9", "#f0f0f0")[number % 2]
            band.broken_barh([(left, right - left)], (row - 0.42, 0.84), facecolors=shade)
            middle = (first * last) ** 0.5
            band.text(
                middle,
                row,
                name.replace(" ", "\n"),
                ha="center",
                va="center",
                fontsize=8 if last > first else 6.5,
            )
    band.set_yticks(range(len(rows)), [name for name, _ in rows])
    band.set_ylim(len(rows) - 0.5, -0.5)
    band.tick_params(labelbottom=False, bottom=False)
    for side in ("top", "right", "left", "bottom"):
        band.spines[side].set_visible(False)


def table_rows(found: BySize) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Returns head and rows: a row for each way, its time at each size; '*' marks what runs.

    The cell of what runs has the time with the parameters that run, and, in parentheses, a shorter
    one with others.
    """
    head = ["way", *(f">{human_bytes(size)}" for size in found.ways)]
    rows: list[Sequence[str]] = []
    for name, points in found.lines().items():
        cells = [name]
        for size in found.ways:
            way, running = points.get(size), found.ways[size].running
            if line_name(running) == name:
                best = f" ({_short(way.us)})" if way and way.us < running.us else ""
                cells.append(f"{_short(running.us)}*{best}")
            else:
                cells.append("-" if way is None else _short(way.us))
        rows.append(cells)
    return head, rows


def _short(us: float) -> str:
    if us >= 1e5:
        return time_text(us)
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"
