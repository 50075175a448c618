"""Tokens a second of tensor-parallel decoding: each layer two products and two all-reduces.

    plait run -- torchrun --nproc-per-node 2 bench/decode.py --hidden 8192 --batches 1,8,64

One step of all layers is captured into a CUDA graph and replayed. Rank 0 prints a JSON line a batch
size: tokens a second, microseconds a step, and a hash of the outputs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os

import torch
import torch.distributed as dist
from ddp import served


class Layers:
    """Column-parallel, then row-parallel weights; the all-reduce follows each row-parallel one."""

    def __init__(self, hidden: int, count: int, batch: int) -> None:
        world = dist.get_world_size()
        source = torch.Generator("cuda").manual_seed(3 + dist.get_rank())

        def weight(rows: int, columns: int) -> torch.Tensor:
            drawn = torch.randn(rows, columns, device="cuda", generator=source)
            return (drawn / rows**0.5).to(torch.bfloat16)

        # All layers share one set: decoding is bound by reading weights, and two sets fit no cache.
        self.attention = (weight(hidden, hidden // world), weight(hidden // world, hidden))
        self.mlp = (weight(hidden, 4 * hidden // world), weight(4 * hidden // world, hidden))
        self.count = count
        self.x = torch.ones(batch, hidden, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.x)

    def step(self) -> None:
        """One token for each of the batch."""
        x = self.x
        for _ in range(self.count):
            for into, out_of in (self.attention, self.mlp):
                part = torch.nn.functional.gelu(x @ into) @ out_of
                dist.all_reduce(part)
                x = torch.nn.functional.layer_norm(x + part, x.shape[-1:])
        self.out.copy_(x)


def measure(hidden: int, count: int, batch: int, replays: int) -> dict[str, object]:
    """Replays of the captured step, timed by events."""
    layers = Layers(hidden, count, batch)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            layers.step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers.step()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    dist.barrier()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    step_us = torch.tensor([begin.elapsed_time(end) * 1e3 / replays], device="cuda")
    dist.all_reduce(step_us, op=dist.ReduceOp.MAX)
    bits = layers.out.view(torch.int16).cpu().numpy().tobytes()
    del graph
    return {
        "hidden": hidden,
        "layers": count,
        "batch": batch,
        "gpus": dist.get_world_size(),
        "step_us": step_us.item(),
        "tokens_per_s": batch * 1e6 / step_us.item(),
        "output": hashlib.sha256(bits).hexdigest()[:16],
    }


def main() -> None:
    """All sizes in one job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", default="4096,8192")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batches", default="1,4,16,64")
    parser.add_argument("--replays", type=int, default=50)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    for hidden in map(int, args.hidden.split(",")):
        for batch in map(int, args.batches.split(",")):
            row = measure(hidden, args.layers, batch, args.replays)
            if dist.get_rank() == 0:
                print(json.dumps({**row, "served": served()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
