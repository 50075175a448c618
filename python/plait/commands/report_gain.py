"""Section of the report's page on what is left to gain: the time of a call beside the least time
that its bytes need, and beside the fastest way that plait has."""

from __future__ import annotations

from dataclasses import dataclass

import plait
from plait.by_size import BySize, line_name
from plait.commands.report_html import bar, figure, in_words, table, text, time_text
from plait.commands.report_machine import in_words as resource
from plait.commands.report_nccl import begun, where
from plait.outputs import human_bytes
from plait.ways import SIMULATED, Way

SET_BY_BYTES, SET_BY_LATENCY = 0.5, 0.1  # parts of the time that the bytes need
BELOW = 0.99  # of the least time
WORTH = 1.02  # a way must be faster by this to count


@dataclass(frozen=True)
class Gain:
    """A size. floor_us: bytes over link speed, which no plan can beat; fastest: of the ways that a
    call may take, by itself or by name."""

    size: int
    us: float
    floor_us: float
    bound_by: str
    fastest: Way

    @property
    def share(self) -> float:
        """The part of the time that the bytes need at least."""
        return min(1.0, self.floor_us / self.us) if self.us else 0.0


def gains(found: BySize, timelines: dict[int, plait.Timeline]) -> list[Gain]:
    """Returns the gain that is left at each size."""
    return [
        Gain(
            size,
            ways.running.us,
            timelines[size].lower_bound_ns / 1e3,
            timelines[size].bound_by,
            next((way for way in ways.rows if way.us and way.may != SIMULATED), ways.running),
        )
        for size, ways in found.ways.items()
    ]


def section(found: BySize, rows: list[Gain]) -> str:
    """Returns sentences, and a table with bars."""
    cells = []
    for row in rows:
        faster = row.fastest.us * WORTH < row.us
        other = f"{line_name(row.fastest)}: {time_text(row.fastest.us)}" if faster else ""
        cells.append(
            (
                human_bytes(row.size),
                time_text(row.floor_us),
                time_text(row.us),
                f"{bar(row.share)} <b>{100 * row.share:.0f} %</b>"
                + (f"<small>{text(other)}</small>" if faster else ""),
            )
        )
    head = ("size", ">least time", ">call", "least time / call, and a faster way by name")
    return f"<p>{' '.join(map(text, _words(found, rows)))}</p>{table(head, cells, kind='gains')}"


def _words(found: BySize, rows: list[Gain]) -> list[str]:
    sizes = [*found.ways]
    said = ["The least time is the bytes over the links' speed: no plan can beat it."]
    if not any(row.floor_us for row in rows):
        return ["No bytes cross a link."]
    by_latency = [row for row in rows if row.share < SET_BY_LATENCY]
    rest = [row for row in rows if row.share >= SET_BY_LATENCY]
    if by_latency:
        place = where(by_latency[0].size, by_latency[-1].size, sizes)
        said.append(
            f"{begun(place)} latency sets the time: faster links would gain less than "
            f"{100 * SET_BY_LATENCY:.0f} %."
        )
    if rest:
        place = where(rest[0].size, rest[-1].size, sizes)
        low, high = (pick(row.share for row in rest) for pick in (min, max))
        said.append(f"{begun(place)} the bytes need {_percents(low, high)} of a call.")
        by_bytes = [row for row in rest if row.share >= SET_BY_BYTES] or rest[-1:]
        most = min(by_bytes, key=lambda row: row.share)
        said.append(
            f"At {human_bytes(most.size)} {time_text(most.us - most.floor_us)} of "
            f"{time_text(most.us)} are left, and the call is bound by {resource(most.bound_by)}."
        )
    below = [human_bytes(row.size) for row in rows if row.us < BELOW * row.floor_us]
    if below:
        said.append(
            f"At {in_words(below)} the predicted time lies below the least time: there the price "
            "of NCCL between nodes, by NCCL's own tables, is too low."
        )
    faster = {line_name(row.fastest): 0.0 for row in rows if row.fastest.us * WORTH < row.us}
    for row in rows:
        if (name := line_name(row.fastest)) in faster:
            faster[name] = max(faster[name], row.us / row.fastest.us)
    if faster:
        named = [f"{name} ({figure(ratio)} times as fast)" for name, ratio in faster.items()]
        said.append(f"By name a call may run {in_words(named)}, as predicted.")
    else:
        said.append("No other way that plait has is predicted to be faster.")
    return said


def _percents(low: float, high: float) -> str:
    one, two = f"{100 * low:.0f}", f"{100 * high:.0f}"
    return f"{one} %" if one == two else f"{one} to {two} %"
