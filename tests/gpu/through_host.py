"""Checks calls through host memory on real GPUs: random calls, eager and in graphs, bit for bit.

    python3 tests/gpu/through_host.py --calls 10000

Two ranks, a process and a GPU each, that do not address each other (NCCL_P2P_DISABLE=1): plait's
own communicators, then NCCL's calls under `plait run --bitwise`. Every collective, type and
reduction, out of place and in place, at random sizes. Results have the bits of the reference in
rank order. Prints a JSON line for each entry point. Exit status 1 = a result was wrong, a call took
a link between GPUs, or the drop-in forwarded a call.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from gpu_programs import in_place_offsets

import plait
from bench.lib.drop_in import served
from plait import launch, run
from plait.arrays import DTYPE_OF_TYPE
from plait.bench.gpu_ranks import BenchRank
from plait.bench.nccl import COLLECTIVES, OPS, TYPES, Nccl
from plait.bench.oracle import Oracle
from plait.bench.reductions import REDUCING
from plait.launch import Emit

FOLDER = Path(__file__).resolve().parent
FLOATS = ("fp16", "fp32", "fp64", "bf16", "fp8e4m3", "fp8e5m2")
WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
BIT_OPS = ("bit_and", "bit_or", "bit_xor")
MOST_MIB = 8.0
GRAPH_CALLS = 2


def random_requests(ranks: int, calls: int, seed: int, most_mib: float) -> list[plait.Request]:
    """Returns the same requests on every rank; sizes are uniform in their logarithm."""
    choose = random.Random(seed)
    found: list[plait.Request] = []
    while len(found) < calls:
        name = choose.choice([one for one in COLLECTIVES if one != "copy"])
        kind = choose.choice(FLOATS + WHOLE)
        op = "sum"
        if name in REDUCING:
            op = choose.choice((*OPS, *BIT_OPS) if kind in WHOLE else tuple(OPS))
            if op == "avg" and kind in WHOLE:
                op = "max"
        most = most_mib * (1 << 20) / DTYPE_OF_TYPE[kind].itemsize
        count = int(math.exp(choose.uniform(0, math.log(most))))
        if name not in ("all_reduce", "broadcast", "reduce", "send_recv"):
            count = max(1, count // ranks)
        found.append(plait.Request(name, count, kind, op, ranks, choose.randrange(ranks)))
    return found


def takes_nccl(request: plait.Request) -> bool:
    """Whether NCCL has the call. Sums of fp8 differ by NCCL's version."""
    known = Nccl.takes(request) and request.type in TYPES
    return known and not (request.collective in REDUCING and request.type.startswith("fp8"))


def wrong_in_place(bench: BenchRank, call: Any, oracle: Oracle) -> int:
    """Makes the call in NCCL's in-place layout; returns this rank's wrong elements."""
    request = oracle.request
    offsets = in_place_offsets(request, bench.rank)
    if offsets is None:
        return 0
    at = (bench.output + offsets[0], bench.output + offsets[1])
    source = oracle.input(bench.rank)
    bench.gpu.synchronize(bench.stream)
    bench.gpu.copy(at[0], source.ctypes.data, source.nbytes)
    bench.comm.barrier()
    call(*at)
    bench.gpu.synchronize(bench.stream)
    bench.comm.check()
    kind = DTYPE_OF_TYPE[request.type]
    output = np.empty(request.output_bytes(bench.rank) // kind.itemsize, kind)
    bench.gpu.copy(output.ctypes.data, at[1], output.nbytes)
    return oracle.wrong(bench.rank, output, bitwise=True) if output.size else 0


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """A rank: makes the task's calls by plait, or by NCCL's functions, and compares results."""
    by_nccl = task["entry"] == "nccl"
    ranks = int(os.environ["WORLD_SIZE"])
    requests = random_requests(ranks, task["calls"], task["seed"], task["most_mib"])
    most = int(task["most_mib"] * (1 << 20) * 2) + (1 << 16)
    options = {"topology": "", "masks": [], "sm_budget": 0, "against": "nccl" if by_nccl else ""}
    bench = BenchRank(options, most)
    wrong: list[str] = []
    checked = 0
    for number, request in enumerate(requests):
        if by_nccl and not takes_nccl(request):
            continue
        oracle = Oracle(request, task["seed"] * 7919 + number)
        bench.load(oracle)

        def enqueue(source: int, output: int, request: plait.Request = request) -> None:
            if by_nccl and bench.nccl is not None:
                bench.nccl.call(request, source, output, bench.stream)
            else:
                bench.comm._core.enqueue(request, source, output, bench.stream)

        call = partial(enqueue, bench.input, bench.output)
        found = {"eager": bench.wrong_after(call, oracle)}
        with bench.replayed(call, GRAPH_CALLS) as replay:
            found["graph"] = bench.wrong_after(replay, oracle)
        found["in place"] = wrong_in_place(bench, enqueue, oracle)
        checked += len(found)
        wrong += [f"{how}, call {number}: {request}: {off}" for how, off in found.items() if off]
    counters = bench.comm.counters()
    row = {"entry": task["entry"], "rank": bench.rank, "checked": checked, "wrong": wrong[:20]}
    row |= {"by": sorted(counters.calls_of), "paths": sorted(counters.bytes_of_path)}
    emit(row | {"served": served() if by_nccl else []})
    bench.close()


def run_ranks(args: argparse.Namespace, entry: str) -> bool:
    """Runs the ranks of an entry point; prints the rows and returns whether all is right."""
    task = {"entry": entry, "calls": args.calls, "seed": args.seed, "most_mib": args.most_mib}
    job = launch.start("through_host:rank_main", args.ranks, task, folder=str(FOLDER))
    rows = list(job.lines())
    statuses = job.wait()
    good = statuses == [0] * args.ranks and len(rows) == args.ranks
    for row in rows:
        links = [path for path in row["paths"] if path.startswith(("nvlink", "pcie"))]
        forwarded = row["served"][1] if row["served"] else 0
        is_served = entry != "nccl" or (bool(row["served"]) and row["served"][0] > 0)
        ok = not row["wrong"] and not links and forwarded == 0 and is_served and row["checked"] > 0
        print(json.dumps({**row, "ok": ok}), flush=True)
        good &= ok
    if not good:
        print(f"{entry}: failed; statuses {statuses}", file=sys.stderr)
    return good


def main() -> int:
    """Runs both entry points; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-mib", type=float, default=MOST_MIB)
    parser.add_argument("--entry", choices=("both", "native", "nccl"), default="both")
    parser.add_argument("--under-plait-run", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ |= {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    os.environ.setdefault("PLAIT_TUNING", "none")
    if args.under_plait_run:
        return 0 if run_ranks(args, "nccl") else 1
    good = args.entry == "nccl" or run_ranks(args, "native")
    if args.entry != "native":
        library = run.find_nccl()
        named = {"PLAIT_NCCL_LIB": str(library)} if library is not None else {}
        words = [sys.executable, "-m", "plait", "run", "--via", "audit", "--bitwise", "--"]
        words += [sys.executable, __file__, "--under-plait-run", *sys.argv[1:]]
        good &= subprocess.run(words, env={**os.environ, **named}).returncode == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
