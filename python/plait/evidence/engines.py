"""Compares engines' predicted times with recorded ones, and the choices that follow from them.

Reads rows of bench/results/engines.csv (by bench engine-rows). bench fit-prices fitted the
parameters of topologies/hgx-h200.json on half of the sizes; the other half tests the fit.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import plait

TABLE = Path("bench/results/engines.csv")  # in a checkout
NEAR, FAR = 0.10, 0.25  # limits of deviation: for most rows, and for every row
WANTED_NEAR = 0.90
MIB = 1 << 20
# Columns with launch parameters, and the parameters' names in a plan.
LAUNCHED = ("blocks", "threads", "together", "line_bytes", "tile_units", "short", "piece_bytes")
LAUNCH = {key: key for key in LAUNCHED}
LAUNCH |= {"host": "host_permille", "chunk": "chunk_bytes"}


@dataclass(frozen=True)
class Recorded:
    """A timed call of an engine."""

    engine: str
    collective: str
    ranks: int
    type: str
    size: int  # message bytes, by nccl-tests' convention
    eager: bool
    beside: bool  # as under NCCL, where calls leave SMs to computation
    blocks: int  # blocks that the caller requested; 0 = default
    host: int  # permille through host memory
    us: float
    usual_memory: bool  # default device memory of communicators
    plan: plait.Plan

    @property
    def fitted(self) -> bool:
        """Whether the size was used in the fit: every second power of two."""
        return round(math.log2(self.size)) % 2 == 0

    def predicted_us(self, topology: plait.Topology) -> float:
        return plait.predicted_ns(self.plan, topology, self.eager) / 1e3

    def deviation(self, topology: plait.Topology) -> float:
        return self.predicted_us(topology) / self.us - 1.0


@cache
def machine() -> plait.Topology:
    return plait.load_topology("hgx-h200")


def recorded(table: Path = TABLE) -> list[Recorded]:
    """Returns all rows with a measurement."""
    with table.open(newline="") as stream:
        return [_recorded(row) for row in csv.DictReader(stream) if row["left_out"] == ""]


def _recorded(row: dict[str, str]) -> Recorded:
    row = row | {"engine": plait.engine_name(row["engine"])}
    return Recorded(
        engine=row["engine"],
        collective=row["collective"],
        ranks=int(row["ranks"]),
        type=row["type"],
        size=int(row["bytes"]),
        eager=row["launched"] == "eager",
        beside=row["beside"] == "1",
        blocks=int(row["asked"]),
        host=int(row["host"]),
        us=float(row["us"]),
        usual_memory=row["usual_memory"] == "1",
        plan=_copies(row) if row["engine"].startswith("copy_") else _kernel(row),
    )


def _request(row: dict[str, str]) -> plait.Request:
    ranks, collective = int(row["ranks"]), row["collective"]
    arguments = ("sum", ranks, 0, 1 if collective == "copy" else 0, list(range(ranks)))
    one = plait.Request(collective, 1, row["type"], *arguments)
    return plait.Request(
        collective, int(row["bytes"]) // one.message_bytes(), row["type"], *arguments
    )


def _copies(row: dict[str, str]) -> plait.Plan:
    """Returns the copy engine's plan with the device memory of the measurement: the default, or
    that of bench_gpu at the time."""
    ranks = int(row["ranks"])
    if row["usual_memory"] == "1":
        return plait.engine_plan(machine(), _request(row), row["engine"], {}, row["beside"] == "1")
    slot = {2: 32, 4: 64, 8: 16}[ranks] * MIB
    return plait.plan_of_copies(
        machine(),
        _request(row),
        inbox_bytes=max(2, ranks - 1) * 2 * slot,
        borrowed_bytes=280 * MIB if ranks == 2 else 0,
        ring_bytes=16 * MIB,
        host_permille=int(row["host"]),
    )


def _kernel(row: dict[str, str]) -> plait.Plan:
    """Returns a plan with the call's request, kernel and launch parameters."""
    ranks, request = int(row["ranks"]), _request(row)
    head = {
        "schema": "plait.plan/1",
        "request": {
            "collective": request.collective,
            "count": request.count,
            "type": request.type,
            "op": "sum",
            "ranks": ranks,
            "root": 0,
            "peer": request.peer,
            "devices": list(range(ranks)),
        },
        "strategy": row["engine"],
        "params": {name: int(row[key]) for key, name in LAUNCH.items() if row[key] != "0"},
        "topology": "hgx-h200",
        "sum_order": "rank_order",
        "kernel": row["engine"],
        "symmetric": False,
        "relay_devices": [],
        "scratch_bytes": [0] * ranks,
        "inbox_bytes": [0] * ranks,
        "ring_bytes": [0] * ranks,
        "stripes": [],
        "paths": [],
        "lanes": [],
    }
    return plait.Plan.from_json(json.dumps(head))


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of predictions for the rows of an engine."""

    engine: str
    ranks: int
    eager: bool
    rows: int
    near: int  # rows within NEAR
    worst: float

    @staticmethod
    def of(rows: list[Recorded], topology: plait.Topology) -> Accuracy:
        off = [abs(row.deviation(topology)) for row in rows]
        near = sum(one <= NEAR for one in off)
        first = rows[0]
        return Accuracy(first.engine, first.ranks, first.eager, len(rows), near, max(off))


def accuracies(rows: Iterable[Recorded], topology: plait.Topology) -> list[Accuracy]:
    """Returns the accuracy of each engine, number of ranks and launch mode."""
    groups: dict[tuple[str, int, bool], list[Recorded]] = {}
    for row in rows:
        groups.setdefault((row.engine, row.ranks, row.eager), []).append(row)
    return [Accuracy.of(group, topology) for _, group in sorted(groups.items())]


@dataclass(frozen=True)
class RecordedChoice:
    """A call with recorded times of several engines."""

    recorded: tuple[Recorded, ...]
    predicted: Recorded  # ranked first by prediction
    best: Recorded

    @property
    def behind(self) -> float:
        return self.predicted.us / self.best.us - 1.0


def choices(rows: Iterable[Recorded], topology: plait.Topology) -> list[RecordedChoice]:
    """Returns calls with several engines at default blocks and shares. Excludes messages between
    two ranks: such messages need no choice."""
    calls: dict[tuple[object, ...], list[Recorded]] = {}
    for row in rows:
        if row.blocks == 0 and row.host == 0 and row.engine != "messages":
            key = (row.collective, row.ranks, row.type, row.size, row.eager, row.beside)
            calls.setdefault(key, []).append(row)
    return [
        RecordedChoice(
            tuple(call),
            min(call, key=lambda row: row.predicted_us(topology)),
            min(call, key=lambda row: row.us),
        )
        for _, call in sorted(calls.items())
        if len({row.engine for row in call}) > 1
    ]


def markdown(table: Path = TABLE) -> list[str]:
    """Returns the lines of docs/evidence.md on engines."""
    topology, rows = machine(), recorded(table)
    unseen = [row for row in rows if not row.fitted]
    near = sum(abs(row.deviation(topology)) <= NEAR for row in unseen)
    worst = max(abs(row.deviation(topology)) for row in unseen)
    lines = [
        f"The fit did not see the sizes of {len(unseen)} of {len(rows)} recorded calls. "
        f"{near} of these ({near / len(unseen):.1%})",
        f"are predicted within {NEAR:.0%}, and none deviates by more than {worst:.1%}.",
        "",
        "| engine | GPUs | launched | calls not seen | within 10 % | furthest off |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.engine} | {one.ranks} | {'eagerly' if one.eager else 'in graphs'} | {one.rows} | "
        f"{100 * one.near / one.rows:.0f} % | {100 * one.worst:.0f} % |"
        for one in accuracies(unseen, topology)
    ]
    chosen = choices(rows, topology)
    behind = [choice for choice in chosen if choice.best.engine != choice.predicted.engine]
    furthest = max(choice.behind for choice in chosen)
    lines += [
        "",
        f"{len(chosen)} calls were recorded with several engines. The prediction ranks the fastest",
        f"engine first in {len(chosen) - len(behind)} of them. "
        f"Otherwise its first engine is at most {furthest:.1%} behind.",
        "",
        "| call | GPUs | bytes | engine | recorded | predicted | deviation |",
        "|---|---|---|---|---|---|---|",
    ]
    return lines + [_example(row, topology) for row in rows if _is_example(row)]


def _is_example(row: Recorded) -> bool:
    shown = row.collective in ("all_reduce", "all_gather", "reduce_scatter") and not row.eager
    plain = row.type == "fp32" and not row.beside and row.blocks == 0 and row.host == 0
    return shown and plain and row.size in (1 << 10, 1 << 20, 64 << 20, 1 << 30)


def _example(row: Recorded, topology: plait.Topology) -> str:
    deviation = 100 * row.deviation(topology)
    return (
        f"| {row.collective} | {row.ranks} | {row.size} | {row.engine} | {row.us:.5g} us | "
        f"{row.predicted_us(topology):.5g} us | {deviation:+.1f} % |"
    )
