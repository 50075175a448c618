"""Do calls ever stand still? Thousands of calls, an event after each; the distribution of the gaps.

    torchrun --nproc-per-node 2 bench/stalls.py                # NCCL
    plait run -- torchrun --nproc-per-node 2 bench/stalls.py   # plait

Rank 0 prints a JSON line a collective: median, 99th percentile and longest gap in microseconds over
all ranks, and how many gaps were longer than ten medians.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable

import torch
import torch.distributed as dist


def gaps_us(call: Callable[[], object], calls: int) -> list[float]:
    """Microseconds between the ends of calls that follow each other."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e3 for a, b in itertools.pairwise(marks)]


def main() -> None:
    """All collectives, each `--calls` calls in `--rounds` rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    world = dist.get_world_size()
    part, whole = torch.ones(4 << 20, device="cuda"), torch.empty(world << 22, device="cuda")
    small = torch.ones(1 << 18, device="cuda")
    ways: dict[str, Callable[[], object]] = {
        "all_gather 16M a rank": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter 16M a rank": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_reduce 1M": lambda: dist.all_reduce(small),
        "all_reduce 16M": lambda: dist.all_reduce(part),
    }
    for name, call in ways.items():
        gaps_us(call, 20)
        found = []
        for _ in range(given.rounds):
            dist.barrier(device_ids=[local])
            found += gaps_us(call, given.calls)[5:]
        found.sort()
        middle = found[len(found) // 2]
        late = sum(gap > 10 * middle for gap in found)
        worst = torch.tensor([found[-1], found[len(found) * 99 // 100], late], device="cuda")
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            row = {
                "by": "plait" if "plait" in os.environ.get("LD_PRELOAD", "") else "nccl",
                "what": name,
                "ranks": world,
                "calls": len(found),
                "median_us": round(middle, 2),
                "p99_us": round(float(worst[1]), 2),
                "longest_us": round(float(worst[0]), 2),
                "longer_than_10_medians": int(worst[2]),
            }
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
