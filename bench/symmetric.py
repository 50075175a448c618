"""all_reduce beside PyTorch's symmetric memory: one_shot and two_shot, in the same processes.

    torchrun --nproc-per-node 2 bench/symmetric.py --csv out.csv                # NCCL
    plait run -- torchrun --nproc-per-node 2 bench/symmetric.py --csv out.csv   # plait

Each way is captured 20 times into a CUDA graph, replayed, checked against float64 on whole numbers.
Multicast stays off (TORCH_SYMM_MEM_DISABLE_MULTICAST=1). Rank 0 prints a CSV line a size and type.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

CALLS = 20
COLUMNS = "ranks,type,bytes,all_reduce_by,all_reduce_us,one_shot_us,two_shot_us,ratio,wrong"


def graph_us(call: Callable[[], object]) -> float:
    """Median microseconds of a call in a graph of CALLS."""
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
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier(device_ids=[torch.cuda.current_device()])
        with torch.cuda.stream(side):
            graph.replay()  # the first lines the ranks up
            begin.record()
            graph.replay()
            end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / CALLS)
    worst = torch.tensor(sorted(times)[3], device="cuda")
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)


def fresh(out: torch.Tensor, seed: int) -> torch.Tensor:
    """Fills `out` with whole numbers of this rank's; returns the exact sum over ranks."""
    world, places = dist.get_world_size(), torch.arange(out.numel(), device="cuda")
    parts = [(places * 5 + rank * 11 + seed) % 7 for rank in range(world)]
    out.copy_(parts[dist.get_rank()])
    return torch.stack(parts).sum(0).to(out.dtype)


def measure(dtype: torch.dtype, size: int, name: str, group: str) -> str:
    """The CSV line of one size."""
    shared = symm_mem.empty(size // dtype.itemsize, dtype=dtype, device="cuda")
    symm_mem.rendezvous(shared, group)
    usual = torch.empty_like(shared)
    ops = torch.ops.symm_mem
    wrong = 0
    for seed in (1, 2):
        wrong += int((fresh(shared, seed) != ops.one_shot_all_reduce(shared, "sum", group)).sum())
        expected = fresh(shared, seed + 2)
        ops.two_shot_all_reduce_(shared, "sum", group)
        wrong += int((expected != shared).sum())
        expected = fresh(usual, seed + 4)
        dist.all_reduce(usual)
        wrong += int((expected != usual).sum())
        dist.barrier(device_ids=[torch.cuda.current_device()])
    shared.normal_()
    usual.normal_()
    one = graph_us(lambda: ops.one_shot_all_reduce(shared, "sum", group))
    two = graph_us(lambda: ops.two_shot_all_reduce_(shared, "sum", group))
    ours = graph_us(lambda: dist.all_reduce(usual))
    kind = str(dtype).removeprefix("torch.")
    return (
        f"{dist.get_world_size()},{kind},{size},{name},{ours:.2f},{one:.2f},{two:.2f},"
        f"{min(one, two) / ours:.3f},{wrong}"
    )


def main() -> None:
    """Every size by four, both types."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--most-mib", type=int, default=64)
    given = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    name = "plait" if "plait" in os.environ.get("LD_PRELOAD", "") else "nccl"
    lines = [COLUMNS]
    for dtype in (torch.float32, torch.bfloat16):
        size = 64 << 10
        while size <= given.most_mib << 20:
            lines.append(measure(dtype, size, name, dist.group.WORLD.group_name))
            if dist.get_rank() == 0:
                print(lines[-1], flush=True)
            size *= 4
    if dist.get_rank() == 0 and given.csv:
        given.csv.write_text("\n".join(lines) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
