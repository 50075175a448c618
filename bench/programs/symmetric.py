"""Compares all_reduces with PyTorch's symmetric memory (one_shot, two_shot) in the same processes.

Sizes are every power of two from 1 KiB to 64 MiB, fp32 and bf16. Each variant is captured 20 times
into a CUDA graph, replayed, and checked on whole numbers. A time of 0 means that the variant is
missing, or that PyTorch refuses this size; the reason goes to standard error. `ratio` is the time
of the faster of one_shot and two_shot, divided by plait_us (all_reduce_us if plait is not
installed, or under `plait run`): above 1 = plait is faster, 0 = PyTorch refuses both. Multicast
stays off (TORCH_SYMM_MEM_DISABLE_MULTICAST=1). Rank 0 prints a CSV line per size and type. Exit
status 1: a sum was wrong.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from bench.lib import rows, torch_jobs

CALLS = 20
COLUMNS = (
    *("ranks", "type", "bytes", "all_reduce_by", "all_reduce_us", "plait_us", "one_shot_us"),
    *("two_shot_us", "ratio", "wrong"),
)


def graph_us(call: Callable[[], object]) -> float:
    """Returns the median microseconds of a call in a graph of CALLS."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(CALLS):
            call()
    times = []
    for _ in range(7):
        dist.barrier(device_ids=[torch.cuda.current_device()])
        with torch.cuda.stream(side):  # the first replay aligns the ranks
            times.append(torch_jobs.elapsed_ms(graph.replay, before=graph.replay))
    return torch_jobs.slowest([sorted(times)[3] * 1e3 / CALLS])[0]


def fresh(out: torch.Tensor, seed: int) -> torch.Tensor:
    """Fills `out` with this rank's whole numbers, and returns the exact sum over ranks."""
    world, places = dist.get_world_size(), torch.arange(out.numel(), device="cuda")
    parts = [(places * 5 + rank * 11 + seed) % 7 for rank in range(world)]
    out.copy_(parts[dist.get_rank()])
    return torch.stack(parts).sum(0).to(out.dtype)


def communicator(local: int) -> Any:
    """Returns plait's communicator on this rank's GPU; None if plait is not installed, or if it
    serves NCCL's calls."""
    if torch_jobs.by_drop_in() or importlib.util.find_spec("plait") is None:
        return None
    return importlib.import_module("plait").init(device=local)


def why_refused(call: Callable[[], object]) -> str:
    """Returns why PyTorch refuses the call; empty if it takes it. The reason depends on sizes
    alone, so all ranks get the same."""
    try:
        call()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    torch.cuda.synchronize()
    return ""


def fastest_over(symmetric: list[float], ours: float) -> float:
    """Returns the least known time of `symmetric` over ours; 0 if none is known."""
    known = [us for us in symmetric if us > 0]
    return min(known) / ours if known and ours > 0 else 0.0


class VariantComparison:
    """One size and type: buffers, checks and times of every variant."""

    def __init__(self, dtype: torch.dtype, size: int, group: str, comm: Any) -> None:
        self.size, self.group, self.comm = size, group, comm
        self.shared = symm_mem.empty(size // dtype.itemsize, dtype=dtype, device="cuda")
        symm_mem.rendezvous(self.shared, group)
        self.plain = torch.empty_like(self.shared)
        self.output = torch.empty_like(self.shared)
        self.kind = str(dtype).removeprefix("torch.")
        self.shared.zero_()
        torch.cuda.synchronize()
        dist.barrier(device_ids=[torch.cuda.current_device()])
        both = {"one_shot": self.one_shot, "two_shot": self.two_shot}
        self.refused = {name: why for name, call in both.items() if (why := why_refused(call))}
        self.symmetric = {name: call for name, call in both.items() if name not in self.refused}

    def one_shot(self) -> torch.Tensor:
        return torch.ops.symm_mem.one_shot_all_reduce(self.shared, "sum", self.group)

    def two_shot(self) -> torch.Tensor:
        return torch.ops.symm_mem.two_shot_all_reduce_(self.shared, "sum", self.group)

    def by_torch(self) -> torch.Tensor:
        dist.all_reduce(self.plain)
        return self.plain

    def by_plait(self) -> torch.Tensor:
        self.comm.all_reduce(self.plain, out=self.output)
        return self.output

    def wrong(self) -> int:
        """Returns the number of wrong elements of all variants in two calls with fresh data."""
        found = 0
        variants = [(self.shared, call) for call in self.symmetric.values()]
        variants += [(self.plain, self.by_torch)]
        if self.comm:
            variants += [(self.plain, self.by_plait)]
        for seed in (1, 2):
            for number, (source, call) in enumerate(variants):
                expected = fresh(source, seed + 2 * number)
                dist.barrier(device_ids=[torch.cuda.current_device()])
                found += int((call() != expected).sum())
                dist.barrier(device_ids=[torch.cuda.current_device()])
        total = torch.tensor(found, device="cuda")
        dist.all_reduce(total)
        return int(total)

    def timed(self, call: Callable[[], torch.Tensor]) -> float:
        """Returns microseconds on normal data: repeated in-place sums of whole numbers overflow."""
        self.shared.normal_()
        self.plain.normal_()
        torch.cuda.synchronize()
        return graph_us(call)

    def row(self, name: str) -> dict[str, Any]:
        """Returns the row. name: what serves torch's all_reduce."""
        wrong = self.wrong()
        one, two = (
            self.timed(self.symmetric[name]) if name in self.symmetric else 0.0
            for name in ("one_shot", "two_shot")
        )
        usual = self.timed(self.by_torch)
        plait = self.timed(self.by_plait) if self.comm else 0.0
        ratio = fastest_over([one, two], plait or usual)
        times = (f"{us:.2f}" for us in (usual, plait, one, two))
        values = (dist.get_world_size(), self.kind, self.size, name, *times, ratio, wrong)
        return dict(zip(COLUMNS, values, strict=True))


def sizes(most: int) -> list[int]:
    """Returns the powers of two from 1 KiB to `most`."""
    return [1 << exponent for exponent in range(10, most.bit_length()) if 1 << exponent <= most]


def time_is_up(end: float) -> bool:
    """True if the time is up on any rank; all ranks agree."""
    late = torch.tensor(time.monotonic() > end, device="cuda", dtype=torch.int32)
    dist.all_reduce(late, op=dist.ReduceOp.MAX)
    return bool(late)


def run(given: SimpleNamespace) -> int:
    """Measures every size and both types, and prints each row when it is measured."""
    began = time.monotonic()
    local = torch_jobs.join().index
    comm = communicator(local)
    name = "plait" if torch_jobs.by_drop_in() else "nccl"
    wrong, first = 0, dist.get_rank() == 0
    file = rows.CsvFile(given.csv if first else None, COLUMNS)
    for dtype in (torch.float32, torch.bfloat16):
        for size in sizes(given.most_mib << 20):
            if time_is_up(began + given.budget_s):
                break
            comparison = VariantComparison(dtype, size, dist.group.WORLD.group_name, comm)
            if first:
                for variant, why in comparison.refused.items():
                    print(f"{size} bytes of {dtype}: no {variant}: {why}", file=sys.stderr)
            row = comparison.row(name)
            wrong += row["wrong"]
            file.write(row)
            if first:
                print(*row.values(), sep=",", flush=True)
    if comm:
        comm.check()
        comm.barrier()
    dist.destroy_process_group()
    return 1 if wrong else 0
