"""Times pre-multiplied sums by NCCL alone and with the drop-in, in turn in one process.

Plain sums are timed beside, and results are compared bit for bit.

Each rank has a factor of its own. Of two ranks a sum has one order, so both libraries' results are
the same, unless NCCL's compiler fuses a product with the sum. Rank 0 prints a JSON line a
size: microseconds (the slowest rank's median), and elements that differ from the sum of rounded
products.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from bench.lib import rows, torch_jobs, variants
from bench.lib.drop_in import served

SIZES = [1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 128 << 20, 256 << 20]
CALLS = 10  # a sample
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def inputs(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns values of a rank, the same on each GPU."""
    at = torch.arange(count, device="cuda", dtype=torch.float32)
    return ((at * (rank + 3)).remainder(1009.0) / 7.0).to(dtype)


def factor(rank: int) -> float:
    return 1.0 / (3.0 + rank)


def products(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    scaled = torch.tensor(factor(rank), device="cuda", dtype=dtype)
    return inputs(rank, count, dtype) * scaled


def call_of(
    collective: str, group: Any, count: int, dtype: torch.dtype, op: Any
) -> tuple[Callable[[], Any], Any]:
    """Returns a call out of place, and its output."""
    ranks, mine = dist.get_world_size(), inputs(dist.get_rank(), count, dtype)
    if collective == "reduce_scatter":
        output = torch.empty(count // ranks, device="cuda", dtype=dtype)
        return lambda: dist.reduce_scatter_tensor(output, mine, op=op, group=group), output
    return lambda: dist.all_reduce(mine, op=op, group=group), mine


def apart(collective: str, group: Any, count: int, dtype: torch.dtype) -> int:
    """Returns how many elements of a first call differ from the sum of rounded products.

    NCCL's kernels fuse product and sum, so its elements differ.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    scaled = dist._make_nccl_premul_sum(factor(rank))
    call, output = call_of(collective, group, count, dtype, scaled)
    call()
    wanted = products(0, count, dtype)
    for other in range(1, ranks):
        wanted += products(other, count, dtype)
    if collective == "reduce_scatter":
        wanted = wanted[rank * (count // ranks) :][: count // ranks]
    return int((output != wanted).sum())


def timed(
    collective: str, group: Any, count: int, dtype: torch.dtype, op: Any, kept: list[Any]
) -> Callable[[], float]:
    """Returns a function that replays a graph of calls, and returns the microseconds of one.

    A graph does not own its buffers: `kept` gets them, and outlives the function.
    """
    call, output = call_of(collective, group, count, dtype, op)
    kept += [call, output]

    def calls() -> None:
        for _ in range(CALLS):
            call()

    graph = torch_jobs.replays_after_eager(calls)

    def sample() -> float:
        torch.cuda.synchronize()
        dist.barrier()
        return 1e3 * torch_jobs.elapsed_ms(graph.replay) / CALLS

    return sample


def run(given: SimpleNamespace) -> None:
    groups, dtype = torch_jobs.both_groups(), TYPES[given.type]
    lines: list[dict[str, Any]] = []
    for collective in ("all_reduce", "reduce_scatter"):
        for size in SIZES:
            count = size // dtype.itemsize
            scaled = dist._make_nccl_premul_sum(factor(dist.get_rank()))
            kept: list[Any] = []
            samples = {
                f"{name} {kind}": timed(collective, group, count, dtype, op, kept)
                for name, group in groups.items()
                for kind, op in (("factors", scaled), ("sum", dist.ReduceOp.SUM))
            }
            before = served()
            found = variants.medians(variants.taken(samples, given.rounds, warm_up=2))
            worst = torch_jobs.slowest([found[name] for name in samples])
            row: dict[str, Any] = {"collective": collective, "type": given.type, "bytes": size}
            row |= {f"{name} us": round(us, 1) for name, us in zip(samples, worst, strict=True)}
            differing = [float(apart(collective, group, count, dtype)) for group in groups.values()]
            row |= dict(
                zip(
                    [f"{name} apart" for name in groups],
                    map(int, torch_jobs.slowest(differing)),
                    strict=True,
                )
            )
            row["served"] = [now - old for now, old in zip(served(), before, strict=True)]
            lines.append(row)
            if dist.get_rank() == 0:
                print(json.dumps(row), flush=True)
            samples.clear()  # NCCL closes a group once no graph holds its calls
            kept.clear()
    if dist.get_rank() == 0 and given.csv:
        rows.keep(given.csv, lines)
    dist.destroy_process_group()
