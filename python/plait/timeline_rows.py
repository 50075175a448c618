"""Rows of a timeline's picture: the work of each rank and the load of each resource over time.

`plait simulate --plot` (timeline_plot.py) and the report's page draw the same rows. Rows that are
alike are drawn once, and the labels name all of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import plait

COLOURS = {
    "copy": "#4878a8",
    "reduce": "#d08030",
    "join": "#8e5ea2",
    "signal": "#444444",
    "wait": "#dddddd",
}
WORK = ("copy", "reduce", "join")  # stacked in a rank's row
MOST_RANKS = 32
MOST_RESOURCES = 24
MOST_LANES = 48  # more would not be readable


@dataclass(frozen=True)
class Row:
    """Shares over time, stacked by kind. Each share holds from its time to the next time."""

    label: str
    times_us: list[float]
    shares: dict[str, list[float]]


@dataclass(frozen=True)
class Rows:
    """Rows of one kind, and what they leave out: empty if nothing."""

    rows: list[Row]
    note: str


@dataclass(frozen=True)
class LaneRows:
    """(lane, [(start_us, end_us, kind, text)]), by rank, and which lanes are left out."""

    lanes: list[tuple[str, list[Any]]]
    note: str


def spans_by_lane(timeline: plait.Timeline, plan: plait.Plan) -> list[tuple[str, list[Any]]]:
    """Returns (lane, [(start_us, end_us, kind, text)]) of each busy lane, by rank."""
    lanes: list[tuple[int, str, list[Any]]] = [
        (rank, f"rank {rank} {name}", []) for rank, _, name, _ in plan.lanes
    ]
    for span in timeline.spans:
        text = plan.op_text(span.lane, span.op)
        kind = text.split(" ", 1)[0]
        lanes[span.lane][2].append((span.start_ns / 1e3, span.end_ns / 1e3, kind, text))
    return [(name, spans) for _, name, spans in sorted(lanes, key=lambda lane: lane[:2]) if spans]


def use_over_time(load: Any, total_ns: float) -> tuple[list[float], list[float]]:
    """Returns the times (us) and fractions of capacity at which a resource's load changes."""
    capacity = load.bytes / load.busy_ns if load.busy_ns else 1.0
    steps = [(0.0, 0.0), *load.rates, (total_ns, 0.0)]
    return [at_ns / 1e3 for at_ns, _ in steps], [rate / capacity for _, rate in steps]


def rank_rows(timeline: plait.Timeline, plan: plait.Plan) -> Rows:
    """Returns a row for each rank: the part of its lanes that copy, reduce and join."""
    by_rank = _lanes_of_ranks(timeline, plan)
    rows = {rank: _work(lanes, timeline.total_ns) for rank, lanes in by_rank.items()}
    alike = _alike(rows, _shape)
    drawn = list(rows) if len(rows) <= MOST_RANKS else [group[0] for group in alike]
    labels = {group[0]: f"{_ranks(group)} ({_busy(rows[group[0]])})" for group in alike}
    if len(rows) <= MOST_RANKS:
        labels = {rank: f"rank {rank} ({_busy(row)})" for rank, row in rows.items()}
    made = [Row(labels[rank], *rows[rank]) for rank in drawn[:MOST_RANKS]]
    return Rows(made, _more(len(drawn) - len(made), "ranks"))


def resource_rows(timeline: plait.Timeline) -> Rows:
    """Returns a row for each used link and memory, busiest first; those alike share a row."""
    total = max(timeline.total_ns, 1e-9)
    loads = {load.name: load for load in timeline.resources if load.bytes}
    rows = {}
    for name, load in loads.items():
        times_us, parts = use_over_time(load, timeline.total_ns)
        rows[name] = (times_us, {"copy": parts})
    groups = _alike(rows, _shape, lambda name: re.sub(r"\d+", "#", name))
    groups.sort(key=lambda group: -loads[group[0]].busy_ns)
    made = [
        Row(f"{names_of(group)} ({100 * loads[group[0]].busy_ns / total:.0f} %)", *rows[group[0]])
        for group in groups[:MOST_RESOURCES]
    ]
    rest = groups[MOST_RESOURCES:]
    note = _more(sum(map(len, rest)), "links and memories")
    if rest:
        note += f", each at most {100 * loads[rest[0][0]].busy_ns / total:.0f} % busy"
    return Rows(made, note)


def lane_rows(timeline: plait.Timeline, plan: plait.Plan, most: int = MOST_LANES) -> LaneRows:
    """Returns the lanes of the ranks that differ, an equal number for each of them."""
    by_rank = _lanes_of_ranks(timeline, plan)
    alike = _alike(by_rank, lambda lanes: [_lane_shape(spans) for _, spans in lanes])
    total = sum(map(len, by_rank.values()))
    each = max(1, most // max(1, len(alike)))
    drawn = [lane for group in alike for lane in by_rank[group[0]][:each]][:most]
    notes = [] if len(drawn) == total else [f"{len(drawn)} of {total} lanes"]
    if any(len(by_rank[group[0]]) > each for group in alike):
        notes.append(f"the first {each} of each rank")
    for group in alike:
        if len(group) > 1:
            is_one = len(group) == 2
            notes.append(f"{_ranks(group[1:])} {'is' if is_one else 'are'} like rank {group[0]}")
    return LaneRows(drawn, ", ".join(notes))


def names_of(group: Sequence[str]) -> str:
    """Returns one text for names that differ in numbers: 'gpu0..7.nvlink.out'."""
    if len(group) == 1:
        return group[0]
    parts = [re.split(r"(\d+)", name) for name in group]
    columns = [list(dict.fromkeys(column)) for column in zip(*parts, strict=True)]
    varied = [column for column in columns if len(column) > 1]
    if len(varied) == 1 and len(varied[0]) == len(group):
        return "".join(_numbers(column) for column in columns)
    return ", ".join(group) if len(group) < 4 else f"{group[0]} and {len(group) - 1} alike"


def _lanes_of_ranks(timeline: plait.Timeline, plan: plait.Plan) -> dict[int, list[tuple[str, Any]]]:
    by_rank: dict[int, list[tuple[str, Any]]] = {rank: [] for rank in range(plan.request.ranks)}
    for name, spans in spans_by_lane(timeline, plan):
        by_rank.setdefault(int(name.split(" ", 2)[1]), []).append((name, spans))
    return by_rank


def _work(
    lanes: Sequence[tuple[str, Any]], total_ns: float
) -> tuple[list[float], dict[str, list[float]]]:
    """Returns times, and the part of the lanes at each kind of work."""
    changes: dict[float, dict[str, int]] = defaultdict(lambda: dict.fromkeys(WORK, 0))
    for _, spans in lanes:
        for start, end, kind, _ in spans:
            if kind in WORK and end > start:
                changes[start][kind] += 1
                changes[end][kind] -= 1
    times, shares = [0.0], {kind: [0.0] for kind in WORK}
    now = dict.fromkeys(WORK, 0)
    for time in sorted(changes):
        times.append(time)
        for kind in WORK:
            now[kind] += changes[time][kind]
            shares[kind].append(now[kind] / len(lanes))
    times.append(total_ns / 1e3)
    for kind in WORK:
        shares[kind].append(0.0)
    return times, shares


def _busy(row: tuple[list[float], dict[str, list[float]]]) -> str:
    """Returns the part of the call in which at least one lane works: '88 %'."""
    times, shares = row
    busy = sum(
        end - start
        for start, end, *parts in zip(times, times[1:], *shares.values(), strict=False)
        if sum(parts) > 0
    )
    return f"{100 * busy / max(times[-1], 1e-9):.0f} %"


def _shape(row: tuple[list[float], dict[str, list[float]]]) -> object:
    """Returns what two rows that look the same have in common: steps to 1/500 of the picture."""
    times, shares = row
    unit = max(times[-1], 1e-9) / 500
    return [
        (round(time / unit), *(round(part, 2) for part in parts))
        for time, *parts in zip(times, *shares.values(), strict=True)
    ]


def _lane_shape(spans: Iterable[Any]) -> object:
    return [(round(start, 2), round(end, 2), kind) for start, end, kind, _ in spans]


def _alike(rows: dict[Any, Any], shape: Any, kind: Any = lambda key: 0) -> list[list[Any]]:
    """Returns the keys of `rows` in groups of one shape and kind."""
    groups: dict[str, list[Any]] = defaultdict(list)
    for key, row in rows.items():
        groups[repr((kind(key), shape(row)))].append(key)
    return list(groups.values())


def _numbers(column: Sequence[str]) -> str:
    """Returns '3' of one number, '0..7' of numbers in a row, '0,2,5' of others."""
    if len(column) == 1:
        return column[0]
    found = [int(number) for number in column]
    if len(found) > 2 and found == list(range(found[0], found[0] + len(found))):
        return f"{found[0]}..{found[-1]}"
    return ",".join(column)


def _ranks(group: Sequence[int]) -> str:
    """Returns 'rank 3', 'ranks 1 and 2', 'ranks 1 to 7' or 'ranks 1, 2 and 5'."""
    if len(group) == 1:
        return f"rank {group[0]}"
    if len(group) > 2 and list(group) == list(range(group[0], group[0] + len(group))):
        return f"ranks {group[0]} to {group[-1]}"
    return f"ranks {', '.join(map(str, group[:-1]))} and {group[-1]}"


def _more(count: int, what: str) -> str:
    return f"and {count} more {what}" if count > 0 else ""
