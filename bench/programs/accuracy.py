"""Measures the error of 16-bit sums by NCCL and plait, and checks that plait's bits never change.

Both libraries sum the same normal data in the same processes; errors are distances from float64
sums. plait's results must be equal bit for bit between kernels, in place and out of place, eager
and replayed from a graph, to results on host memory, and to the first part of the largest message's
result. Exit status 1: bits differ, or plait's largest error is above NCCL's.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

import plait
from bench.lib import rows
from bench.lib.jobs import Ranks
from bench.lib.oracle import POISON, ExpectedCall, HostArrays, TorchArrays, size_of
from plait.bench import engines
from plait.launch import Emit

ENGINES = (*engines.names("all_reduce"), "direct")  # all sum in rank order
STRATEGIES = ("one_shot", "two_shot", "direct")  # for host memory
COLUMNS = (
    *("ranks", "type", "bytes", "nccl_max_error", "nccl_rms_error"),
    *("plait_max_error", "plait_rms_error", "max_ratio", "ways", "differing"),
)


class NcclAllReduce:
    """all_reduce by torch.distributed in the same processes."""

    def __init__(self, task: dict[str, Any], rank: int, ranks: int, on: TorchArrays) -> None:
        import torch.distributed as dist

        self.dist = dist
        dist.init_process_group(
            "nccl",
            init_method=f"file://{task['folder']}/store",
            rank=rank,
            world_size=ranks,
            device_id=on.device,
        )

    def all_reduce(self, source: Any) -> Any:
        """Returns the sum in a new tensor."""
        output = source.clone()
        self.dist.all_reduce(output)
        return output

    def close(self) -> None:
        self.dist.destroy_process_group()


class AccuracyRank:
    """A rank's data and communicators."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.on_gpu = not task["host"]
        self.on: HostArrays = HostArrays()
        self.nccl: NcclAllReduce | None = None
        if self.on_gpu:
            self.on = gpu = TorchArrays(f"cuda:{self.rank}")
            self.nccl = NcclAllReduce(task, self.rank, self.ranks, gpu)
        self.comm = plait.init(device=self.rank if self.on_gpu else -1)

    def replayed(self, source: Any, output: Any) -> None:
        """Replays the call from a graph, twice."""
        torch = self.on.xp
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.comm.all_reduce(source, out=output)
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()

    def eager(self, source: Any, output: Any, strategy: str = "") -> None:
        self.comm.all_reduce(source, out=output, strategy=strategy)

    def in_place(self, source: Any, output: Any) -> None:
        self.on.signed(output)[:] = self.on.signed(source)
        self.comm.all_reduce(output, out=output)

    def calls(self) -> Iterator[tuple[str, Callable[[Any, Any], Any]]]:
        """Yields names and calls that must all produce the same bits."""
        yield "eager", self.eager
        yield "in place", self.in_place
        if self.on_gpu:
            yield "graph", self.replayed
        for name in ENGINES if self.on_gpu else STRATEGIES:
            yield name, functools.partial(self.eager, strategy=name)

    def errors(self, output: Any, exact: Any) -> tuple[float, float]:
        """Returns (largest, root mean square) distance from the exact sum."""
        off = self.on.cast(output, "fp64") - exact
        number = self.on.number
        return number(abs(off).max()), number((off * off).mean()) ** 0.5

    def bits(self, source: Any, kind: str) -> tuple[dict[str, bytes], Any]:
        """Returns the bits of each call by name, and the output of the first."""
        found: dict[str, bytes] = {}
        first = None
        for name, call in self.calls():
            output = self.on.view(self.on.slab(len(source) * size_of(kind)), 0, len(source), kind)
            self.on.fill(output, POISON)
            try:
                call(source, output)
            except plait.UnsupportedError:
                continue  # refused at this size, on all ranks alike
            self.on.finish()
            self.comm.check() if self.on_gpu else None
            found[name] = self.on.on_host(output, kind).tobytes()
            first = output if first is None else first
        host = self.on.on_host(source, kind)
        found["host memory"] = self.comm.all_reduce(host, out=np.empty_like(host)).tobytes()
        return found, first

    def rows(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yields rows from the largest size down: smaller results must equal its first part."""
        size = self.task["most_bytes"]
        request = plait.Request("all_reduce", size // size_of(kind), kind, "sum", self.ranks)
        case = ExpectedCall(self.on, request, self.task["seed"])
        inputs = [case.drawn(rank) for rank in range(self.ranks)]
        largest = b""
        while size >= self.task["least_bytes"]:
            count = size // size_of(kind)
            source = inputs[self.rank][:count]
            exact = sum(self.on.cast(one[:count], "fp64") for one in inputs)
            found, output = self.bits(source, kind)
            largest = largest or found["eager"]
            differing = [name for name, bits in found.items() if bits != largest[:size]]
            ours = self.errors(output, exact)
            theirs = self.errors(self.nccl.all_reduce(source), exact) if self.nccl else (0.0, 0.0)
            ratio = ours[0] / theirs[0] if theirs[0] else 0.0
            calls, wrong = " ".join(found), " ".join(differing)
            values = (self.ranks, kind, size, *theirs, *ours, round(ratio, 4), calls, wrong)
            yield dict(zip(COLUMNS, values, strict=True))
            size //= 4


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """Runs all types and sizes. Rank 0 emits the rows, every rank its differences."""
    rank = AccuracyRank(task)
    for kind in ("bf16", "fp16"):
        for row in rank.rows(kind):
            if rank.rank == 0 or row["differing"]:
                emit({"rank": rank.rank, **row})
    rank.comm.barrier()
    if rank.nccl:
        rank.nccl.close()


def run(given: SimpleNamespace) -> int:
    """Runs the ranks and writes the table."""
    found, faults = [], []
    with tempfile.TemporaryDirectory(prefix="plait-accuracy-") as folder:
        task = {
            "most_bytes": int(given.most_mib * (1 << 20)),
            "least_bytes": int(given.least_kib * (1 << 10)),
            "seed": given.seed,
            "host": given.host,
            "folder": folder,
        }
        job = Ranks("accuracy", given.ranks, task, given.deadline)
        for row in job.lines():
            if "bytes" not in row:
                faults.append(f"rank {row['rank']}: {row.get('error')}")
                continue
            what = f"rank {row['rank']} {row['type']} of {row['bytes']} bytes"
            if row["differing"]:
                faults.append(f"{what}: other bits by {row['differing']}")
            if row["max_ratio"] > 1:
                faults.append(f"{what}: error {row['max_ratio']} times NCCL's")
            if row["rank"] == 0:
                found.append({name: row[name] for name in COLUMNS})
                print(",".join(str(value) for value in found[-1].values()), flush=True)
    rows.keep(given.csv, found, COLUMNS)
    said = {"rows": len(found), "faults": faults, "statuses": job.statuses}
    print(json.dumps(said), flush=True)
    return 0 if found and not faults and job.well() else 1
