"""Section of the report's page on what a call of each size runs: a table, and a picture of all
ways with the lines of `plait simulate -e --plot`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from plait import by_size
from plait.by_size import BySize, Style, line_name
from plait.commands import report_nccl as nccl
from plait.commands.report_html import (
    code,
    dashes,
    figure,
    in_words,
    marker,
    sample,
    table,
    text,
    time_text,
    two_widths,
)
from plait.outputs import human_bytes
from plait.ways import NAMED, SIMULATED

MOST_LINES = len(by_size.COLOURS) * len(by_size.DASHES)  # styles that no two lines share


@dataclass(frozen=True)
class Line:
    """A line of the picture. number: of the style; points: (bytes, busbw GB/s, tip)."""

    name: str
    number: int
    points: list[tuple[int, float, str]]

    @property
    def look(self) -> Style:
        return by_size.style(self.number)


@dataclass(frozen=True)
class Frame:
    """Size of a picture in SVG units. bands: whether named spans of sizes stand below."""

    width: int
    height: int
    left: int = 50
    right: int = 14
    top: int = 26


WIDE, NARROW = Frame(700, 360), Frame(350, 300, 42, 10)
BAND = 22


def lines(found: BySize) -> list[Line]:
    """Returns the lines to draw: as many as there are styles, and all ways that run."""
    named = found.lines()
    running = {line_name(ways.running) for ways in found.ways.values()}
    kept = sorted(named, key=lambda name: name not in running)[:MOST_LINES]
    drawn = []
    for number, (name, points) in enumerate((n, p) for n, p in named.items() if n in kept):
        shown = [
            (size, way.busbw, f"{name}: {human_bytes(size)}, {time_text(way.us)} predicted")
            for size, way in points.items()
        ]
        drawn.append(Line(name, number, shown))
    return drawn


def section(found: BySize, measured: str = "") -> str:
    """Returns the table, the picture, the legend and what the picture leaves out. measured: what
    the page says of measured times elsewhere."""
    drawn = lines(found)
    running = [(size, ways.running.busbw) for size, ways in found.ways.items()]
    spans = {
        "runs": found.spans(lambda ways: ways.running),
        "best": found.spans(by_size.fastest),
    }
    wide, narrow = (draw(drawn, frame, running, spans) for frame in (WIDE, NARROW))
    runs = "would run" if nccl.never_runs(found) else "runs"
    return (
        f'<p class="note">{code(_intro(found, measured))}</p>'
        f'<div class="beside"><div>{_table(found, drawn)}</div><div>'
        f'<p class="caption">Bandwidth of every way over message size, predicted. The broad grey '
        f"line is what a call {runs}.</p>{two_widths(wide, narrow)}{legend(drawn)}</div></div>"
        f"{left_out(found, drawn)}"
    )


def _intro(found: BySize, measured: str) -> str:
    """Returns whose calls the table is of, and the ways that other libraries carry."""
    if nccl.never_runs(found):
        said = ["No call of plait runs on these GPUs: the table has what the simulator would run."]
    elif any(device.kind == "gpu" for device in found.machine.devices):
        said = ["Calls of plait's own API; for `plait run` see Beside NCCL."]
    else:
        said = ["Calls of plait's own API."]
    said.append("All times are predicted" + (f"; {measured}." if measured else "."))
    names = {way.name for ways in found.ways.values() for way in ways.rows}
    between = "NCCL" if any(device.kind == "gpu" for device in found.machine.devices) else "MPI"
    if "library" in names:
        said.append(f"`library` is {between} itself, called by all ranks.")
    if "multi_node" in names:
        said.append(f"`multi_node` is plait within the nodes, and {between} between the nodes.")
    return " ".join(said)


def _table(found: BySize, drawn: list[Line]) -> str:
    styles = {line.name: line for line in drawn}
    rows = []
    for size, ways in found.ways.items():
        way = ways.running
        line = styles.get(line_name(way))
        shown = f"{sample(line.look, line.number)} " if line else ""
        named = f'<span title="{text(way.label)}">{text(line_name(way))}</span>'
        cells = (human_bytes(size), shown + named, time_text(way.us), figure(way.busbw))
        rows.append(cells)
    runs = "what would run" if nccl.never_runs(found) else "what runs"
    return table(("size", runs, ">predicted time", ">predicted GB/s"), rows, kind="sizes")


def legend(drawn: Iterable[Line]) -> str:
    return (
        '<ul class="legend">'
        + "".join(f"<li>{sample(line.look, line.number)} {text(line.name)}</li>" for line in drawn)
        + "</ul>"
    )


def left_out(found: BySize, drawn: list[Line]) -> str:
    """Returns the number of ways that the lines stand for, and the ways without a line by name."""
    labels = {way.label for ways in found.ways.values() for way in ways.rows}
    said = [
        f"{len(drawn)} lines for {len(labels)} ways: the variants of an engine or a strategy share "
        "a line, drawn at the best variant of each size."
    ]
    missing = [name for name in found.lines() if name not in {line.name for line in drawn}]
    if missing:
        said.append(f"Without a line, since styles repeat after {MOST_LINES}: {in_words(missing)}.")
    untimed = {line_name(way) for ways in found.ways.values() for way in ways.rows if not way.us}
    if untimed := untimed - {*found.lines()}:
        said.append(f"Not simulated, since too large: {in_words(sorted(untimed))}.")
    rows = [way for ways in found.ways.values() for way in ways.rows]
    for may, words in (
        (NAMED, "Calls take {} by name alone (`strategy=` or PLAIT_ALGO)."),
        (SIMULATED, "In simulation alone, since no call copies between nodes: {}."),
    ):
        if names := sorted({way.name for way in rows if way.may == may}):
            said.append(words.format(in_words(names)))
    shown = f'<p class="note">{" ".join(map(code, said))}</p>'
    refused = _always_refused(found)
    listed = "".join(f"<li>{code(name)}: {code(why)}</li>" for name, why in refused.items())
    if not listed:
        return shown
    count = f"{len(refused)} strateg{'y does' if len(refused) == 1 else 'ies do'}"
    summary = f"Left out: {count} not take this call ({', '.join(refused)})"
    return f"{shown}<details class='note'><summary>{summary}</summary><ul>{listed}</ul></details>"


def _always_refused(found: BySize) -> dict[str, str]:
    """Returns the reason of each strategy that takes the call at no size, as of the smallest."""
    by_name: dict[str, list[str]] = {}
    for ways in found.ways.values():
        for name, reason in ways.refusals:
            by_name.setdefault(name, []).append(reason.removeprefix("unsupported: "))
    return {name: said[0] for name, said in by_name.items() if len(said) == len(found.ways)}


@dataclass(frozen=True)
class _Scale:
    """Maps a size and a bandwidth, both logarithmic, to a place of the picture."""

    frame: Frame
    low_x: float
    span_x: float
    low_y: float
    span_y: float

    def x(self, size: float) -> float:
        room = self.frame.width - self.frame.left - self.frame.right
        return self.frame.left + room * (math.log2(size) - self.low_x) / self.span_x

    def y(self, speed: float) -> float:
        room = self.frame.height - self.frame.top - 8
        part = (math.log10(max(speed, 1e-9)) - self.low_y) / self.span_y
        return self.frame.height - 8 - room * min(1.0, max(0.0, part))


def draw(
    drawn: list[Line],
    frame: Frame,
    running: list[tuple[int, float]],
    spans: dict[str, list[tuple[int, int, str]]],
) -> str:
    """Returns SVG: lines over size, what runs as a broad line, and bands of spans below."""
    points = [(size, speed) for line in drawn for size, speed, _ in line.points if speed > 0]
    if not points:
        return "<p>Nothing to draw: no strategy takes this call.</p>"
    low_x, high_x = (math.log2(pick(size for size, _ in points)) for pick in (min, max))
    low_y, high_y = (math.log10(pick(speed for _, speed in points)) for pick in (min, max))
    scale = _Scale(frame, low_x, max(high_x - low_x, 1e-9), low_y, max(high_y - low_y, 0.3))
    height = frame.height + 24 + (BAND + 2) * len(spans) + 4
    parts = [
        f'<svg viewBox="0 0 {frame.width} {height}" role="img" aria-label="bandwidth by size">',
        *_grid(scale, low_x, high_x),
    ]
    path = " ".join(f"{scale.x(size):.1f},{scale.y(speed):.1f}" for size, speed in running)
    parts.append(f'<polyline class="runs" points="{path}"/>')
    for line in drawn:
        parts.append(f'<g class="line k{line.number % len(by_size.COLOURS)}">')
        path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y, _ in line.points)
        parts.append(f'<polyline points="{path}"{dashes(line.look)}/>')
        parts += [
            f'<path d="{marker(line.look.marker, scale.x(x), scale.y(y), 3.6)}" '
            f'data-tip="{text(tip)}"/>'
            for x, y, tip in line.points
        ]
        parts.append("</g>")
    y = frame.height + 24
    for title, found in spans.items():
        parts += _band(scale, title, found, {line.name: line for line in drawn}, y)
        y += BAND + 2
    return "".join(parts) + "</svg>"


def _grid(scale: _Scale, low_x: float, high_x: float) -> Iterable[str]:
    frame = scale.frame
    high_y = scale.low_y + scale.span_y
    for decade in range(math.ceil(scale.low_y - 1e-9), math.floor(high_y + 1e-9) + 1):
        y = scale.y(10.0**decade)
        yield (
            f'<line class="grid" x1="{frame.left}" x2="{frame.width - frame.right}" y1="{y:.1f}" '
            f'y2="{y:.1f}"/><text x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{10.0**decade:g}</text>"
        )
    yield '<text x="4" y="14">GB/s (busbw)</text>'
    fitting = (frame.width - frame.left) / 62
    step = max(2, 2 * math.ceil((high_x - low_x) / fitting / 2))
    for power in range(math.ceil(low_x), math.floor(high_x) + 1, step):
        x = scale.x(2**power)
        is_last = power + step > high_x and x > frame.width - 34
        anchor = "end" if is_last else "middle"
        at = frame.width - 2 if is_last else x
        yield (
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.top}" '
            f'y2="{frame.height - 4}"/><text x="{at:.1f}" y="{frame.height + 12}" '
            f'text-anchor="{anchor}">{human_bytes(2**power)}</text>'
        )


def _band(
    scale: _Scale,
    title: str,
    spans: list[tuple[int, int, str]],
    styles: dict[str, Line],
    y: float,
) -> Iterable[str]:
    """Yields a row of spans: which way it is from a size to a size, by name or by marker."""
    frame = scale.frame
    yield f'<text x="{frame.left - 6}" y="{y + 15}" text-anchor="end">{title}</text>'
    edges = [float(frame.left)]
    for before, after in pairwise(spans):
        edges.append((scale.x(before[1]) + scale.x(after[0])) / 2)
    edges.append(float(frame.width - frame.right))
    for number, (first, last, name) in enumerate(spans):
        left, right = edges[number], edges[number + 1]
        tip = f"{name}: {human_bytes(first)} to {human_bytes(last)}"
        yield (
            f'<rect class="band b{number % 2}" x="{left:.1f}" y="{y}" '
            f'width="{max(1.0, right - left - 1.5):.1f}" height="{BAND}" data-tip="{text(tip)}"/>'
        )
        words = (name, name.partition(" ")[2])  # without its kind where that is too long
        short = next((one for one in words if 6.4 * len(one) < right - left), "")
        if short:
            yield (
                f'<text x="{(left + right) / 2:.1f}" y="{y + 15}" text-anchor="middle">'
                f"{text(short)}</text>"
            )
        elif name in styles:
            line = styles[name]
            path = marker(line.look.marker, (left + right) / 2, y + BAND / 2, 4)
            yield f'<g class="line k{line.number % len(by_size.COLOURS)}"><path d="{path}"/></g>'
