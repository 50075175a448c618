"""How much an all-reduce slows a loop of matrix products beside it.

    torchrun --nproc-per-node 2 bench/overlap.py                 # NCCL
    plait run -- torchrun --nproc-per-node 2 bench/overlap.py    # plait; PLAIT_SM_BUDGET=N
    torchrun --nproc-per-node 2 bench/overlap.py --library libplait.so --strategy direct:pieces=2
                                                # a plan's copies by copy engines (two ranks)

Products of size x size in bf16 run on one stream, all-reduces of `mib` MiB (fp32) on another, over
and over until the products are through. Rank 0 prints a JSON line: the products' time alone and
beside the all-reduces, the slow-down, and an all-reduce's time alone and beside them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
from collections.abc import Callable

import torch
import torch.distributed as dist


def elapsed_ms(stream: torch.cuda.Stream, work: Callable[[], None]) -> float:
    """Milliseconds that `work`, enqueued on `stream`, takes there."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        begin.record()
        work()
        end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


class Library:
    """plait's C API: an all_reduce of fp32 sums in place, by a strategy."""

    FP32, SUM = 9, 0  # plait_fp32 and plait_sum: places in types.def and reduce_ops.def

    def __init__(self, path: str, strategy: str) -> None:
        self.library = ctypes.CDLL(path)
        self.library.plaitGetLastError.restype = ctypes.c_char_p
        self.comm = ctypes.c_void_p()
        self.require(self.library.plaitCommInitFromEnvironment(ctypes.byref(self.comm)))
        self.require(self.library.plaitCommSetStrategy(self.comm, strategy.encode()))

    def require(self, result: int) -> None:
        """Raises what the library says."""
        if result != 0:
            raise RuntimeError(self.library.plaitGetLastError(None).decode())

    def all_reduce(self, data: torch.Tensor) -> None:
        """In place, on the current stream."""
        at = ctypes.c_void_p(data.data_ptr())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        count = ctypes.c_size_t(data.numel())
        call = self.library.plaitAllReduce
        self.require(call(at, at, count, self.FP32, self.SUM, self.comm, stream))


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--products", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--library", default="")
    parser.add_argument("--strategy", default="")
    return parser.parse_args()


def check(data: torch.Tensor, reduce: Callable[[], object]) -> None:
    """Raises where `reduce` leaves a wrong sum in `data`."""
    world = dist.get_world_size()
    data.fill_(dist.get_rank() + 1)
    reduce()
    if not bool((data == world * (world + 1) // 2).all()):
        raise RuntimeError("a wrong sum")


def main() -> None:
    """Measures in turn: products alone, all-reduces alone, both; medians of the rounds."""
    given = arguments()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    a, b = (
        torch.randn(given.size, given.size, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )
    c = torch.empty_like(a)
    data = torch.randn(given.mib << 18, device="cuda")
    computing, talking = torch.cuda.Stream(), torch.cuda.Stream()

    def multiply() -> None:
        for _ in range(given.products):
            torch.mm(a, b, out=c)

    library = Library(given.library, given.strategy) if given.library else None

    def talk(times: int) -> None:
        for _ in range(times):
            if library:
                library.all_reduce(data)
            else:
                dist.all_reduce(data)

    check(data, lambda: elapsed_ms(talking, lambda: talk(1)))

    elapsed_ms(computing, multiply)
    elapsed_ms(talking, lambda: talk(3))
    alone, talk_alone, beside, talk_beside = [], [], [], []
    for _ in range(given.rounds):
        dist.barrier(device_ids=[local])
        alone.append(elapsed_ms(computing, multiply))
        dist.barrier(device_ids=[local])
        talk_alone.append(elapsed_ms(talking, lambda: talk(10)) / 10)
        # As many all-reduces as surely outlast the products, but the same on all ranks.
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
        beside.append(elapsed_ms(computing, multiply))
        end.synchronize()
        talk_beside.append(begin.elapsed_time(end) / times)
    slow_down = median(beside) / median(alone) - 1
    if dist.get_rank() == 0:
        row = {
            "by": given.strategy or "plait"
            if given.library or "plait" in os.environ.get("LD_PRELOAD", "")
            else "nccl",
            "sm_budget": os.environ.get("PLAIT_SM_BUDGET", ""),
            "ranks": dist.get_world_size(),
            "mib": given.mib,
            "products_alone_ms": round(median(alone), 3),
            "products_beside_ms": round(median(beside), 3),
            "slow_down_percent": round(slow_down * 100, 2),
            "all_reduce_alone_ms": round(median(talk_alone), 3),
            "all_reduce_beside_ms": round(median(talk_beside), 3),
        }
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
