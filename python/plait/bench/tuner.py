"""`plait tune`: times every kernel for each collective and size, and keeps the fastest.

It measures two settings: alone, and as under NCCL (calls leave multiprocessors to computation, and
NCCL is timed too). Tables go to the user's cache folder (PLAIT_TUNING) with machine, driver, date
and all figures: one for new communicators with GPUs, and one for the drop-in under this version of
NCCL. These are the files that a first start writes (src/comm/gpu/first_start.hpp).
"""

from __future__ import annotations

import json
import os
import time
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import plait
from plait import gpu
from plait._core import beats_nccl
from plait.bench import engines, nccl
from plait.bench.gpu_ranks import BenchRank, Call
from plait.bench.oracle import Oracle
from plait.bench.reductions import REDUCING
from plait.bench.sizes import count_for
from plait.launch import Emit
from plait.outputs import provenance

COLLECTIVES = tuple(name for name in nccl.COLLECTIVES if name != "copy")  # the most used first
TYPES = ("bf16", "fp32", "int32")
# Bytes: 1 KiB to 1 GiB by factors of 4. With computation, where kernels and NCCL are close, by
# factors of 2 from 1 to 128 MiB.
SIZES = {
    "overlap_compute": tuple(1 << shift for shift in (10, 12, 14, 16, 18, *range(20, 29), 30)),
    "alone": tuple(1 << shift for shift in range(10, 31, 2)),
}
# Copy engines come before tiles: at equal speed, prefer the engine that takes no multiprocessors.
KERNELS = tuple(sorted(engines.names(), key=lambda name: name == "tiled"))
BLOCKS = (0, 16, 48)  # 0 = the kernel's own choice
BLOCKS_MATTER = range(1 << 20, 64 << 20)  # bytes; above, the kernel's own choice is always best
BUDGET_S = 106  # 2 minutes including the start of both jobs
ENGINES_FROM = 16 << 20  # bytes; a call by copy engines has 50 us of overhead
FALLING = ("one_shot", "direct_ll")  # fall behind as messages grow, as do few blocks
RULED_OUT = 2.0  # times the fastest time at the previous size
# A choice other than the untuned one must be this much faster: noise must not decide.
MARGIN = 0.97
NOISE = 0.99  # among choices this near to the fastest, the first wins
SOURCE = "plait tune"
# Variants of an engine for large calls of more than two ranks, tried with the engine.
SCHEDULES = {"tiled": ("tiled:order=2,shift=1",)}
SCHEDULES_FROM = 64 << 20

# Collectives that stand for sends and receives: to the next rank, and to all ranks. plait serves
# all messages under NCCL or none (TuningTable::messages_are_ahead).
MESSAGES = frozenset(("send_recv", "all_to_all"))
MESSAGES_ROW = "messages"  # engine of their rows

Candidate = tuple[str, int]  # (engine, or engine:params; blocks)


def requests(
    ranks: int, collectives: list[str], setting: str, against: str = "nccl"
) -> list[plait.Request]:
    """Returns the requests to measure, the most used first. Beside NCCL send_recv stands for
    sends and receives; without NCCL nothing compares these."""
    found = []
    for name in collectives:
        if name == "send_recv" and setting == "overlap_compute" and not against:
            continue
        reduces = name in REDUCING
        for plait_type in TYPES if reduces else TYPES[:1]:
            for size in SIZES[setting]:
                count = count_for(name, size, plait_type, ranks)
                if count > 0:
                    found.append(plait.Request(name, count, plait_type, "sum", ranks, 0, 1))
    return found


def leaving_sms(ranks: int) -> tuple[str, ...]:
    """Returns the kernels for use with computation, fewest multiprocessors first.

    With two ranks direct_ll takes 32 or 48, tiled 64; with more, direct_ll takes all.
    """
    copies = tuple(filter(engines.by_copy_engines, KERNELS))
    return (*copies, "direct_ll", "tiled") if ranks == 2 else (*copies, "tiled", "direct_ll")


def candidates(
    request: plait.Request, setting: str, untuned: str, nccl_is_slower: bool
) -> list[Candidate]:
    """Returns (kernel, blocks) to try; a kernel refuses unsupported requests.

    nccl_is_slower: than the untuned choice. With computation, only kernels with fewer
    multiprocessors may then replace that choice.
    """
    size = request.message_bytes()
    alone, takers = setting == "alone", engines.takers(request)
    counts = BLOCKS if alone and size in BLOCKS_MATTER else BLOCKS[:1]
    kernels = KERNELS if alone else leaving_sms(request.ranks)
    untuned = engines.parted(untuned)[0]
    if not alone and nccl_is_slower:
        kernels = kernels[: kernels.index(untuned)] if untuned in kernels else ()
    found = [
        (kernel, blocks)
        for kernel in KERNELS
        if kernel in takers
        for blocks in (BLOCKS[:1] if engines.by_copy_engines(kernel) else counts)
        if kernel == untuned
        or (kernel in kernels and (size >= ENGINES_FROM or not engines.by_copy_engines(kernel)))
    ]
    if alone and request.ranks > 2 and size >= SCHEDULES_FROM:
        found += [(way, 0) for kernel, _ in found for way in SCHEDULES.get(kernel, ())]
    return found


def worth_it(found: list[Candidate], before_us: dict[Candidate, float]) -> list[Candidate]:
    """Drops candidates that were far behind at the previous size and fall further behind."""
    most_us = RULED_OUT * min(before_us.values(), default=0.0)
    return [
        one
        for one in found
        if before_us.get(one, 0.0) <= most_us or not (one[1] or one[0] in FALLING)
    ]


def best(times_us: dict[Candidate, float], untuned: str = "") -> Candidate:
    """Returns the fastest candidate; within the margin, the untuned choice."""
    fastest, own = min(times_us.values()), (untuned, 0)
    if times_us.get(own, float("inf")) * MARGIN <= fastest:
        return own
    return next(one for one, time_us in times_us.items() if time_us * NOISE <= fastest)


def times_messages(task: dict[str, Any]) -> bool:
    """True if sends and receives are timed beside NCCL's."""
    return (
        task["setting"] == "overlap_compute"
        and bool(task["against"])
        and bool(MESSAGES.intersection(task["collectives"]))
    )


def _served_by(bench: BenchRank, request: plait.Request) -> tuple[str, str]:
    """Returns what serves a request without a table (eager, in a graph), as counters name it;
    empty = nothing."""
    call = _call_by(bench, request, ("", 0))
    try:
        return bench.counted_as(call), bench.captured_as(call)
    except plait.UnsupportedError:
        return "", ""


def _way(served_by: str) -> str:
    """Returns the engine as a strategy names it; empty for a plan."""
    way = engines.variant_counted(served_by.partition("/")[2])
    return way if engines.parted(way)[0] in KERNELS else ""


def _bench_without_table(task: dict[str, Any], most_bytes: int) -> BenchRank:
    """Makes a benchmark rank that reads no tuning table."""
    named = os.environ.get("PLAIT_TUNING", "")
    os.environ["PLAIT_TUNING"] = "none"
    beside = task["setting"] == "overlap_compute"
    try:
        options = {"sm_budget": 0, "overlap_compute": beside, "messages": times_messages(task)}
        return BenchRank(task | options, most_bytes, row_budget_s=task["row_s"])
    finally:
        os.environ["PLAIT_TUNING"] = named  # empty counts as unset


def _call_by(bench: BenchRank, request: plait.Request, candidate: Candidate) -> Call:
    """Returns a call by a kernel with a number of blocks; "" = chosen kernel, 0 = the kernel's own
    number."""
    way, blocks = candidate
    kernel, params = engines.parted(way)
    params |= {"blocks": blocks} if blocks else {}
    return partial(
        bench.comm._core.enqueue, request, bench.input, bench.output, bench.stream, kernel, params
    )


def _time_us(bench: BenchRank, request: plait.Request, candidate: Candidate) -> float | None:
    """Returns us a call in a graph on the slowest rank; None if the kernel refuses the request."""
    call = _call_by(bench, request, candidate)
    try:
        call()
    except plait.UnsupportedError:
        return None
    return bench.graph_s(call, request.message_bytes()) * 1e6


def _nccl_us(bench: BenchRank, request: plait.Request) -> float:
    """Returns NCCL's us a call in a graph on the slowest rank; 0 if NCCL or the call is missing."""
    if bench.nccl is None or not bench.nccl.takes(request):
        return 0.0
    by_nccl = partial(bench.nccl.call, request, bench.input, bench.output, bench.stream)
    return bench.graph_s(by_nccl, request.message_bytes()) * 1e6


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """Times candidates on a rank until all requests are done or time is up; rank 0 emits rows."""
    wanted = requests(task["ranks"], task["collectives"], task["setting"], task["against"])
    most = max(
        max(request.input_bytes(rank), request.output_bytes(rank))
        for request in wanted
        for rank in range(request.ranks)
    )
    bench = _bench_without_table(task, most)
    if bench.rank == 0:
        version = bench.nccl.version if bench.nccl is not None else ""
        facts = {"kind": gpu.kind(bench.device), **provenance(bench.topology)}
        of = bench.comm._core.tuning_file
        files = {"alone": of(), "beside_nccl": of(version) if version else ""}
        # An all_to_all has a row of engines and one of messages.
        twice = sum(request.collective == "all_to_all" for request in wanted)
        total = len(wanted) + (twice if times_messages(task) else 0)
        emit({"total": total, "files": files, "nccl": version, **facts})
    start = time.monotonic()
    for _, group in groupby(wanted, key=lambda request: (request.collective, request.type)):
        before_us: dict[Candidate, float] = {}
        for request in group:
            if bench.largest(time.monotonic() - start) > task["budget_s"]:
                break
            found = []
            if times_messages(task) and request.collective in MESSAGES:
                found.append(_tuned_messages(bench, request))
            if not (times_messages(task) and request.collective == "send_recv"):
                found.append(_tuned(bench, request, task["setting"], before_us))
            for row in found if bench.rank == 0 else ():
                emit(row)
    bench.close()


def _tuned(
    bench: BenchRank, request: plait.Request, setting: str, before_us: dict[Candidate, float]
) -> dict[str, Any]:
    """Returns the row of a request. before_us: times at the previous size; updated to this size."""
    oracle = Oracle(request, seed=request.count % 97)
    bench.load(oracle)
    eagerly, captured = _served_by(bench, request)
    untuned = _way(eagerly)
    facts = {
        "setting": setting,
        "collective": request.collective,
        "type": request.type,
        "ranks": request.ranks,
        "size": request.message_bytes(),
        "untuned": untuned,
    }
    if captured != eagerly:  # no table is used (Selector::measured)
        return facts | {"tried": {}, "kernel": ""}
    nccl_us = _nccl_us(bench, request)
    own_us = _time_us(bench, request, (untuned, 0)) if untuned else None
    times: dict[Candidate, float] = {} if own_us is None else {(untuned, 0): own_us}
    nccl_is_slower = own_us is not None and beats_nccl(own_us, nccl_us) is not False
    found = candidates(request, setting, untuned, nccl_is_slower)
    tried = worth_it(found, before_us)
    for candidate in tried:
        time_us = None if candidate in times else _time_us(bench, request, candidate)
        if time_us is not None:
            times[candidate] = time_us
    ruled_out = {one: float("inf") for one in found if one not in tried}
    before_us.clear()
    before_us.update(ruled_out | times)
    while times:
        kernel, blocks = chosen = best(times, untuned)
        if bench.wrong_after(_call_by(bench, request, chosen), oracle) == 0:
            break
        del times[chosen]  # a wrong result is never the fastest
    facts["tried"] = {f"{name}:{count}": round(us, 2) for (name, count), us in times.items()}
    if not times:
        return facts | {"kernel": ""}
    timed = {"us": round(times[chosen], 3), "nccl_us": round(nccl_us, 3)}
    return facts | {"kernel": kernel, "blocks": blocks, **timed}


def _tuned_messages(bench: BenchRank, request: plait.Request) -> dict[str, Any]:
    """Returns the row of sends and receives that make the request, beside NCCL's."""
    oracle = Oracle(request, seed=request.count % 97)
    bench.load(oracle)
    candidate = (MESSAGES_ROW, 0)
    nccl_us = _nccl_us(bench, request)
    own_us = _time_us(bench, request, candidate)
    is_right = (
        own_us is not None and bench.wrong_after(_call_by(bench, request, candidate), oracle) == 0
    )
    return {
        "setting": "overlap_compute",
        "collective": request.collective,
        "type": request.type,
        "ranks": request.ranks,
        "size": request.message_bytes(),
        "untuned": "",
        "tried": {f"{MESSAGES_ROW}:0": round(own_us, 2)} if own_us is not None else {},
        "kernel": MESSAGES_ROW if is_right else "",
        "blocks": 0,
        "us": round(own_us or 0.0, 3),
        "nccl_us": round(nccl_us, 3),
    }


def table(facts: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the table for communicators; neighbouring rows of the same engine are merged."""
    names = ("fingerprint", "kind", "cuda_driver", "nccl", "plait", "date")
    said = {"name": facts["machine"], **{name: facts[name] for name in names}}
    calls = [
        _call(row)
        for setting in SIZES
        for row in rows
        if row["setting"] == setting and row["kernel"]
    ]
    text = plait._core.table_of_calls(json.dumps(said | {"source": SOURCE}), json.dumps(calls))
    content: dict[str, Any] = json.loads(text)
    return content


def _call(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a measured request as the core's table_of_calls() takes it."""
    engine, params = engines.parted(row["kernel"])
    params |= {"blocks": row["blocks"]} if row["blocks"] else {}
    return {
        "when": row["setting"],
        "bytes": row["size"],
        "engine": engine,
        "params": params,
        **{name: row[name] for name in ("collective", "type", "ranks", "us", "nccl_us")},
    }


def of_plait_alone(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the table without comparisons with NCCL, for communicators of plait's own."""
    left_out = ("ahead_of_nccl", "nccl_us")
    rows = [
        {key: value for key, value in row.items() if key not in left_out}
        for row in content["rows"]
        if row["engine"] != MESSAGES_ROW
    ]
    return content | {"nccl": "", "rows": rows}


def merged(file: str, content: dict[str, Any]) -> dict[str, Any]:
    """Returns the table with rows of an earlier measurement of other collectives and types."""
    try:
        older = Path(file).read_text()
    except (OSError, ValueError):
        return content  # no table, or an unreadable table
    both: dict[str, Any] = json.loads(plait._core.merged_tuning(older, json.dumps(content)))
    return both


def write(file: str, content: dict[str, Any]) -> None:
    """Writes the table atomically, with mode 0600. Later starts may measure again."""
    plait._core.write_tuning(file, json.dumps(content))
