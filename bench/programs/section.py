"""Runs one section of a run: every item of items.py in turn, by plait and by NCCL.

FILE has a line for the variants of a call: "all_gather fp32 64M,1G chosen tiled:order=2,shift=1".
Each GPU has a process. --host runs ranks on CPUs, plait alone, to try the program. Inputs are
normal numbers from a new seed each row, and outputs are poisoned. plait's results must equal a sum
in rank order bit for bit if the engine promises that; other sums must be within their roundings.
Each row goes into the file when it is measured, until the budget is spent. `run` starts the
sections.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import plait
from bench.lib import options
from bench.lib.jobs import Ranks
from bench.lib.oracle import POISON, ExpectedCall, HostArrays, TorchArrays, size_of
from bench.lib.rows import KIND, CsvFile, today
from bench.programs.items import (
    CHOSEN,
    COLUMNS,
    FORMULA,
    LARGE_SECTIONS,
    NCCL_VARIANTS,
    SECTIONS,
    SM_BUDGET,
    TRIALS,
    RunItem,
    items,
)
from plait.bench import engines
from plait.bench.gpu_ranks import BenchRank, Call, sums_in_rank_order
from plait.bench.reductions import EPSILON, REDUCING
from plait.launch import Emit

ROW_S = 0.05  # seconds of timed calls, for eager and for graph
REFUSED = (plait.UnsupportedError, plait.InvalidArgumentError, plait.MemoryExhaustedError)
MORE_S = 120.0  # seconds beyond the budget until ranks that hang are killed


def by_name(counted_as: str) -> str:
    """Returns 'tiled' of 'all_reduce/tiled'."""
    return counted_as.partition("/")[2] or "nothing"


class GpuRunBackend:
    """A rank with a GPU: torch holds its arrays, and both libraries use one stream."""

    def __init__(self, task: dict[str, Any]) -> None:
        budget = SM_BUDGET if task["section"] == "slots" else 0
        whole = {"topology": "", "masks": [], "sm_budget": budget, "against": task["against"]}
        whole["overlap_compute"] = task["overlap_compute"]
        self.bay = BenchRank(whole, 0, row_budget_s=ROW_S)
        self.comm, self.nccl = self.bay.comm, self.bay.nccl
        self.on: HostArrays = TorchArrays(f"cuda:{self.bay.device}")
        kind = plait.gpu.kind(self.bay.device)
        version = self.nccl.version if self.nccl else ""
        self.facts = {"gpu": self.bay.gpu.name, "kind": kind, "nccl": version}

    def buffers(self, sent: Any, output: Any) -> tuple[int, int]:
        return sent.data_ptr(), output.data_ptr()

    def call(self, item: RunItem, request: plait.Request, at: tuple[int, int]) -> Call:
        core, stream = self.comm._core, self.bay.stream
        return lambda: core.enqueue(request, *at, stream, item.variant, dict(item.params))

    def by_nccl(self, request: plait.Request, at: tuple[int, int]) -> Call | None:
        nccl, stream = self.nccl, self.bay.stream
        if nccl is None or not nccl.takes(request):
            return None
        return lambda: nccl.call(request, *at, stream)

    def served_by(self, call: Call) -> tuple[str, str]:
        """Returns the engine of a call (in a graph, eagerly)."""
        eagerly, captured = self.bay.counted_as(call), self.bay.captured_as(call)
        return by_name(captured), by_name(eagerly)

    def replayed(self, call: Call) -> AbstractContextManager[Call]:
        return self.bay.replayed(call)

    def in_rank_order(self, request: plait.Request, done_by: str) -> bool:
        return sums_in_rank_order(self.bay.topology, request, f"{request.collective}/{done_by}")

    def finish(self) -> None:
        self.bay.gpu.synchronize(self.bay.stream)
        self.comm.check()

    def times_us(self, call: Call, size: int) -> tuple[float, float]:
        """Returns us (in a graph, eagerly)."""
        return self.bay.graph_s(call, size) * 1e6, self.bay.eager_s(call) * 1e6

    def close(self) -> None:
        self.bay.close()


class HostRunBackend:
    """The same with CPU ranks, to try the program without a GPU."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.facts = {"gpu": "no GPU", "kind": "no GPU", "nccl": ""}
        self.comm = plait.init(device=-1)
        self.on = HostArrays()

    def buffers(self, sent: Any, output: Any) -> tuple[int, int]:
        return sent.ctypes.data, output.ctypes.data

    def call(self, item: RunItem, request: plait.Request, at: tuple[int, int]) -> Call:
        core = self.comm._core
        return lambda: core.run_request(request, *at, item.variant, dict(item.params), 1.0)

    def by_nccl(self, request: plait.Request, at: tuple[int, int]) -> Call | None:
        return None

    def served_by(self, call: Call) -> tuple[str, str]:
        call()
        return "lanes", "lanes"

    def replayed(self, call: Call) -> AbstractContextManager[Call]:
        return nullcontext(call)

    def in_rank_order(self, request: plait.Request, done_by: str) -> bool:
        return False

    def finish(self) -> None:
        self.comm.barrier()

    def times_us(self, call: Call, size: int) -> tuple[float, float]:
        began = time.perf_counter()
        call()
        return 0.0, (time.perf_counter() - began) * 1e6

    def close(self) -> None:
        self.comm.barrier()


class SectionRank:
    """One rank's part of a section."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.side: Any = HostRunBackend(task) if task["host"] else GpuRunBackend(task)
        self.comm, self.on = self.side.comm, self.side.on
        self.began, self.seed = time.monotonic(), task["seed"]

    def over_all(self, value: float, of: Callable[[list[float]], float]) -> float:
        return of([float(one) for one in self.comm.exchange(repr(value).encode())])

    def time_is_up(self) -> bool:
        spent = self.over_all(time.monotonic() - self.began, max)
        return bool(spent > self.task["budget_s"])

    def arrays(self, case: ExpectedCall) -> tuple[Any, Any]:
        """Returns this rank's input, and its output with a tail that no call may touch."""
        kind = case.request.type
        width = size_of(kind)
        sent = case.drawn(self.comm.rank)
        slab = self.on.slab(max(1, case.gathered_count()) * width + 64)
        return sent, slab

    def wrong(self, case: ExpectedCall, slab: Any, call: Call, exact: bool) -> int:
        """Returns the number of wrong elements over all ranks, from a poisoned output."""
        request, rank = case.request, self.comm.rank
        self.on.fill(slab, POISON)
        self.on.finish()
        self.comm.barrier()
        call()
        self.side.finish()
        count, width = case.output_count(rank), size_of(request.type)
        output = self.on.view(slab, 0, count, request.type)
        found = case.wrong(rank, output) if exact else self.far_off(case, output)
        found += int(self.on.number((slab[count * width :] != POISON).sum()))
        return int(self.over_all(found, sum))

    def far_off(self, case: ExpectedCall, output: Any) -> int:
        """Returns the number of elements further off than the roundings of another order allow."""
        request, expected = case.request, case.expected(self.comm.rank)
        if expected is None:
            return 0
        if request.collective not in REDUCING or request.type not in EPSILON:
            return case.wrong(self.comm.rank, output)
        most = 8 * request.ranks * EPSILON[request.type]
        off = abs(self.on.cast(expected, "fp64") - self.on.cast(output, "fp64"))
        return int(self.on.number((~(off <= most)).sum()))

    def rows(self, item: RunItem) -> list[dict[str, Any]]:
        """Returns plait's row and NCCL's; empty if the item's engine refuses the call."""
        self.seed += 1
        request = item.request(self.comm.ranks)
        case = ExpectedCall(self.on, request, self.seed)
        sent, slab = self.arrays(case)
        self.on.finish()  # calls use another stream, and the memory is used again
        at = self.side.buffers(sent, slab)
        call = self.side.call(item, request, at)
        try:
            captured, eagerly = self.side.served_by(call)
        except REFUSED:
            return []  # the same on all ranks
        self.side.finish()
        exact = self.side.in_rank_order(request, eagerly)
        row = self.row(item, case, slab, call, exact)
        rows = [row | self.variant_of(item, eagerly)]
        if captured != eagerly:  # another engine in graphs gets a row of its own
            alone, replayed = {"wrong": row["wrong_alone"]}, {"wrong": row["wrong_replayed"]}
            rows = [
                row | self.variant_of(item, eagerly) | {"graph_us": 0.0} | alone,
                row | self.variant_of(item, captured) | {"eager_us": 0.0} | replayed,
            ]
        by_nccl = self.side.by_nccl(request, at)
        if by_nccl is not None:
            named = {"way": NCCL_VARIANTS.get(item.section, "nccl"), "params": ""}
            rows.append(self.row(item, case, slab, by_nccl, False) | named)
        return rows

    def variant_of(self, item: RunItem, done_by: str) -> dict[str, str]:
        variant = f"plait {item.requested() or engines.variant_counted(done_by)}"
        return {"way": variant, "params": done_by if item.variant else CHOSEN}

    def row(
        self, item: RunItem, case: ExpectedCall, slab: Any, call: Call, exact: bool
    ) -> dict[str, Any]:
        """Returns a call's times, and the wrong elements of a call before and of a replay after."""
        alone = self.wrong(case, slab, call, exact)
        graph_us, eager_us = self.side.times_us(call, item.size)
        with self.side.replayed(call) as replay:
            replayed = self.wrong(case, slab, replay, exact)
        return {
            "collective": item.collective if item.op == "sum" else f"{item.collective} {item.op}",
            "gpus": self.comm.ranks,
            "ranks_as": "processes",
            "type": item.type,
            "bytes": case.request.message_bytes(),
            "graph_us": graph_us,
            "eager_us": eager_us,
            "wrong": alone + replayed,
            "wrong_alone": alone,
            "wrong_replayed": replayed,
        }


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """Runs a rank. Rank 0 emits facts, then rows."""
    rank = SectionRank(task)
    if rank.comm.rank == 0:
        emit({"facts": rank.side.facts})
    for item in items(task["section"], rank.comm.ranks, task["most"], task["trials"]):
        if rank.time_is_up():
            break
        for row in rank.rows(item):
            if rank.comm.rank == 0:
                emit(row)
    rank.side.close()


def comments(given: SimpleNamespace, facts: dict[str, str]) -> list[str]:
    """Returns the comments of the file: machine, kind of GPU, command."""
    gpu = facts["gpu"].removeprefix("NVIDIA ")
    box = f"HGX {gpu}" if gpu.startswith(("H100", "H200")) else gpu
    return [
        f"machine: {box} x{given.ranks} (virtual machine); date: {today()}; driver "
        f"{plait.gpu.driver_version() if not given.host else 'none'}, NCCL {facts['nccl']}, "
        f"multicast off; commit {given.commit}",
        f"{KIND}{facts['kind']}",
        f"command: python -m bench {' '.join(sys.argv[1:])}; us, 0 = not timed; {FORMULA}",
    ]


def run(given: SimpleNamespace) -> int:
    """Runs the ranks. Returns 1 if a result was wrong or a rank failed."""
    if bool(given.section) == bool(given.trials):
        raise SystemExit("wanted a section or --trials FILE")
    options.check("section", [given.section] if given.section else [], (*SECTIONS, *LARGE_SECTIONS))
    alone = given.host or given.without_nccl
    section = given.section or TRIALS
    trials = given.trials.read_text() if given.trials else ""
    if given.trials:  # errors of the file show before ranks start
        try:
            items(section, given.ranks, 0, trials)
        except (plait.Error, ValueError) as error:
            raise SystemExit(f"--trials {given.trials}: {error}") from None
    task = {
        "section": section,
        "trials": trials,
        "overlap_compute": given.overlap_compute,
        "host": given.host,
        "against": "" if alone else "nccl",
        "budget_s": given.budget_s,
        "most": given.most_mib << 20,
        "seed": given.seed + time.time_ns() // 1_000_000 % 1_000_000,
    }
    job = Ranks("section", given.ranks, task, given.budget_s + MORE_S)
    writer, wrong, failed = None, 0, False
    for row in job.lines():
        if "error" in row:
            print(f"rank {row['rank']}: {row['error']}", file=sys.stderr)
            failed = True
        elif "facts" in row:
            writer = CsvFile(given.csv, COLUMNS, comments(given, row["facts"]))
        elif writer is not None:
            writer.write(row | {"commit": given.commit})
            wrong += row["wrong"]
            print(*(row[name] for name in COLUMNS[:-1]), flush=True)
    if any(job.statuses):
        print(f"ranks ended with {job.statuses}", file=sys.stderr)
    print(f"{section}: wrong elements {wrong}")
    return 1 if wrong or failed or not job.well() else 0
