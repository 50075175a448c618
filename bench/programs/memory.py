"""Measures the memory that communicators take of each GPU, by NCCL alone and with the drop-in.

The program makes process groups of all ranks one after the other, each with an all_reduce of 1 MiB,
then one with an all_reduce of 256 MiB, which allocates its large arena. Rank 0 prints a JSON line a
step: MB of its GPU in use since the start, while new communicators stay on NCCL and while they
attach. No other program may use the GPU meanwhile.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import torch
import torch.distributed as dist

from bench.lib.drop_in import leave_new, served
from bench.lib.torch_jobs import join

MIB = 1 << 20


def used_mb() -> float:
    """Returns the MB of this rank's GPU in use by all programs."""
    torch.cuda.synchronize()
    dist.barrier()
    free, whole = torch.cuda.mem_get_info()
    return (whole - free) / 1e6


def run(given: SimpleNamespace) -> None:
    """Measures both variants, NCCL first."""
    leave_new(True)
    device = join()
    small, large = (torch.zeros(mib * MIB // 4, device=device) for mib in (1, 256))
    dist.all_reduce(small)
    for variant in ("nccl", "plait"):
        leave_new(variant == "nccl")
        before, groups = used_mb(), []

        def say(step: str, variant: str = variant, before: float = before) -> None:
            row = {"variant": variant, "step": step, "mb": round(used_mb() - before, 1)}
            if dist.get_rank() == 0:
                print(json.dumps(row | {"served": served()}), flush=True)

        for number in range(1, given.groups + 1):
            groups.append(dist.new_group())
            dist.all_reduce(small, group=groups[-1])
            if number in (1, given.groups):
                say(f"{number} with calls of 1 MiB")
        for _ in range(20):  # the large arena is allocated during the first calls
            dist.all_reduce(large, group=groups[0])
        say("one of them with calls of 256 MiB")
        for group in groups:
            dist.destroy_process_group(group)
        say("all given back")
    dist.destroy_process_group()
