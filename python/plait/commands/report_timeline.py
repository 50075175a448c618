"""Draws a timeline as SVG for the report's page: the rows of `plait simulate --plot`
(timeline_rows.py), and the lanes in a part that readers open."""

from __future__ import annotations

import html
from collections.abc import Iterable

import plait
from plait.timeline_rows import COLOURS, WORK, LaneRows, Row, Rows, lane_rows, rank_rows
from plait.timeline_rows import resource_rows as load_rows

LEFT, WIDTH, ROW = 200, 780, 22  # of the drawing, in SVG units
TICKS = 5


def draw_timeline(timeline: plait.Timeline, plan: plait.Plan) -> str:
    """Returns SVG of ranks, links and memories over time, then lanes in a closed part."""
    total = max(timeline.total_ns / 1e3, 1e-9)
    lanes = lane_rows(timeline, plan)
    drawn = _rows(rank_rows(timeline, plan), load_rows(timeline), total)
    note = f"<p>{_text(lanes.note)}</p>" if lanes.note else ""
    return f"{drawn}<details><summary>Lanes</summary>{note}{_lanes(lanes, total)}</details>"


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _rows(ranks: Rows, loads: Rows, total: float) -> str:
    parts: list[str] = []
    y = 0
    titles = ("ranks: part of the lanes at work", "links and memories: load / capacity")
    for title, shown in zip(titles, (ranks, loads), strict=True):
        said = f"{title}: {shown.note}" if shown.note else title
        parts.append(f'<text x="{LEFT}" y="{y + 14}">{_text(said)}</text>')
        y += ROW
        for row in shown.rows:
            parts.append(f'<text x="0" y="{y + 13}">{_text(row.label)}</text>')
            parts += _areas(row, y, total)
            y += ROW
    return _svg("timeline", parts, y, total, WORK)


def _areas(row: Row, y: int, total: float) -> Iterable[str]:
    """Yields a row's shares as steps, stacked from the row's bottom."""
    low = [0.0] * len(row.times_us)
    for kind, shares in row.shares.items():
        high = [a + b for a, b in zip(low, shares, strict=True)]
        if any(shares):
            path = "".join(_steps(row.times_us, low, high, y, total))
            yield f'<path d="{path}" fill="{COLOURS[kind]}" data-tip="{_text(row.label)}: {kind}"/>'
        low = high
    yield (
        f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y + 18}" y2="{y + 18}" stroke="#bbb" '
        'stroke-width="0.5"/>'
    )


def _steps(
    times_us: list[float], low: list[float], high: list[float], y: int, total: float
) -> Iterable[str]:
    """Yields a rectangle of an SVG path for each time in which the share is above zero."""
    for start, end, bottom, top in zip(times_us, times_us[1:], low, high, strict=False):
        if top > bottom and end > start:
            x, to = (LEFT + WIDTH * time / total for time in (start, end))
            yield f"M{x:.1f} {y + 18 - 16 * bottom:.1f}H{to:.1f}V{y + 18 - 16 * top:.1f}H{x:.1f}Z"


def _lanes(shown: LaneRows, total: float) -> str:
    parts = []
    for row, (name, spans) in enumerate(shown.lanes):
        y = ROW * row + 4
        parts.append(f'<text x="0" y="{y + 12}">{_text(name)}</text>')
        for start, end, kind, text in spans:
            x, width = LEFT + WIDTH * start / total, max(0.5, WIDTH * (end - start) / total)
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="16" '
                f'fill="{COLOURS.get(kind, "#888")}" '
                f'data-tip="{_text(text)}: {start:.1f} to {end:.1f} us"/>'
            )
    return _svg("lanes", parts, ROW * len(shown.lanes) + 4, total, tuple(COLOURS))


def _svg(name: str, parts: list[str], height: int, total: float, kinds: Iterable[str]) -> str:
    """Returns the drawing with a time axis and a legend below its rows."""
    ticks = []
    for tick in range(TICKS + 1):
        x = LEFT + WIDTH * tick / TICKS
        anchor = "end" if tick == TICKS else "middle" if tick else "start"
        said = f"{total * tick / TICKS:.1f}{' us' if tick == TICKS else ''}"
        ticks.append(f'<text x="{x:.0f}" y="{height + 14}" text-anchor="{anchor}">{said}</text>')
    for number, kind in enumerate(kinds):
        x, y = LEFT + 90 * number, height + 24
        ticks.append(f'<rect x="{x}" y="{y}" width="14" height="10" fill="{COLOURS[kind]}"/>')
        ticks.append(f'<text x="{x + 20}" y="{y + 10}">{kind}</text>')
    opened = f'<svg viewBox="0 0 1000 {height + 40}" role="img" aria-label="{name}">'
    return opened + "".join(parts + ticks) + "</svg>"
