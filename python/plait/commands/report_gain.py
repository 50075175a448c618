"""Section of the report's page on what is left to gain: the time of a call beside the least time
that its bytes need, and beside the fastest way that plait has."""

from __future__ import annotations

from dataclasses import dataclass

import plait
from plait.by_size import BySize, line_name
from plait.commands.report_html import bar, figure, in_words, table, text, time_text
from plait.commands.report_machine import in_words as resource
from plait.commands.report_nccl import PREDICTED, Comparison, begun, where
from plait.outputs import human_bytes
from plait.ways import SIMULATED, Way

SET_BY_BYTES, SET_BY_LATENCY = 0.5, 0.1  # parts of the time that the bytes need
WORTH = 1.02  # a way must be faster by this to count


@dataclass(frozen=True)
class Gain:
    """A size. us: of a call, measured or predicted as `kind` says; floor_us: bytes over link speed,
    which no plan can beat; fastest: of the ways that a call may take, by itself or by name."""

    size: int
    us: float
    kind: str
    predicted_us: float
    floor_us: float
    bound_by: str
    fastest: Way

    @property
    def share(self) -> float:
        """The part of the time that the bytes need at least."""
        return min(1.0, self.floor_us / self.us) if self.us else 0.0

    @property
    def speedup(self) -> float:
        """How many times as fast the fastest way is, both predicted; 0 = too little to count."""
        ratio = self.predicted_us / self.fastest.us if self.fastest.us else 0.0
        return ratio if ratio > WORTH else 0.0


def gains(found: BySize, timelines: dict[int, plait.Timeline], known: Comparison) -> list[Gain]:
    """Returns the gain that is left at each size. known: has the measured times."""
    measured = known.measured_us()
    return [
        Gain(
            size,
            measured.get(size, ways.running.us),
            known.kind if size in measured else PREDICTED,
            ways.running.us,
            timelines[size].lower_bound_ns / 1e3,
            timelines[size].bound_by,
            next((way for way in ways.rows if way.us and way.may != SIMULATED), ways.running),
        )
        for size, ways in found.ways.items()
    ]


def section(found: BySize, rows: list[Gain]) -> str:
    """Returns sentences, and a table with bars."""
    kinds = {row.kind for row in rows}
    cells = []
    for row in rows:
        other = f"{row.fastest.name}: {time_text(row.fastest.us)}" if row.speedup else ""
        of = f" {row.kind.split()[0]}" if len(kinds) > 1 else ""
        cells.append(
            (
                human_bytes(row.size),
                time_text(row.floor_us),
                time_text(row.us) + of,
                f"{bar(row.share)} <b>{100 * row.share:.0f} %</b>"
                + (f"<small>{text(other)}</small>" if other else ""),
            )
        )
    call = f">call, {min(kinds).split()[0]}" if len(kinds) == 1 else ">call"
    faster = ", and a faster way by name, predicted" if any(row.speedup for row in rows) else ""
    head = ("size", ">least time", call, f"least time / call{faster}")
    return f"<p>{' '.join(map(text, _words(found, rows)))}</p>{table(head, cells, kind='gains')}"


def _words(found: BySize, rows: list[Gain]) -> list[str]:
    sizes = [*found.ways]
    said = ["The least time is the bytes over the links' speed: no plan can beat it."]
    if measured := [row for row in rows if row.kind != PREDICTED]:
        others = "" if len(measured) == len(rows) else ", and predicted at the other sizes"
        at = "" if not others else f" at {in_words(human_bytes(row.size) for row in measured)}"
        said.append(f"Times of calls are {measured[0].kind}{at}, as beside NCCL{others}.")
    else:
        said.append("Times of calls are predicted.")
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
        if by_bytes := [row for row in rest if row.share >= SET_BY_BYTES]:
            most = min(by_bytes, key=lambda row: row.share)
            which = "Of the sizes whose bytes need half of a call or more, {} has most left: {}"
        else:
            most = max(rest, key=lambda row: row.share)
            which = "The bytes' part is largest at {}: even there {} are left"
        left = f"{time_text(most.us - most.floor_us)} of {time_text(most.us)}"
        bound = f"in simulation the call is bound by {resource(most.bound_by)}"
        said.append(f"{which.format(human_bytes(most.size), left)}; {bound}.")
    faster: dict[str, float] = {}
    for row in rows:
        if row.speedup:
            name = line_name(row.fastest)
            faster[name] = max(faster.get(name, 0.0), row.speedup)
    if faster:
        named = [f"{name} ({figure(ratio)} times as fast)" for name, ratio in faster.items()]
        said.append(f"By name a call may run {in_words(named)}, as predicted.")
    else:
        said.append("No other way that plait has is predicted to be faster.")
    return said


def _percents(low: float, high: float) -> str:
    one, two = f"{100 * low:.0f}", f"{100 * high:.0f}"
    return f"{one} %" if one == two else f"{one} to {two} %"
