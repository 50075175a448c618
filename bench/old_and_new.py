"""Times two builds in turn on one machine, to show what a change costs: native and under NCCL.

    python3 bench/old_and_new.py --builds OLD NEW --gpus 2 [--collectives all_reduce,all_gather]
        [--least 1K --most 1G] [--rounds 3] [--variants native,under-nccl] [--csv rows.csv]

OLD and NEW are build folders with `bench_gpu` and, for under-nccl, `shims/libplait_nccl.so`.
Each round runs both builds, in the other order each time. A row's figure is the median of the
rounds. Prints a row per size and variant: microseconds of both in graphs and eager, and new / old.
Status 1: a row is slower by more than --bar, or a result was wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from jobs import run_job

from plait.bench.sizes import parse_bytes

Key = tuple[str, str, int, str]  # collective, type, bytes, variant
Found = dict[Key, dict[str, list[float]]]  # of both builds, by figure: one value a round


def ended(found: tuple[str, str, str], what: str) -> str:
    """Returns the output of a job; ends the program if the job failed."""
    output, said, why = found
    if why:
        raise SystemExit(f"{what}: {why}\n{said[-2000:]}")
    return output


def native(build: Path, args: argparse.Namespace) -> Iterator[tuple[Key, dict[str, float]]]:
    """Yields rows of bench_gpu; of several variants of a call the fastest."""
    for collective in args.collectives.split(","):
        with tempfile.NamedTemporaryFile("r", suffix=".csv") as rows:
            command = [str(build / "bench_gpu"), "--gpus", str(args.gpus), "--eager"]
            command += ["--collective", collective, "--types", "fp32,bf16"]
            command += ["--min", str(parse_bytes(args.least)), "--max", str(parse_bytes(args.most))]
            command += ["--factor", str(args.factor), "--csv", rows.name]
            command += [] if args.threads else ["--processes"]
            ended(run_job(command, os.environ, args.limit), " ".join(command))
            fastest: dict[Key, dict[str, float]] = {}
            for name, _, _, kind, count, _, _, *figures, _ in csv.reader(rows):
                key = (name, kind, int(count), "native")
                row = dict(zip(("graph_us", "eager_us", "wrong"), map(float, figures), strict=True))
                if key not in fastest or row["graph_us"] < fastest[key]["graph_us"]:
                    fastest[key] = row
            yield from fastest.items()


def under_nccl(build: Path, args: argparse.Namespace) -> Iterator[tuple[Key, dict[str, float]]]:
    """Yields rows of program() under torchrun, with the build's drop-in preloaded."""
    env = {**os.environ, "LD_PRELOAD": str(build / "shims" / "libplait_nccl.so")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += [str(args.gpus), __file__, "--least", args.least, "--most", args.most]
    command += ["--factor", str(args.factor), "--collectives", args.collectives]
    for line in ended(run_job(command, env, args.limit), " ".join(command)).splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            key = (row["collective"], "bf16", row["bytes"], "under NCCL")
            yield key, {name: row[name] for name in ("graph_us", "eager_us", "wrong")}


VARIANTS = {"native": native, "under-nccl": under_nccl}


def program(args: argparse.Namespace) -> None:
    """Runs a rank: each collective at each size, eager and in a graph. Rank 0 prints JSON lines."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    variants = {
        "all_reduce": lambda whole, part: dist.all_reduce(whole),
        "all_gather": dist.all_gather_into_tensor,
        "reduce_scatter": lambda whole, part: dist.reduce_scatter_tensor(part, whole),
    }

    def us_of(call: Callable[[], None], repeat: int, calls: int) -> float:
        found = []
        for _ in range(9):
            dist.barrier()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(repeat):
                call()
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end) * 1e3 / repeat / calls)
        return statistics.median(found)

    for collective in args.collectives.split(","):
        nbytes = parse_bytes(args.least)
        while nbytes <= parse_bytes(args.most):
            whole = torch.ones(nbytes // 2 // ranks * ranks, device="cuda", dtype=torch.bfloat16)
            part = torch.full((len(whole) // ranks,), rank + 1.0, device="cuda", dtype=whole.dtype)
            call = partial(variants[collective], whole, part)
            call()
            # Inputs are ones for sums, else the rank's number.
            wanted = torch.full_like(whole, ranks).view(ranks, -1)
            if collective == "all_gather":
                wanted = wanted * 0 + torch.arange(1, ranks + 1, device="cuda")[:, None]
            found = part if collective == "reduce_scatter" else whole.view(ranks, -1)
            wrong = int((found != (wanted[0] if found is part else wanted)).sum())
            whole.zero_()
            graph_of = 20 if nbytes <= 16 << 20 else 2
            repeat = max(2, min(50, (256 << 20) // nbytes))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(graph_of):
                    call()
            row = {"collective": collective, "bytes": nbytes, "wrong": wrong}
            row |= {"graph_us": us_of(graph.replay, repeat, graph_of)}
            row |= {"eager_us": us_of(call, repeat, 1)}
            if rank == 0:
                print(json.dumps(row), flush=True)
            del graph
            nbytes *= args.factor
    dist.destroy_process_group()


FIGURES = ("old_graph_us", "new_graph_us", "old_eager_us", "new_eager_us")
HEAD = ["collective", "type", "bytes", "way", *FIGURES, "graph_ratio", "eager_ratio", "wrong"]


def medians(found: Found, bar: float) -> tuple[list[list[Any]], int]:
    """Returns rows with the columns of HEAD, and the number of rows that are wrong or slower than
    the bar allows."""
    rows: list[list[Any]] = []
    bad = 0
    for key, figures in found.items():
        values = [statistics.median(figures[column]) for column in FIGURES]
        ratios = [values[1] / values[0] if values[0] > 0 else 1.0, values[3] / values[2]]
        wrong = sum(figures["new_wrong"])
        rows.append([*key, *(f"{one:.3f}" for one in values + ratios), int(wrong)])
        bad += wrong > 0 or max(ratios) > 1 + bar
    return rows, bad


def compare(args: argparse.Namespace) -> int:
    """Runs both builds in turn. Returns 1 if the new one is wrong, or slower than the bar allows.
    The file is written after each round, so an interrupted run loses little."""
    found: Found = defaultdict(lambda: defaultdict(list))
    builds = {"old": args.builds[0], "new": args.builds[1]}
    for turn in range(args.rounds):
        for name in sorted(builds, reverse=turn % 2 == 0):
            for source in [VARIANTS[variant] for variant in args.variants.split(",")]:
                for key, figures in source(builds[name], args):
                    for figure, value in figures.items():
                        found[key][f"{name}_{figure}"].append(value)
        rows, bad = medians(found, args.bar)
        if args.csv:
            with open(args.csv, "w", newline="") as file:
                file.write(f"# command: {' '.join(sys.argv)}; after {turn + 1} of {args.rounds}\n")
                csv.writer(file).writerows([HEAD, *rows])
    for row in [HEAD, *rows]:
        print(*row, sep=",")
    print(f"{len(rows)} rows, {bad} slower by more than {args.bar:.0%} or wrong")
    return 1 if bad else 0


def main() -> int:
    """Runs compare(), or program() as a rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--builds", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--threads", action="store_true", help="ranks as threads of a process")
    parser.add_argument(
        "--variants",
        default="native",
        help="native, under-nccl (PyTorch over the drop-in), or both",
    )
    parser.add_argument("--collectives", default="all_reduce,all_gather,reduce_scatter")
    parser.add_argument("--least", default="1K", help="bytes, as in 64K, 64M or 1G")
    parser.add_argument("--most", default="1G", help="bytes")
    parser.add_argument("--factor", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds of a build's one run")
    parser.add_argument("--bar", type=float, default=0.02)
    parser.add_argument("--csv", default="")
    args = parser.parse_args()
    if "RANK" in os.environ:
        program(args)
        return 0
    if not args.builds:
        parser.error("--builds: wanted two build folders, OLD and NEW")
    if args.rounds < 1:
        parser.error(f"--rounds: wanted 1 at least, found {args.rounds}")
    for variant in args.variants.split(","):
        if variant not in VARIANTS:
            parser.error(f"--variants: wanted {' or '.join(VARIANTS)}, found {variant!r}")
    return compare(args)


if __name__ == "__main__":
    sys.exit(main())
