"""Measures how much an all-reduce (or an all-gather) slows concurrent matrix products.

Products of size x size in bf16 run on one stream. Calls run on another stream until the products
are done: all-reduces of `mib` MiB (fp32), or with `--collective all_gather` all-gathers of as much
in all. Rank 0 prints a JSON line, and with `--csv` adds a row to that file: the products' time
alone and with calls, the slow-down, and the time of a call alone and with products.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.distributed as dist

from bench.lib import rows, torch_jobs


def elapsed_ms(stream: torch.cuda.Stream, work: Callable[[], None]) -> float:
    """Returns the milliseconds that `work` takes on `stream`."""
    with torch.cuda.stream(stream):
        return torch_jobs.elapsed_ms(work)


def check(data: torch.Tensor, collective: str, call: Callable[[], object]) -> None:
    """Raises if `call` leaves a wrong result in `data`."""
    world = dist.get_world_size()
    data.fill_(dist.get_rank() + 1)
    call()
    wanted: torch.Tensor | int = world * (world + 1) // 2
    if collective == "all_gather":
        wanted = torch.arange(1, world + 1, device="cuda").repeat_interleave(len(data) // world)
    if not bool((data == wanted).all()):
        raise RuntimeError("a wrong result")


def report(given: SimpleNamespace, *times_ms: list[float]) -> None:
    """Prints the medians: products alone and with calls, calls alone and with products."""
    alone, overlapped, call_alone, call_overlapped = (statistics.median(one) for one in times_ms)
    row = {
        "by": "plait" if torch_jobs.by_drop_in() else "nccl",
        "sm_budget": os.environ.get("PLAIT_SM_BUDGET", ""),
        "ranks": dist.get_world_size(),
        "collective": given.collective,
        "mib": given.mib,
        "products_alone_ms": round(alone, 3),
        "products_beside_ms": round(overlapped, 3),
        "slow_down_percent": round((overlapped / alone - 1) * 100, 2),
        "call_alone_ms": round(call_alone, 3),
        "call_beside_ms": round(call_overlapped, 3),
    }
    print(json.dumps(row), flush=True)
    if given.csv:
        rows.add(given.csv, [row])


def run(given: SimpleNamespace) -> None:
    """Measures in turn: products alone, all-reduces alone, both; medians of the rounds."""
    local = torch_jobs.join().index
    a, b = (
        torch.randn(given.size, given.size, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )
    c = torch.empty_like(a)
    world = dist.get_world_size()
    data = torch.randn((given.mib << 18) // world * world, device="cuda")
    part = data.view(world, -1)[dist.get_rank()]
    computing, talking = torch.cuda.Stream(), torch.cuda.Stream()

    def multiply() -> None:
        for _ in range(given.products):
            torch.mm(a, b, out=c)

    def talk(times: int) -> None:
        for _ in range(times):
            if given.collective == "all_gather":
                dist.all_gather_into_tensor(data, part)
            else:
                dist.all_reduce(data)

    check(data, given.collective, lambda: elapsed_ms(talking, lambda: talk(1)))

    elapsed_ms(computing, multiply)
    elapsed_ms(talking, lambda: talk(3))
    alone, talk_alone, overlapped, talk_overlapped = [], [], [], []
    for _ in range(given.rounds):
        dist.barrier(device_ids=[local])
        alone.append(elapsed_ms(computing, multiply))
        dist.barrier(device_ids=[local])
        talk_alone.append(elapsed_ms(talking, lambda: talk(10)) / 10)
        # Enough all-reduces to outlast the products, and the same number on all ranks.
        longest = torch.tensor([alone[-1] * 1.6 / talk_alone[-1] + 4], device="cuda")
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        times = int(longest.item())
        data.normal_()
        torch.cuda.synchronize()
        dist.barrier(device_ids=[local])
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(talking):
            begin.record()
            talk(times)
            end.record()
        overlapped.append(elapsed_ms(computing, multiply))
        end.synchronize()
        talk_overlapped.append(begin.elapsed_time(end) / times)
    if dist.get_rank() == 0:
        report(given, alone, overlapped, talk_alone, talk_overlapped)
    dist.destroy_process_group()
