"""Draws a timeline as SVG for the report's page: the rows of `plait simulate --plot`
(timeline_rows.py), and the lanes in a part that readers open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import plait
from plait.commands.report_html import text as _text
from plait.commands.report_html import two_widths
from plait.timeline_rows import COLOURS, WORK, LaneRows, Row, Rows, lane_rows, rank_rows
from plait.timeline_rows import resource_rows as load_rows


@dataclass(frozen=True)
class Frame:
    """Sizes in SVG units. label: height of a row's label above the row; 0 = it stands left."""

    left: int
    width: int
    row: int
    label: int
    ticks: int

    @property
    def whole(self) -> int:
        return self.left + self.width + 20


MOST_TEXTS = 1000
WIDE, NARROW = Frame(200, 780, 22, 0, 5), Frame(2, 328, 20, 14, 3)


def draw_timeline(timeline: plait.Timeline, plan: plait.Plan) -> str:
    """Returns SVG of ranks, links and memories over time, then lanes in a closed part."""
    total = max(timeline.total_ns / 1e3, 1e-9)
    lanes = lane_rows(timeline, plan)
    ranks, loads = rank_rows(timeline, plan), load_rows(timeline)
    longest = max((len(row.label) for row in [*ranks.rows, *loads.rows]), default=0)
    left = max(WIDE.left, min(340, 7 * longest))
    wide = replace(WIDE, left=left, width=WIDE.left + WIDE.width - left)
    drawn = two_widths(*(_rows(ranks, loads, total, frame) for frame in (wide, NARROW)))
    note = f"<p>{_text(lanes.note)}</p>" if lanes.note else ""
    shown = f'<div class="wide">{_lanes(lanes, total)}</div>'
    return f"{drawn}<details><summary>Lanes</summary>{note}{shown}</details>"


def _rows(ranks: Rows, loads: Rows, total: float, frame: Frame) -> str:
    parts: list[str] = []
    y = 0
    titles = ("ranks: part of the lanes at work", "links and memories: load / capacity")
    for title, shown in zip(titles, (ranks, loads), strict=True):
        notes = [title, shown.note] if frame.label else [f"{title}: {shown.note}".rstrip(": ")]
        for said in filter(None, notes):
            parts.append(f'<text x="{frame.left}" y="{y + 14}">{_text(said)}</text>')
            y += 18
        y += 4
        for row in shown.rows:
            parts.append(f'<text x="0" y="{y + 13}">{_text(row.label)}</text>')
            parts += _areas(row, y + frame.label, total, frame)
            y += frame.row + frame.label
    return _svg("timeline", parts, y, total, WORK, frame)


def _areas(row: Row, y: int, total: float, frame: Frame) -> Iterable[str]:
    """Yields a row's shares as steps, stacked from the row's bottom: the highest sum first, and
    each lower sum over it."""
    times_us, shares = _averaged(row, total, frame.width // 3)
    sums: list[tuple[str, list[float]]] = []
    high = [0.0] * len(times_us)
    for kind, parts in shares.items():
        if any(parts):
            high = [a + b for a, b in zip(high, parts, strict=True)]
            sums.append((kind, high))
    for kind, tops in reversed(sums):
        path = "".join(_steps(times_us, tops, y, total, frame))
        yield f'<path d="{path}" fill="{COLOURS[kind]}" data-tip="{_text(row.label)}: {kind}"/>'
    yield (
        f'<line class="grid" x1="{frame.left}" x2="{frame.left + frame.width}" y1="{y + 18}" '
        f'y2="{y + 18}"/>'
    )


def _averaged(row: Row, total: float, most: int) -> tuple[list[float], dict[str, list[float]]]:
    """Returns the row's shares in at most `most` steps: of more, means over equal times."""
    if len(row.times_us) <= most:
        return row.times_us, row.shares
    step = total / most
    found = {}
    for kind, shares in row.shares.items():
        means = [0.0] * (most + 1)
        for start, end, share in zip(row.times_us, row.times_us[1:], shares, strict=False):
            first, last = int(start / step), min(most - 1, int(end / step))
            for at in range(first, last + 1) if share else ():
                shared = min(end, (at + 1) * step) - max(start, at * step)
                means[at] += share * max(0.0, shared) / step
        found[kind] = means
    return [step * at for at in range(most + 1)], found


def _steps(
    times_us: list[float], tops: list[float], y: int, total: float, frame: Frame
) -> Iterable[str]:
    """Yields the outline of steps as an SVG path, from the row's bottom back to the bottom."""
    before = None
    yield f"M{frame.left} {y + 18}"
    for at, top in zip(times_us, tops, strict=True):
        if (height := round(y + 18 - 16 * top, 1)) != before:
            yield f"H{frame.left + frame.width * at / total:.1f}V{height:g}"
            before = height
    yield f"H{frame.left + frame.width}V{y + 18}Z"


def _lanes(shown: LaneRows, total: float) -> str:
    """Returns SVG of each lane's ops, with an op's text each; of many ops with the kind alone."""
    parts = []
    frame = WIDE
    is_long = sum(len(spans) for _, spans in shown.lanes) > MOST_TEXTS
    for row, (name, spans) in enumerate(shown.lanes):
        y = frame.row * row + 4
        parts.append(f'<text x="0" y="{y + 12}">{_text(name)}</text>')
        by_kind: dict[str, list[str]] = {}
        for start, end, kind, said in spans:
            x = frame.left + frame.width * start / total
            width = max(0.5, frame.width * (end - start) / total)
            box = f"M{x:.1f} {y}h{width:.1f}v16h-{width:.1f}Z"
            tip = kind if is_long else f"{said}: {start:.1f} to {end:.1f} us"
            facts = f'fill="{COLOURS.get(kind, "#888")}" data-tip="{_text(tip)}"'
            by_kind.setdefault(facts, []).append(box)
        parts += [f'<path {facts} d="{"".join(boxes)}"/>' for facts, boxes in by_kind.items()]
    height = frame.row * len(shown.lanes) + 4
    return _svg("lanes", parts, height, total, tuple(COLOURS), frame)


def _svg(
    name: str, parts: list[str], height: int, total: float, kinds: Iterable[str], frame: Frame
) -> str:
    """Returns the drawing with a time axis and a legend below its rows."""
    ticks = []
    for tick in range(frame.ticks + 1):
        x = frame.left + frame.width * tick / frame.ticks
        anchor = "end" if tick == frame.ticks else "middle" if tick else "start"
        said = f"{total * tick / frame.ticks:.1f}{' us' if tick == frame.ticks else ''}"
        ticks.append(f'<text x="{x:.0f}" y="{height + 14}" text-anchor="{anchor}">{said}</text>')
    for number, kind in enumerate(kinds):
        x, y = frame.left + 90 * number, height + 24
        ticks.append(f'<rect x="{x}" y="{y}" width="14" height="10" fill="{COLOURS[kind]}"/>')
        ticks.append(f'<text x="{x + 20}" y="{y + 10}">{kind}</text>')
    opened = f'<svg viewBox="0 0 {frame.whole} {height + 40}" role="img" aria-label="{name}">'
    return opened + "".join(parts + ticks) + "</svg>"
