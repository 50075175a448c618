"""Times two builds in turn on one machine, to show what a change costs: native and under NCCL.

OLD and NEW are folders that `python -m bench stage` made of the builds: native rows come from each
build's own `plait bench`, rows under NCCL from a PyTorch job with each build's drop-in. A row's
figure is the median of the rounds. Prints a row per size and variant: microseconds of both in
graphs and eager, and new / old. Status 1: a row is slower by more than --bar, or a result was
wrong.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.lib import options, variants
from bench.lib.jobs import output_of, torchrun
from plait.bench.sizes import parse_bytes, sizes

Key = tuple[str, str, int, str]  # collective, type, bytes, variant
Found = dict[Key, dict[str, list[float]]]  # of both builds, by figure: one value a round
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")  # of rank()


def native(build: Path, given: SimpleNamespace) -> Iterator[tuple[Key, dict[str, float]]]:
    """Yields rows of the build's own `plait bench`."""
    env = {**os.environ, "PYTHONPATH": str(build)}
    for collective in given.collectives.split(","):
        command = [sys.executable, "-m", "plait", "bench", collective, "--gpus", "--json"]
        command += ["-g", str(given.gpus), "-b", given.least, "-e", given.most]
        command += ["-f", str(given.factor), "-d", "fp32,bf16"]
        for row in json.loads(output_of(command, env, given.limit))["results"]:
            names = {"graph_us": "plait_graph_us", "eager_us": "plait_eager_us"}
            figures = {name: row[key] for name, key in (names | {"wrong": "plait_wrong"}).items()}
            yield (collective, row["type"], row["size"], "native"), figures


def under_nccl(build: Path, given: SimpleNamespace) -> Iterator[tuple[Key, dict[str, float]]]:
    """Yields rows of rank() under torchrun, with the build's drop-in preloaded."""
    env = {**os.environ, "LD_PRELOAD": str(build / "plait" / "libplait_nccl.so")}
    command = torchrun(given.gpus, "bench", "old-and-new", "--least", given.least)
    command += ["--most", given.most, "--factor", str(given.factor)]
    command += ["--collectives", given.collectives]
    for line in output_of(command, env, given.limit).splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            key = (row["collective"], "bf16", row["bytes"], "under NCCL")
            yield key, {name: row[name] for name in ("graph_us", "eager_us", "wrong")}


VARIANTS = {"native": native, "under-nccl": under_nccl}


def rank(given: SimpleNamespace) -> None:
    """Runs a rank: each collective at each size, eager and in a graph. Rank 0 prints JSON lines."""
    import torch
    import torch.distributed as dist

    from bench.lib.torch_jobs import elapsed_ms, join

    join()
    me, ranks = dist.get_rank(), dist.get_world_size()
    calls = {
        "all_reduce": lambda whole, part: dist.all_reduce(whole),
        "all_gather": dist.all_gather_into_tensor,
        "reduce_scatter": lambda whole, part: dist.reduce_scatter_tensor(part, whole),
    }

    def us_of(call: Any, repeat: int, calls: int) -> float:
        def repeated() -> None:
            for _ in range(repeat):
                call()

        times = (elapsed_ms(repeated, before=dist.barrier) for _ in range(9))
        return statistics.median(times) * 1e3 / repeat / calls

    limits = (parse_bytes(given.least), parse_bytes(given.most))
    for collective in given.collectives.split(","):
        for nbytes in sizes(*limits, given.factor, 0):
            whole = torch.ones(nbytes // 2 // ranks * ranks, device="cuda", dtype=torch.bfloat16)
            part = torch.full((len(whole) // ranks,), me + 1.0, device="cuda", dtype=whole.dtype)
            call = partial(calls[collective], whole, part)
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
            if me == 0:
                print(json.dumps(row), flush=True)
            del graph
    dist.destroy_process_group()


FIGURES = ("old_graph_us", "new_graph_us", "old_eager_us", "new_eager_us")
HEAD = ["collective", "type", "bytes", "way", *FIGURES, "graph_ratio", "eager_ratio", "wrong"]


def medians(found: Found, bar: float) -> tuple[list[list[Any]], int]:
    """Returns rows with the columns of HEAD, and the number of rows that are wrong or slower than
    the bar allows."""
    made: list[list[Any]] = []
    bad = 0
    for key, figures in found.items():
        values = [statistics.median(figures[column]) for column in FIGURES]
        ratios = [values[1] / values[0] if values[0] > 0 else 1.0, values[3] / values[2]]
        wrong = sum(figures["new_wrong"])
        made.append([*key, *(f"{one:.3f}" for one in values + ratios), int(wrong)])
        bad += wrong > 0 or max(ratios) > 1 + bar
    return made, bad


def run(given: SimpleNamespace) -> int:
    """Runs both builds in turn, or rank() in a rank. Returns 1 if the new build is wrong, or slower
    than the bar allows. The file is written after each round, so an interrupted run loses
    little."""
    if "RANK" in os.environ:
        rank(given)
        return 0
    if not (given.old and given.new):
        raise SystemExit("wanted two folders of builds, OLD and NEW; see python -m bench stage")
    asked = given.variants.split(",")
    options.check("--variants", asked, VARIANTS)
    found: Found = defaultdict(lambda: defaultdict(list))
    for turn, name in variants.in_turn(("old", "new"), given.rounds):
        for variant in asked:
            for key, figures in VARIANTS[variant](getattr(given, name), given):
                for figure, value in figures.items():
                    found[key][f"{name}_{figure}"].append(value)
        if name == ("old" if turn % 2 else "new"):
            made, bad = medians(found, given.bar)
            if given.csv:
                with given.csv.open("w", newline="") as file:
                    said = f"{' '.join(sys.argv)}; after {turn + 1} of {given.rounds}"
                    file.write(f"# command: {said}\n")
                    csv.writer(file).writerows([HEAD, *made])
    for row in [HEAD, *made]:
        print(*row, sep=",")
    print(f"{len(made)} rows, {bad} slower by more than {given.bar:.0%} or wrong")
    return 1 if bad else 0
