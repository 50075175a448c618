"""Times tensor-parallel decoding in tokens a second; a layer has two products and two all-reduces.

    plait run -- torchrun --nproc-per-node 2 bench/decode.py --hidden 8192 --batches 1,8,64

A CUDA graph holds one step of all layers and is replayed. With the drop-in, a graph over NCCL and a
graph over plait take turns. Rank 0 prints a JSON line a batch size: tokens a second, microseconds a
step, and a hash of the outputs. bench/gpu_drop_in.py runs this program.
"""

from __future__ import annotations

import argparse
import hashlib
import json

import torch
import torch.distributed as dist
from drop_in import served
from variants import start, timed


class Layers:
    """Column-parallel, then row-parallel weights; an all-reduce follows each row-parallel
    product."""

    def __init__(self, hidden: int, count: int) -> None:
        world = dist.get_world_size()
        source = torch.Generator("cuda").manual_seed(3 + dist.get_rank())

        def weight(rows: int, columns: int) -> torch.Tensor:
            drawn = torch.randn(rows, columns, device="cuda", generator=source)
            return (drawn / rows**0.5).to(torch.bfloat16)

        # All layers share one set of weights: decoding is bound by reading them, and a set exceeds
        # the cache.
        self.attention = (weight(hidden, hidden // world), weight(hidden // world, hidden))
        self.mlp = (weight(hidden, 4 * hidden // world), weight(4 * hidden // world, hidden))
        self.count = count

    def step(self, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Computes one token for each sequence of the batch."""
        for _ in range(self.count):
            for into, out_of in (self.attention, self.mlp):
                part = torch.nn.functional.gelu(x @ into) @ out_of
                dist.all_reduce(part, group=group)
                x = torch.nn.functional.layer_norm(x + part, x.shape[-1:])
        return x


class DecodeStep:
    """A captured step that uses one group."""

    def __init__(self, layers: Layers, x: torch.Tensor, group: dist.ProcessGroup) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                layers.step(x, group)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        dist.barrier()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = layers.step(x, group)
        self.replay(5)
        torch.cuda.synchronize()

    def replay(self, times: int) -> None:
        """Enqueues `times` replays."""
        for _ in range(times):
            self.graph.replay()

    def output(self) -> str:
        """Returns a hash of the last output's bits."""
        bits = self.out.view(torch.int16).cpu().numpy().tobytes()
        return hashlib.sha256(bits).hexdigest()[:16]


def compare(
    layers: Layers, x: torch.Tensor, args: argparse.Namespace, groups: dict[str, dist.ProcessGroup]
) -> dict[str, object]:
    """Returns the tokens a second of each variant."""
    steps = {variant: DecodeStep(layers, x, group) for variant, group in groups.items()}
    variants = {
        variant: lambda step=step: step.replay(args.replays) for variant, step in steps.items()
    }
    took = timed(variants, args.rounds)
    batch, hidden = x.shape
    row: dict[str, object] = {"program": "decode", "hidden": hidden, "layers": layers.count}
    row |= {"batch": batch, "gpus": dist.get_world_size()}
    for variant, seconds in took.items():
        row[f"{variant}_step_us"] = seconds * 1e6 / args.replays
        row[f"{variant}_tokens_per_s"] = batch * args.replays / seconds
        row[f"{variant}_output"] = steps[variant].output()
    if "plait" in took:
        row["ratio"] = took["nccl"] / took["plait"]
    return row


def main() -> None:
    """Runs all sizes in one job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", default="4096,8192")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--replays", type=int, default=20, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    groups = start()
    for hidden in map(int, args.hidden.split(",")):
        layers = Layers(hidden, args.layers)
        for batch in map(int, args.batches.split(",")):
            x = torch.ones(batch, hidden, device="cuda", dtype=torch.bfloat16)
            row = compare(layers, x, args, groups)
            if dist.get_rank() == 0:
                print(json.dumps({**row, "served": served()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
