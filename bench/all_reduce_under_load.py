"""Large all_reduces while another process loads PCIe: corrected, direct-only, fixed share.

    torchrun --nproc-per-node 2 bench/all_reduce_under_load.py --sizes 512M,1G --csv rows.csv
    torchrun ... bench/all_reduce_under_load.py --seconds 2,6,4   # before, during, after

In the middle phase a child process copies between pinned host memory and all GPUs, both ways at
once. Rounds of a few eager calls take turns, of two ranks by copy engines, of more by kernels:
`corrected` (as plait would), `direct` (over the links alone) and `fixed` (the best share with PCIe
idle, held by hand), so that all three meet the same load. Every round's result is checked. Prints
GB/s (busbw) of each and what corrected is beside direct.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import result_rows
import torch
import torch.distributed as dist
from copy_under_load import PHASES, ROUND, Load, Tally

import plait
from plait.bench.sizes import parse_bytes


def kinds(ranks: int) -> dict[str, dict[str, Any]]:
    """How each kind is asked for."""
    strategy, best = ("rotation", 90) if ranks == 2 else ("tiled", 180)
    return {
        "corrected": {"strategy": strategy},
        "direct": {"strategy": strategy, "params": {"host_permille": 0}},
        "fixed": {"strategy": strategy, "params": {"host_permille": best}},
    }


class Work:
    """Buffers of one size, and what their sum is."""

    def __init__(self, size: int, rank: int, ranks: int) -> None:
        def data(of: int) -> torch.Tensor:
            made = torch.Generator(device="cuda").manual_seed(1000 + of)
            return torch.randn(size // 4, device="cuda", generator=made)

        self.size = size
        self.input, self.output = data(rank), torch.empty(size // 4, device="cuda")
        self.expected = sum((data(of) for of in range(1, ranks)), start=data(0))
        self.moved = size * 2 * (ranks - 1) // ranks

    def round(self, comm: plait.Communicator, options: dict[str, Any]) -> float:
        """Seconds of ROUND calls, of the slower rank. RuntimeError where a result is wrong."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.output.fill_(float("nan"))
        torch.cuda.synchronize()
        dist.barrier()
        begin.record()
        for _ in range(ROUND):
            comm.all_reduce(self.input, out=self.output, **options)
        end.record()
        end.synchronize()
        comm.check()
        if not torch.equal(self.output, self.expected):
            raise RuntimeError(f"wrong sum of {self.size} bytes, {options}")
        took = torch.tensor(begin.elapsed_time(end) / 1e3, dtype=torch.float64)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        return float(took)


def phase_rows(
    comm: plait.Communicator, works: list[Work], name: str, seconds: float
) -> list[dict[str, Any]]:
    """Rounds of all kinds and sizes in turn for so long, by rank 0's clock."""
    ways = kinds(comm.ranks)
    tallies = {(work.size, kind): Tally() for work in works for kind in ways}
    first: dict[int, list[float]] = {work.size: [] for work in works}
    end = time.perf_counter() + seconds
    going = torch.ones(1)
    while True:
        going[0] = float(time.perf_counter() < end)
        dist.broadcast(going, 0)
        if going[0] == 0:
            break
        for work in works:
            for kind, options in ways.items():
                took = work.round(comm, options)
                tallies[work.size, kind].add(work.moved, took)
                if kind == "corrected" and len(first[work.size]) < 8:
                    first[work.size].append(ROUND * work.moved / took / 1e9)
    rows = []
    for work in works:
        speeds = {kind: tallies[work.size, kind].gb_per_s() for kind in ways}
        corrected = tallies[work.size, "corrected"]
        rows.append(
            {"phase": name, "bytes": work.size}
            | {f"{kind}_gb_per_s": round(speed, 1) for kind, speed in speeds.items()}
            | {
                "beside_direct": round(speeds["corrected"] / speeds["direct"], 4),
                "worst_round_gb_per_s": round(work.moved / corrected.worst_s / 1e9, 1),
                "calls_of_each": ROUND * corrected.rounds,
                "first_rounds_gb_per_s": " ".join(f"{speed:.0f}" for speed in first[work.size]),
            }
        )
    return rows


def main() -> None:
    """Three phases, a table, perhaps a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="512M,1G")
    parser.add_argument("--seconds", default="2,6,4", help="before, during, after")
    parser.add_argument("--csv", default="")
    asked = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo")
    rows = []
    comm = plait.init()
    works = [Work(parse_bytes(word), rank, ranks) for word in asked.sizes.split(",")]
    for name, seconds in zip(PHASES, map(float, asked.seconds.split(",")), strict=True):
        loader = Load(list(range(ranks))) if name == "during" and rank == 0 else None
        dist.barrier()
        rows += phase_rows(comm, works, name, seconds)
        if loader is not None:
            print(f"# the load copied {loader.end()} GB/s, all ways together", flush=True)
    del comm
    dist.destroy_process_group()
    if rank != 0:
        return
    result_rows.show(rows)
    if asked.csv:
        result_rows.keep(asked.csv, rows)


if __name__ == "__main__":
    main()
