"""Writes the simulator's predictions for every row of a run, and compares them with the run.

Nothing in these files was measured. The simulator predicts plait's rows from
topologies/hgx-h200.json and NCCL's all_reduces by its model of NCCL's ring. models.py predicts
pinned NCCL and PyTorch's symmetric memory. Other rows of NCCL have no prediction. Link speeds were
derived by hand (E-0112, bench/results/predicted_links_h200x*.csv), because the simulator's link
speeds are fitted to measured ones.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plait
from bench.lib import options
from bench.lib.rows import KIND, RESULTS, CsvFile, of_files, read
from bench.programs.items import (
    CHOSEN,
    COLUMNS,
    GIB,
    LARGE_SECTIONS,
    LARGER_BYTES,
    MEMORY_BYTES,
    MIB,
    NCCL_VARIANTS,
    SECTIONS,
    SM_BUDGET,
    SYMMETRIC_SIZES,
    SYMMETRIC_TYPES,
    SYMMETRIC_VARIANTS,
    RunItem,
    items,
)
from bench.programs.models import pinned_us, symmetric_us
from plait._core import engine_plan, predicted_ns, taken_by_calls
from plait.bench.engines import variant_of
from plait.evidence.calibrate import nccl_us

MOST = 4 * GIB
GPUS = (2, 4, 8)
PREDICTED = (
    *("section", "collective", "gpus", "type", "bytes", "way", "params"),
    *("predicted_graph_us", "predicted_eager_us"),
)
LINK_ROWS = (  # columns of bench_links
    *("pattern", "k", "way", "blocks", "gpus", "bytes", "us", "least_us", "gb_per_s", "wrong"),
)
SYMMETRIC = (  # columns of symmetric.py
    *("ranks", "type", "bytes", "all_reduce_by", "all_reduce_us", "plait_us", "one_shot_us"),
    *("two_shot_us", "ratio", "wrong"),
)
NEAR = 0.10
ROTATION = ("piece_mib", "way", "predicted_lost_us")  # us that a step loses over pieces to one rank
Row = dict[str, Any]


@cache
def machine() -> plait.Topology:
    return plait.load_topology("hgx-h200")


Times = list[tuple[str, float, float]]  # (engine, us in a graph, us eagerly)


@cache
def times_us(item: RunItem, ranks: int) -> Times:
    """Returns the predicted times of an item by engine; empty if the named engine refuses it. If
    two engines serve it, one in graphs and one eagerly, each has a 0 for the other mode."""
    request = item.request(ranks)
    names = {info.name for info in plait.strategies()}
    if item.variant in names - {info.name for info in plait.engines()}:
        try:
            memory = plait.for_calls(machine(), request)  # as calls by name have it
            plan = plait.propose_one(memory, request, item.variant, dict(item.params))
        except plait.UnsupportedError:
            return []
        times = [predicted_ns(plan, machine(), eager) / 1e3 for eager in (False, True)]
        return [(plan.label, times[0], times[1])]
    if item.variant:
        return _by_engine(item, request)
    found = []
    for eager in (False, True):
        try:
            runs = plait.what_would_run(machine(), request, item.variant, dict(item.params), eager)
        except plait.UnsupportedError:
            return []
        if runs is None:
            plan = taken_by_calls(machine(), request)
            found.append(("lanes", predicted_ns(plan, machine(), eager) / 1e3))
        else:
            found.append((variant_of(runs.choice.engine, runs.choice.params), runs.predicted_us))
    (captured, graph_us), (eagerly, eager_us) = found
    if captured == eagerly:
        return [(captured, graph_us, eager_us)]
    return [(eagerly, 0.0, eager_us), (captured, graph_us, 0.0)]


def _by_engine(item: RunItem, request: plait.Request) -> Times:
    """Predicts the call by the item's engine, with the section's memory."""
    memories = {
        "slots": {"memory": MEMORY_BYTES, "sm_budget": SM_BUDGET},
        "shares_640m": {"memory": LARGER_BYTES},
    }
    memory = memories.get(item.section, {})
    try:
        plan = engine_plan(machine(), request, item.variant, dict(item.params), **memory)
    except (plait.UnsupportedError, plait.InvalidArgumentError):
        return []
    times = [predicted_ns(plan, machine(), eager) / 1e3 for eager in (False, True)]
    return [(item.variant, times[0], times[1])]


def predicted(section: str, ranks: int) -> Iterator[Row]:
    """Yields a predicted row for each row of the run that the models cover."""
    for item in items(section, ranks, MOST):
        known = times_us(item, ranks)
        if not known:
            continue
        request = item.request(ranks)
        row = {
            "section": section,
            "collective": item.collective if item.op == "sum" else f"{item.collective} {item.op}",
            "gpus": ranks,
            "type": item.type,
            "bytes": request.message_bytes(),
            "params": "" if item.variant else CHOSEN,
        }
        for name, graph_us, eager_us in known:
            times = {"predicted_graph_us": graph_us, "predicted_eager_us": eager_us}
            yield row | {"way": f"plait {item.requested() or name}"} | times
        is_chosen = section in ("table", *LARGE_SECTIONS) and not item.variant
        if is_chosen and item.collective == "all_reduce" and item.size >= 64 * MIB:
            us = nccl_us(ranks, item.size // MIB)
            times = {"predicted_graph_us": us, "predicted_eager_us": us}
            yield row | {"way": "nccl", "params": ""} | times
        if section in NCCL_VARIANTS:
            us = pinned_us(section, ranks, item.size)
            times = {"predicted_graph_us": us, "predicted_eager_us": us}
            yield row | {"way": NCCL_VARIANTS[section], "params": ""} | times


def predicted_symmetric(ranks: int) -> Iterator[Row]:
    """Yields rows of PyTorch's symmetric memory, which is timed in graphs alone."""
    for kind in SYMMETRIC_TYPES:
        for size in SYMMETRIC_SIZES:
            row = {"section": "symmetric", "collective": "all_reduce", "gpus": ranks, "type": kind}
            for variant in SYMMETRIC_VARIANTS:
                times = {
                    "predicted_graph_us": symmetric_us(variant, ranks, size),
                    "predicted_eager_us": 0.0,
                }
                yield row | {"bytes": size, "way": f"symmetric {variant}", "params": ""} | times


def files(ranks: int) -> tuple[Path, Path]:
    return (
        RESULTS / f"predicted_run_h200x{ranks}.csv",
        RESULTS / f"predicted_links_h200x{ranks}.csv",
    )


def large_files(ranks: int) -> tuple[Path, Path]:
    """Returns the files of a run of large messages: calls, and rotations by hand (E-0532)."""
    return (
        RESULTS / f"predicted_large_h200x{ranks}.csv",
        RESULTS / f"predicted_rotation_h200x{ranks}.csv",
    )


SAID = "predictions, not measurements: made before the run by python -m bench predictions --write"

BY = (
    "us, 0 = not timed: plait's by the simulator on topologies/hgx-h200.json, pinned NCCL's and "
    "symmetric memory's by bench/programs/models.py"
)


def write(large: bool) -> None:
    """Writes the predictions of a run, or of a run of large messages."""
    for ranks in GPUS:
        if large:
            made = CsvFile(large_files(ranks)[0], PREDICTED, [SAID, BY])
            for section in LARGE_SECTIONS:
                for row in predicted(section, ranks):
                    made.write(row)
            continue
        made = CsvFile(files(ranks)[0], PREDICTED, [SAID, BY])
        for section in SECTIONS:
            for row in predicted(section, ranks):
                made.write(row)
        for row in predicted_symmetric(ranks):
            made.write(row)


def make_up(folder: Path, ranks: int, name: str, large: bool = False) -> None:
    """Writes a made-up run with random times near the predictions, to test its readers."""
    drawn = random.Random(1)
    said = [
        "machine: none; made up from predictions to try the tables with",
        f"{KIND}none",
        "command: none",
    ]
    rows = read(large_files(ranks)[0] if large else files(ranks)[0])
    for section in LARGE_SECTIONS if large else SECTIONS:
        of_section = [row for row in rows if row["section"] == section]
        out = CsvFile(folder / f"gpu_run_{section}_{name}.csv", COLUMNS, said)
        for row in of_section:
            times = {
                f"{how}_us": float(row[f"predicted_{how}_us"]) * drawn.uniform(0.9, 1.1)
                for how in ("graph", "eager")
            }
            plain = {key: row[key] for key in PREDICTED[1:7]}
            more = {"ranks_as": "processes", "wrong": 0, "commit": "none"}
            out.write(plain | times | more)
            if section not in NCCL_VARIANTS and row["way"] != "nccl":
                alike = max(times.values())  # a call that two engines serve has a 0
                both = {key: (us or alike) * drawn.uniform(0.8, 1.8) for key, us in times.items()}
                out.write(plain | both | more | {"way": "nccl", "params": ""})
    _make_up_links(CsvFile(folder / f"gpu_links_{name}.csv", LINK_ROWS, said), ranks, drawn)
    if large:
        rotation = CsvFile(folder / f"gpu_rotation_{name}.csv", LINK_ROWS, said)
        return _make_up_rotation(rotation, ranks, drawn)
    symmetric = CsvFile(folder / f"gpu_symmetric_{name}.csv", SYMMETRIC, said)
    _make_up_symmetric(symmetric, ranks, drawn)


def _make_up_symmetric(out: CsvFile, ranks: int, drawn: random.Random) -> None:
    for named in SYMMETRIC_TYPES.values():
        for size in SYMMETRIC_SIZES:
            us = {
                f"{variant}_us": symmetric_us(variant, ranks, size) * drawn.uniform(0.9, 1.1)
                for variant in SYMMETRIC_VARIANTS
            }
            plait_us = min(us.values()) / drawn.uniform(0.9, 1.6)
            more = {"all_reduce_by": "nccl", "all_reduce_us": 2 * plait_us, "plait_us": plait_us}
            row = {"ranks": ranks, "type": named, "bytes": size} | more | us | {"wrong": 0}
            out.write(row | {"ratio": min(us.values()) / plait_us})


def _make_up_links(out: CsvFile, ranks: int, drawn: random.Random) -> None:
    for row in read(files(ranks)[1]):
        for size in (GIB, 4 * GIB):
            speed = float(row["predicted_gb_per_s"]) * drawn.uniform(0.9, 1.1)
            us = size / speed / 1e3
            facts = {"blocks": 100, "bytes": size, "us": us, "least_us": us, "gb_per_s": speed}
            out.write(row | facts | {"wrong": 0})


def _make_up_rotation(out: CsvFile, ranks: int, drawn: random.Random) -> None:
    for row in read(large_files(ranks)[1]):
        lost = float(row["predicted_lost_us"]) * drawn.uniform(0.7, 1.3)
        facts = {"pattern": "rotation", "k": 8, "way": row["way"], "gpus": ranks, "wrong": 0}
        facts |= {"blocks": f"{row['piece_mib']} MiB", "least_us": f"{lost} us a step lost"}
        out.write(facts | {"bytes": GIB, "us": 3000.0 + 8 * lost, "gb_per_s": 340.0})


Key = tuple[str, ...]


def key_of(section: str, row: Row) -> Key:
    return (section, *(str(row[name]) for name in ("collective", "gpus", "type", "bytes", "way")))


def measured(folder: Path) -> dict[Key, Row]:
    """Returns the rows of a run without wrong elements."""
    found: dict[Key, Row] = {}
    for section in (*SECTIONS, *LARGE_SECTIONS):
        for row in of_files(folder, f"gpu_run_{section}_*.csv"):
            if row["wrong"] == "0":
                found.setdefault(key_of(section, row), row)
    types = {named: kind for kind, named in SYMMETRIC_TYPES.items()}
    for row in of_files(folder, "gpu_symmetric_*.csv"):
        plain = {"collective": "all_reduce", "gpus": row["ranks"], "type": types[row["type"]]}
        for variant in SYMMETRIC_VARIANTS:
            one = plain | {"bytes": row["bytes"], "way": f"symmetric {variant}"}
            times = {"graph_us": row[f"{variant}_us"], "eager_us": "0"}
            found.setdefault(key_of("symmetric", one), times)
    return found


def compared(folder: Path, ranks: int) -> Iterator[tuple[Row, str, float, float]]:
    """Yields (the prediction's row, graph or eager, predicted us, measured us) of rows that have a
    prediction and a measurement."""
    there = measured(folder)
    for row in [*read(files(ranks)[0]), *read(large_files(ranks)[0])]:
        found = there.get(key_of(row["section"], row))
        for how in ("graph", "eager"):
            said = float(row[f"predicted_{how}_us"])
            if found is not None and float(found[f"{how}_us"]) > 0 and said > 0:
                yield row, how, said, float(found[f"{how}_us"])


def errors(folder: Path, ranks: int) -> Iterator[str]:
    """Yields Markdown lines on how far predictions were off."""
    by_variant: dict[tuple[str, str, str], list[tuple[float, Row]]] = {}
    for row, how, said, found in compared(folder, ranks):
        variant = row["way"].removeprefix("plait ")
        by_variant.setdefault((row["collective"], variant, how), []).append((said / found - 1, row))
    if not by_variant:
        yield "no row of the run has a prediction"
        return
    all_off = [abs(off) for rows in by_variant.values() for off, _ in rows]
    near = sum(off <= NEAR for off in all_off)
    middle = statistics.median(all_off)
    yield f"{len(all_off)} figures, {near} within {NEAR:.0%}, median off {middle:.1%}"
    yield "| collective | way | launched | rows | median off | furthest | at bytes |"
    yield "|---|---|---|---|---|---|---|"
    for (collective, variant, how), rows in sorted(by_variant.items()):
        middle = statistics.median(abs(off) for off, _ in rows)
        worst, at = max(rows, key=lambda one: abs(one[0]))
        yield (
            f"| {collective} | {variant} | {how} | {len(rows)} | {middle:.1%} | {worst:+.1%} | "
            f"{at['bytes']} |"
        )


def link_errors(rows: Iterable[Row], ranks: int) -> Iterator[str]:
    """Yields predicted and measured GB/s of each pattern and method: the largest size, with the
    best number of blocks."""
    best: dict[tuple[str, str, str], tuple[int, float]] = {}
    for row in rows:
        key, size = (row["pattern"], row["k"], row["way"]), int(row["bytes"])
        best[key] = max(best.get(key, (0, 0.0)), (size // MIB // 64, float(row["gb_per_s"])))
    yield "| pattern | k | way | predicted GB/s | found | off |"
    yield "|---|---|---|---|---|---|"
    for row in read(files(ranks)[1]):
        found = best.get((row["pattern"], row["k"], row["way"]), (0, 0.0))[1]
        if found > 0:
            said = float(row["predicted_gb_per_s"])
            yield (
                f"| {row['pattern']} | {row['k']} | {row['way']} | {said:.0f} | {found:.1f} | "
                f"{said / found - 1:+.1%} |"
            )


def rotation_errors(rows: Iterable[Row], ranks: int) -> Iterator[str]:
    """Yields us that a step of a rotation loses, predicted and measured. Ports held for a time have
    several rows a piece, of which the best counts."""
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        way = "held" if row["way"].startswith("held") else row["way"]
        key, lost = (row["blocks"].removesuffix(" MiB"), way), float(row["least_us"].split()[0])
        best[key] = min(best.get(key, lost), lost)
    yield "| piece, MiB | ports | predicted us lost a step | found |"
    yield "|---|---|---|---|"
    for row in read(large_files(ranks)[1]):
        found = best.get((row["piece_mib"], row["way"]))
        if found is not None:
            said = float(row["predicted_lost_us"])
            yield f"| {row['piece_mib']} | {row['way']} | {said:.0f} | {found:.1f} |"


def run(given: SimpleNamespace) -> None:
    options.check("--gpus", [given.gpus], GPUS)
    if given.write:
        write(given.large)
    if given.compare:
        print("\n".join(errors(given.compare, given.gpus)))
        for file in sorted(given.compare.glob("gpu_links_*.csv")):
            print("\n".join(link_errors(read(file), given.gpus)))
        for file in sorted(given.compare.glob("gpu_rotation_*.csv")):
            print("\n".join(rotation_errors(read(file), given.gpus)))
