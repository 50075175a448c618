"""A rank of a PyTorch job on GPUs: joins the job, times calls by CUDA events, compares NCCL and
plait in turn.

With the drop-in loaded, the group `nccl` is made while the drop-in leaves new communicators to
NCCL, and the group `plait` after that. Without the drop-in there is `nccl` only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from bench.lib import variants
from bench.lib.drop_in import drop_in, leave_new

Call = Callable[[], object]


def join(backend: str = "nccl", cpu: bool = False) -> torch.device:
    """Joins the job under torchrun. Returns the rank's device."""
    if cpu:
        dist.init_process_group(backend or "gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    both = {"device_id": device} if backend == "nccl" else {}
    dist.init_process_group(backend or "nccl", **both)
    return device


def by_drop_in() -> bool:
    """True if plait serves NCCL's calls of this process."""
    return "plait" in os.environ.get("LD_PRELOAD", "")


def both_groups() -> dict[str, dist.ProcessGroup]:
    """Joins the job. Returns the groups by variant, with their communicators."""
    leave_new(True)
    join()
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


def slowest(values: list[float]) -> list[float]:
    """Returns the largest of all ranks' values, one by one."""
    worst = torch.tensor(values, device="cuda")
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return worst.tolist()


def timed(work: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Returns the seconds of each variant: the slowest rank's median of rounds, taken in turn."""

    def seconds(call: Call) -> float:
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    names = sorted(work)
    calls = {name: lambda call=work[name]: seconds(call) for name in names}
    found = variants.medians(variants.taken(calls, rounds))
    return dict(zip(names, slowest([found[name] for name in names]), strict=True))


def elapsed_ms(work: Call, before: Call | None = None) -> float:
    """Returns the milliseconds that `work` takes on the current stream, after `before`."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if before is not None:
        before()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def replays_after_eager(step: Call) -> torch.cuda.CUDAGraph:
    """Captures a step after three eager steps on another stream, as PyTorch's manual says."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph
