"""Makes a process group over NCCL and one over plait in a PyTorch job, and times them in turn.

With the drop-in loaded, the group `nccl` is made while the drop-in leaves new communicators to
NCCL, and the group `plait` after that. Without the drop-in there is `nccl` only. ddp.py and
decode.py use this module.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from drop_in import drop_in, leave_new


def start() -> dict[str, dist.ProcessGroup]:
    """Joins the job under torchrun. Returns the groups by variant, with their communicators."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    leave_new(True)
    dist.init_process_group("nccl", device_id=device)
    groups = {"nccl": _group()}
    leave_new(False)
    if drop_in() is not None:
        groups["plait"] = _group()
    return groups


def _group() -> dist.ProcessGroup:
    group = dist.new_group()
    dist.all_reduce(torch.ones(1, device="cuda"), group=group)
    torch.cuda.synchronize()
    return group


def timed(variants: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Returns the seconds of each variant: the slowest rank's median of rounds, taken in turn."""
    found: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(rounds):
        for variant in sorted(variants, reverse=number % 2 == 1):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            variants[variant]()
            torch.cuda.synchronize()
            found[variant].append(time.perf_counter() - begin)
    slowest = torch.tensor(
        [statistics.median(found[variant]) for variant in sorted(variants)], device="cuda"
    )
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return dict(zip(sorted(variants), slowest.tolist(), strict=True))
