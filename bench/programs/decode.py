"""Times tensor-parallel decoding in tokens a second; a layer has two products and two all-reduces.

A CUDA graph holds one step of all layers and is replayed. With the drop-in, a graph over NCCL and a
graph over plait take turns. Rank 0 prints a JSON line a batch size: tokens a second, microseconds a
step, and a hash of the outputs.
"""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace

import torch
import torch.distributed as dist

from bench.lib.drop_in import served
from bench.lib.torch_jobs import both_groups, replays_after_eager, timed


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
        def step() -> None:
            self.out = layers.step(x, group)

        self.graph = replays_after_eager(step)
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
    layers: Layers, x: torch.Tensor, given: SimpleNamespace, groups: dict[str, dist.ProcessGroup]
) -> dict[str, object]:
    """Returns the tokens a second of each variant."""
    steps = {variant: DecodeStep(layers, x, group) for variant, group in groups.items()}
    variants = {
        variant: lambda step=step: step.replay(given.replays) for variant, step in steps.items()
    }
    took = timed(variants, given.rounds)
    batch, hidden = x.shape
    row: dict[str, object] = {"program": "decode", "hidden": hidden, "layers": layers.count}
    row |= {"batch": batch, "gpus": dist.get_world_size()}
    for variant, seconds in took.items():
        row[f"{variant}_step_us"] = seconds * 1e6 / given.replays
        row[f"{variant}_tokens_per_s"] = batch * given.replays / seconds
        row[f"{variant}_output"] = steps[variant].output()
    if "plait" in took:
        row["ratio"] = took["nccl"] / took["plait"]
    return row


def run(given: SimpleNamespace) -> None:
    """Runs all sizes in one job."""
    groups = both_groups()
    for hidden in map(int, given.hidden.split(",")):
        layers = Layers(hidden, given.layers)
        for batch in map(int, given.batches.split(",")):
            x = torch.ones(batch, hidden, device="cuda", dtype=torch.bfloat16)
            row = compare(layers, x, given, groups)
            if dist.get_rank() == 0:
                print(json.dumps({**row, "served": served()}), flush=True)
    dist.destroy_process_group()
