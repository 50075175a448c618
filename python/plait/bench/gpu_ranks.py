"""`plait bench` on GPUs: plait and NCCL in the same processes, on the same device buffers.

Each row is a (type, size). Both libraries are checked on fresh random data with poisoned outputs,
and timed eagerly and in a CUDA graph. plait's results must have the bits of a sum in rank order,
NCCL's must be within the roundings of NCCL's order. Inputs repeat after a prime number of elements:
a misplaced piece shows, and every size is checked in full.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

import plait
from plait import gpu
from plait.arrays import DTYPE_OF_TYPE
from plait.bench import reductions
from plait.bench.engines import variant_of
from plait.bench.nccl import Nccl
from plait.bench.oracle import PERIOD, Oracle
from plait.bench.sizes import bandwidth, request_for
from plait.launch import Emit

CHECK_ELEMENTS = 16 * PERIOD  # elements compared at a time: a multiple of the period
ROUNDS = 5  # rounds of timing; the median counts
MOST_ITERS = 200  # eager calls or graphs a round; set by --iters
ROW_BUDGET_S = 0.35  # s of timed calls, each of eager and graph
GRAPH_CALLS = 20  # of a small message in one graph
Call = Callable[[], None]


class BenchRank:
    """A rank: GPU and buffers, and both libraries on the same stream."""

    def __init__(
        self, task: dict[str, Any], most_bytes: int, row_budget_s: float = ROW_BUDGET_S
    ) -> None:
        self.row_budget_s = row_budget_s
        self.take_options(task)
        self.device = int(os.environ["LOCAL_RANK"])
        self.gpu = gpu.Gpu(self.device)
        self.gpu.make_current()  # required by NCCL
        options = plait._core.options_from_environment()
        options.device = self.device
        options.topology, options.masks = task["topology"], task["masks"]
        options.sm_budget = task["sm_budget"]
        options.overlap_compute = task.get("overlap_compute", False)
        options.messages = task.get("messages", False)
        self.comm = plait.Communicator._of(plait._core.Communicator.create(options))
        self.rank, self.ranks = self.comm.rank, self.comm.ranks
        self.nccl: Nccl | None = None
        if task["against"] == "nccl":
            self.nccl = Nccl()
            unique = self.comm.exchange(self.nccl.new_id() if self.rank == 0 else b"")[0]
            self.nccl.join(unique, self.rank, self.ranks)
        self.stream = self.gpu.make_stream()
        self.input = self.gpu.allocate(most_bytes + 256)
        self.output = self.gpu.allocate(most_bytes + 256)
        self.events = [self.gpu.make_event() for _ in range(2)]

    def take_options(self, task: dict[str, Any]) -> None:
        """Applies --iters and --warmup."""
        self.iters, self.warmup = task.get("iters") or MOST_ITERS, task.get("warmup", 1)

    def close(self) -> None:
        """Ends both libraries and frees the buffers. Collective."""
        self.gpu.synchronize(self.stream)
        self.comm.barrier()
        if self.nccl is not None:
            self.nccl.leave()

    @property
    def topology(self) -> plait.Topology:
        """The topology for which calls on the GPUs are planned."""
        return self.comm._core.device_topology

    def counted_as(self, call: Call) -> str:
        """Makes a call; returns what served it: all_reduce/two_shot, all_reduce/ring(lanes=1)."""
        before = self.comm.counters().calls_of
        call()
        after = self.comm.counters().calls_of
        return next((name for name in after if after[name] != before.get(name, 0)), "")

    def load(self, oracle: Oracle) -> None:
        """Copies this rank's input to the GPU."""
        request = oracle.request
        size = DTYPE_OF_TYPE[request.type].itemsize
        count, at = request.input_bytes(self.rank) // size, 0
        while at < count:
            end = min(count, at + CHECK_ELEMENTS)
            part = oracle.input(self.rank, at, end)
            self.gpu.copy(self.input + at * size, part.ctypes.data, part.nbytes)
            at += len(part)

    def wrong_after(self, call: Call, oracle: Oracle, bitwise: bool = True) -> int:
        """Poisons the output, makes the call and returns wrong elements of all ranks."""
        request = oracle.request
        size = DTYPE_OF_TYPE[request.type].itemsize
        count = request.output_bytes(self.rank) // size
        self.gpu.fill(self.output, 0xAB, count * size + 64, self.stream)
        self.gpu.synchronize(self.stream)
        self.comm.barrier()
        call()
        self.gpu.synchronize(self.stream)
        self.comm.check()
        wrong, at = 0, 0
        while at < count:
            part = np.empty(min(CHECK_ELEMENTS, count - at), DTYPE_OF_TYPE[request.type])
            self.gpu.copy(part.ctypes.data, self.output + at * size, part.nbytes)
            wrong += oracle.wrong(self.rank, part, at, bitwise)
            at += len(part)
        tail = np.empty(64, np.uint8)
        self.gpu.copy(tail.ctypes.data, self.output + count * size, tail.nbytes)
        wrong += int(np.sum(tail != 0xAB))  # bytes behind the end must be untouched
        return int(sum(float(one) for one in self.comm.exchange(repr(wrong).encode())))

    def largest(self, value: float) -> float:
        """Returns the largest of all ranks' values."""
        return max(float(one) for one in self.comm.exchange(repr(value).encode()))

    def seconds(self, enqueue: Callable[[int], None], per_enqueue: int) -> float:
        """Returns the median over rounds of the slowest rank's s a call. enqueue(n): n calls."""
        enqueue(max(self.warmup, 1))
        one = self.largest(self._timed(enqueue, 2) / (2 * per_enqueue))
        in_time = int(self.row_budget_s / ROUNDS / max(one * per_enqueue, 1e-9))
        times = max(1, min(self.iters, in_time))
        rounds = [
            self.largest(self._timed(enqueue, times) / (times * per_enqueue)) for _ in range(ROUNDS)
        ]
        return statistics.median(rounds)

    def _timed(self, enqueue: Callable[[int], None], times: int) -> float:
        self.gpu.synchronize(self.stream)
        self.comm.barrier()
        self.gpu.record(self.events[0], self.stream)
        enqueue(times)
        self.gpu.record(self.events[1], self.stream)
        elapsed_s = self.gpu.elapsed_s(*self.events)
        self.comm.check()
        return elapsed_s

    def eager_s(self, call: Call) -> float:
        """Returns s a call, enqueued one by one."""

        def enqueue(times: int) -> None:
            for _ in range(times):
                call()

        return self.seconds(enqueue, 1)

    @contextmanager
    def replayed(self, call: Call, calls: int = 1) -> Iterator[Call]:
        """Yields a function that replays a graph of `calls` calls. Collective."""
        graph = self._captured(call, calls)
        try:
            yield partial(self.gpu.launch, graph, self.stream)
        finally:
            self.gpu.synchronize(self.stream)
            self.comm.barrier()
            self.gpu.end_graph(graph)

    def captured_as(self, call: Call) -> str:
        """Returns what serves a call in a graph, as counted_as() does."""
        name = ""

        def enqueue() -> None:
            nonlocal name
            name = self.counted_as(call)

        self.gpu.end_graph(self._captured(enqueue, 1))
        return name

    def _captured(self, call: Call, calls: int) -> Any:
        """Captures a graph of `calls` calls. Ends the capture if a call is refused."""
        self.gpu.begin_capture(self.stream)
        try:
            for _ in range(calls):
                call()
        except BaseException:
            with suppress(plait.Error):  # the first error says more
                self.gpu.end_graph(self.gpu.end_capture(self.stream))
            raise
        return self.gpu.end_capture(self.stream)

    def graph_s(self, call: Call, size_bytes: int) -> float:
        """Returns s a call in a replayed graph of several calls."""
        calls = GRAPH_CALLS if size_bytes <= 16 << 20 else 2
        with self.replayed(call, calls) as replay:

            def enqueue(times: int) -> None:
                for _ in range(times):
                    replay()

            return self.seconds(enqueue, calls)


def sums_in_rank_order(topology: plait.Topology, request: plait.Request, done_by: str) -> bool:
    """Returns whether the engine or plan of a request sums in rank order. done_by: the label."""
    name, _, said = done_by.partition("/")[2].removesuffix(")").partition("(")
    if request.collective not in reductions.REDUCING or name in {
        "local",
        *(one.name for one in plait.engines()),
    }:
        return True
    pairs = (word.split("=") for word in said.split(",") if word)
    params = {key: int(value) for key, value in pairs}
    try:
        return plait.propose_one(topology, request, name, params).sum_order == "rank_order"
    except plait.UnsupportedError:  # ran on other GPUs than the topology's first
        return False


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """Runs every (type, size) of the task on a rank; rank 0 emits the rows."""
    requests = list(requests_of(task))
    most = max(
        max(request.input_bytes(rank), request.output_bytes(rank))
        for request in requests
        for rank in range(request.ranks)
    )
    bench = BenchRank(task, most, task.get("row_s", ROW_BUDGET_S))
    if bench.rank == 0:
        emit(
            {
                "gpu": bench.gpu.name,
                "driver": gpu.driver_version(),
                "nccl": bench.nccl.version if bench.nccl else "",
            }
        )
    for request in requests:
        for row in _rows(bench, task, request):
            if bench.rank == 0:
                emit(row)
    bench.close()


def requests_of(task: dict[str, Any]) -> Iterator[plait.Request]:
    """Yields the task's requests, except empty ones."""
    for plait_type in task["types"]:
        for size_bytes in task["sizes"]:
            for name in task["collectives"]:
                request = request_for(
                    *(name, size_bytes, plait_type, task["op"]),
                    *(task["ranks"], task["root"], task["peer"]),
                    shape=task.get("counts", ""),
                )
                if request.count > 0:
                    yield request


def _rows(
    bench: BenchRank, task: dict[str, Any], request: plait.Request
) -> Iterator[dict[str, Any]]:
    """Yields a row for each variant that takes the request; the same variants on all ranks."""
    oracle = Oracle(request, task["seed"] + request.message_bytes() % 977)
    bench.load(oracle)
    nccl: dict[str, Any] = {}
    if bench.nccl is not None and Nccl.takes(request):
        call = partial(bench.nccl.call, request, bench.input, bench.output, bench.stream)
        nccl = _figures(bench, task, oracle, "nccl", call, bitwise=False)
    for name, params in task["ways"]:
        call = partial(
            bench.comm._core.enqueue, request, bench.input, bench.output, bench.stream, name, params
        )
        try:
            done_by, captured = bench.counted_as(call), bench.captured_as(call)
        except plait.UnsupportedError:
            if len(task["ways"]) == 1:
                raise
            continue
        row: dict[str, Any] = {
            "collective": request.collective,
            "size": request.message_bytes(),
            "count": request.count,
            "type": request.type,
            "op": request.op,
            "ranks": request.ranks,
            "kernel": done_by if captured == done_by else f"{done_by}, in graphs {captured}",
            "way": variant_of(name, params),
        }
        bitwise = sums_in_rank_order(bench.topology, request, done_by)
        row |= _figures(bench, task, oracle, "plait", call, bitwise) | nccl
        if nccl:
            for way in ("eager", "graph"):
                row[f"{way}_ratio"] = row[f"nccl_{way}_us"] / row[f"plait_{way}_us"]
        yield row


def _figures(
    bench: BenchRank, task: dict[str, Any], oracle: Oracle, library: str, call: Call, bitwise: bool
) -> dict[str, Any]:
    """Returns a library's columns: times, best busbw, wrong elements."""
    wrong = bench.wrong_after(call, oracle, bitwise) if task["check"] else 0
    eager_us = bench.eager_s(call) * 1e6
    graph_us = bench.graph_s(call, oracle.request.message_bytes()) * 1e6
    if task["check"]:  # some calls have another engine in a graph
        with bench.replayed(call) as replay:
            wrong += bench.wrong_after(replay, oracle, bitwise)
    busbw = bandwidth(oracle.request, min(eager_us, graph_us) / 1e6)["busbw"]
    said = {"eager_us": eager_us, "graph_us": graph_us, "busbw": busbw, "wrong": wrong}
    return {f"{library}_{name}": value for name, value in said.items()}


FIELDS = (
    *("collective", "size", "count", "type", "op", "ranks", "kernel", "way"),
    *("plait_eager_us", "plait_graph_us", "plait_busbw", "plait_wrong"),
    *("nccl_eager_us", "nccl_graph_us", "nccl_busbw", "nccl_wrong", "eager_ratio", "graph_ratio"),
)
