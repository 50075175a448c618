"""Times PyTorch's collectives on host memory over plait and gloo, with busy processes or without.

Both libraries have a group of the same processes, and their turns alternate. A turn lasts as long
as its slowest rank. Prints the median over turns, in us a call. `load`: number of processes that
only compute. `bound`: each rank stays on one core, as under mpirun. A row with plait_us above 1.1
times gloo_us is marked, and any marked row makes the status 1.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from bench.lib import options, rows, variants
from plait.bench.sizes import parse_bytes
from plait.outputs import human_bytes

TURNS, TURN_S = 7, 0.05
SLOWER = 1.1
COLUMNS = ("call", "bytes", "ranks", "load", "bound", "gloo_us", "plait_us", "ratio")
FORK = multiprocessing.get_context("fork")
Call = Callable[[], Any]


def calls_of(name: str, nbytes: int, rank: int, ranks: int, group: Any) -> Call:
    """Returns a function that makes one call. nbytes: size of the larger buffer, as in plait
    bench."""
    count = max(nbytes // 4, 1)
    part = max(count // ranks, 1)
    whole, given, small = torch.ones(part * ranks), torch.ones(part * ranks), torch.ones(part)
    parts, peer = list(whole.chunk(ranks)), rank ^ 1
    mine, theirs = torch.ones(count), torch.empty(count)

    def send_recv() -> None:
        if rank % 2 == 0:
            dist.send(mine, peer, group=group)
            dist.recv(theirs, peer, group=group)
        else:
            dist.recv(theirs, peer, group=group)
            dist.send(mine, peer, group=group)

    gathered, scattered = (parts, parts) if rank == 0 else (None, None)
    return {
        "all_reduce": lambda: dist.all_reduce(mine, dist.ReduceOp.MAX, group=group),
        "broadcast": lambda: dist.broadcast(mine, 0, group=group),
        "reduce": lambda: dist.reduce(mine, 0, dist.ReduceOp.MAX, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, small, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(
            small, whole, dist.ReduceOp.MAX, group=group
        ),
        "gather": lambda: dist.gather(small, gathered, 0, group=group),
        "scatter": lambda: dist.scatter(small, scattered, 0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(whole, given, group=group),
        "async_all_reduce": lambda: dist.all_reduce(
            mine, dist.ReduceOp.MAX, group=group, async_op=True
        ).wait(),
        "barrier": lambda: dist.barrier(group=group),
        "send_recv": send_recv,
    }[name]


CALLS = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter"),
    *("all_to_all", "async_all_reduce", "barrier", "send_recv"),
)


class Gate:
    """A barrier of the ranks between turns, by neither measured library."""

    def __init__(self, ranks: int) -> None:
        self.barrier, self.times = FORK.Barrier(ranks), FORK.Array("d", ranks)

    def slowest(self, rank: int, seconds: float) -> float:
        """Returns the largest `seconds` of all ranks."""
        self.times[rank] = seconds
        self.barrier.wait(300)
        found = max(self.times)
        self.barrier.wait(300)
        return found


def timed(call: Call, count: int, gate: Gate, rank: int) -> float:
    """Returns the seconds a call of the slowest rank."""
    gate.barrier.wait(300)
    began = time.perf_counter()
    for _ in range(count):
        call()
    return gate.slowest(rank, time.perf_counter() - began) / count


def interleaved(both: list[Call], gate: Gate, rank: int) -> list[float]:
    """Returns the medians of both libraries, in turns of about TURN_S."""
    counts = []
    for call in both:
        timed(call, 2, gate, rank)
        counts.append(min(1000, max(1, round(TURN_S / timed(call, 2, gate, rank)))))
    turns = {
        k: lambda call=call, count=count: timed(call, count, gate, rank)
        for k, (call, count) in enumerate(zip(both, counts, strict=True))
    }
    return list(variants.medians(variants.taken(turns, TURNS)).values())


def run_rank(rank: int, ranks: int, job: dict[str, Any], store: str, gate: Gate, pipe: Any) -> None:
    """Runs all calls and sizes of a job. Rank 0 sends each row through the pipe."""
    torch.set_num_threads(1)
    if job["bound"]:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    limit = timedelta(seconds=300)
    where = {"init_method": f"file://{store}", "rank": rank, "world_size": ranks}
    dist.init_process_group("gloo", timeout=limit, **where)
    groups = [dist.new_group(backend=name, timeout=limit) for name in ("gloo", "plait")]
    for name in job["calls"]:
        for nbytes in job["bytes"] if name != "barrier" else [0]:
            both = [calls_of(name, nbytes, rank, ranks, group) for group in groups]
            gloo, ours = interleaved(both, gate, rank)
            if rank == 0:
                pipe.send((name, nbytes, gloo * 1e6, ours * 1e6))
    pipe.close()
    os._exit(0)


def compute() -> None:
    """Computes until the process is killed."""
    while True:
        sum(range(10_000))


@contextmanager
def busy(load: int) -> Iterator[None]:
    """Starts `load` processes that only compute, and ends them on exit."""
    others = [FORK.Process(target=compute, daemon=True) for _ in range(load)]
    for one in others:
        one.start()
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.join()


def rows_of(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the rows of one number of ranks, load and binding."""
    ranks = job["ranks"]
    with tempfile.TemporaryDirectory() as folder, busy(job["load"]):
        gate = Gate(ranks)
        ours, theirs = FORK.Pipe(duplex=False)  # busy processes do not hold it open
        processes = [
            FORK.Process(target=run_rank, args=(r, ranks, job, f"{folder}/store", gate, theirs))
            for r in range(ranks)
        ]
        for process in processes:
            process.start()
        theirs.close()
        try:
            while True:
                name, nbytes, gloo_us, plait_us = ours.recv()
                facts = (name, nbytes, ranks, job["load"], "yes" if job["bound"] else "no")
                figures = (round(gloo_us, 2), round(plait_us, 2), round(plait_us / gloo_us, 3))
                yield dict(zip(COLUMNS, (*facts, *figures), strict=True))
        except EOFError:
            pass
        finally:
            for process in processes:
                process.join(30)
                process.kill()


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def run(given: SimpleNamespace) -> int:
    """Returns 1 if plait was slower in a row."""
    sizes = [parse_bytes(word) for word in given.bytes.split(",")]
    bounds = {"yes": [True], "no": [False], "both": [False, True]}[given.bound]
    calls = (given.calls or ",".join(CALLS)).split(",")
    options.check("--calls", calls, CALLS)
    slower, found = 0, []
    jobs = product(numbers(given.ranks), bounds, numbers(given.load))
    for ranks, bound, load in jobs:
        job = {"ranks": ranks, "load": load, "bound": bound, "bytes": sizes, "calls": calls}
        for row in rows_of(job):
            found.append(row)
            is_slower = row["ratio"] > SLOWER
            slower += is_slower
            size = human_bytes(row["bytes"])
            print(
                f"{row['call']:<17} {size:>8} ranks {ranks} load {load:>2} "
                f"bound {row['bound']:<3} gloo {row['gloo_us']:>10.1f} us  plait "
                f"{row['plait_us']:>10.1f} us{'  SLOWER' if is_slower else ''}",
                flush=True,
            )
    rows.keep(given.csv, found, COLUMNS)
    print(f"{len(found)} rows, plait more than {SLOWER} times slower in {slower}")
    return 1 if slower else 0
