"""Adds a run's times of engines to the table of recorded times, bench/results/engines.csv.

A row is one call that an engine serves by its own choice: the request, the launch, us. Add a run
while the installed build is the one that ran, since its plans state the launches. The newest build
counts at all sizes between its recorded ones: a run's rows replace the same calls of older builds,
and leave out the calls around them. The median counts if a call was recorded several times. A row
that measures nothing stays in the table, and `left_out` gives the reason. fit-prices fits the
simulator's prices on the table.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plait
from bench.lib.rows import RESULTS, keep, read
from plait._core import engine_plan
from plait.bench.engines import by_copy_engines
from plait.bench.sizes import count_for
from plait.engine_names import engine_name
from plait.evidence.engines import LAUNCHED, machine

TABLE = RESULTS / "engines.csv"
MOST_SPREAD = 1.10
HOST_US = 1.0  # an eager kernel that takes this much longer than in a graph waits for the host
MIB = 1 << 20
ENGINES = (
    *("one_shot", "two_shot", "direct_ll", "ll_chain", "tiled"),
    *("copy_exchange", "copy_rotation", "copy_ring"),
)
CALL = ("engine", "collective", "ranks", "type", "bytes", "launched", "beside", "asked", "host")
CALL += ("chunk",)
AS_CHOSEN = {"beside": "0", "asked": "0", "host": "0", "chunk": "0"}
COLUMNS = (*CALL, *LAUNCHED, "usual_memory", "us", "left_out", "file")
Row = dict[str, str]
Call = tuple[str, ...]
AROUND = "an older build: newer ones are recorded around it"


def call_of(row: Row) -> Call:
    """Returns the call of a row; engines have today's names."""
    return (engine_name(row["engine"]), *(row[name] for name in CALL[1:]))


def place_of(row: Row) -> tuple[Any, ...]:
    """Returns a row's place in the table."""
    return tuple(int(row[name]) if row[name].isdigit() else row[name] for name in CALL)


def kind_of(row: Row) -> tuple[str, ...]:
    """Returns what calls of several sizes and types share."""
    names = (name for name in CALL[1:] if name not in ("type", "bytes"))
    return (engine_name(row["engine"]), *(row[name] for name in names))


def launch_of(row: Row) -> Row:
    """Returns the launch config that the engine states today; 0 for a parameter that it lacks."""
    if by_copy_engines(row["engine"]):
        return dict.fromkeys(LAUNCHED, "0")
    ranks = int(row["ranks"])
    count = count_for(row["collective"], int(row["bytes"]), row["type"], ranks)
    peer = 1 if row["collective"] == "copy" else 0
    request = plait.Request(row["collective"], count, row["type"], "sum", ranks, 0, peer)
    params = engine_plan(machine(), request, row["engine"], {}).params
    if row["engine"] != "ll_chain":  # others have pieces that no price reads
        params = params | {"piece_bytes": 0}
    return {name: str(params.get(name, 0)) for name in LAUNCHED}


def times_in(folder: Path) -> dict[Call, tuple[Row, list[float]]]:
    """Returns the calls of a run's tables and schedules with their times."""
    found: dict[Call, tuple[Row, list[float]]] = {}
    for file in sorted(folder.glob("gpu_run_*.csv")):
        for row in read(file):
            engine = row["way"].removeprefix("plait ")
            plain = " " not in row["collective"] and row["type"] in ("fp32", "bf16")
            if engine not in ENGINES or not plain or row["wrong"] != "0" or "_slots_" in file.name:
                continue
            for launched in ("graph", "eager"):
                if (us := float(row[f"{launched}_us"])) > 0:
                    call = AS_CHOSEN | {"engine": engine, "ranks": row["gpus"], "file": file.name}
                    call |= {name: row[name] for name in ("collective", "type", "bytes")}
                    call |= {"launched": launched, "usual_memory": "1"}
                    found.setdefault(call_of(call), (call, []))[1].append(us)
    return found


def why_left_out(row: Row, times: list[float], in_graph: list[float]) -> str:
    """Returns why the times do not measure the call; empty if they do. in_graph: the same call's
    times in a graph."""
    if (spread := max(times) / min(times)) > MOST_SPREAD:
        return f"recordings differ by {100 * (spread - 1):.0f} %"
    eager, size, us = row["launched"] == "eager", int(row["bytes"]), statistics.median(times)
    sums_of_four = (row["engine"], row["collective"], row["ranks"]) == ("tiled", "all_reduce", "4")
    if eager and sums_of_four and size >= 120 * MIB:
        return "its share through host memory is not recorded"
    if by_copy_engines(row["engine"]):
        few = not eager and size <= (16 if row["ranks"] == "2" else 64) * MIB
        return "timed in a graph of hundreds of copies, where each costs more" if few else ""
    replayed = statistics.median(in_graph) if eager and in_graph else us
    if us * MOST_SPREAD < replayed:
        return "faster than in a graph: another node's pace, or chance"
    if us > replayed + max(HOST_US, us / 20):
        return "the host's time, which differs from node to node"
    return ""


def with_run(table: list[Row], folder: Path) -> list[Row]:
    """Returns the table with the rows of a run."""
    times, sizes = times_in(folder), dict[tuple[str, ...], list[int]]()
    new = {}
    for call, (row, all_us) in times.items():
        sizes.setdefault(kind_of(row), []).append(int(row["bytes"]))
        in_graph = times.get(call_of(row | {"launched": "graph"}), (row, []))[1]
        why = why_left_out(row, all_us, in_graph)
        us = {"us": f"{round(statistics.median(all_us), 3)}", "left_out": why}
        new[call] = row | launch_of(row) | us
    old = {call_of(row): row for row in table}
    for call, row in old.items():
        known = sizes.get(kind_of(row))
        if known and min(known) <= int(row["bytes"]) <= max(known):
            old[call] = row | {"left_out": row["left_out"] or AROUND}
    return sorted((old | new).values(), key=place_of)


def run(given: SimpleNamespace) -> None:
    with TABLE.open(newline="") as stream:
        table = list(csv.DictReader(stream))
    table = with_run(table, given.folder) if given.folder else table
    if given.write:
        keep(TABLE, table, COLUMNS)
    left_out = sum(bool(row["left_out"]) for row in table)
    print(f"{len(table)} calls, {left_out} of them left out")
