"""Times data-parallel training of the papers' models on synthetic data, in samples a second.

With the drop-in each model is trained twice, over NCCL and over plait in turn, then once more over
plait to compare the losses' bits. Without it, each model is trained over NCCL alone. `--wrap fsdp`
shards the weights. Rank 0 prints a JSON line a model and batch size.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import struct
from types import SimpleNamespace

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same bits from every product

import torch
import torch.distributed as dist
from torch import nn

from bench.lib.drop_in import served
from bench.lib.torch_jobs import both_groups, timed


class Block(nn.Module):
    """A layer of GPT-2: attention and a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) -> (batch, length, width)."""
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    """A transformer of 124 million parameters: 12 layers of width 768, 50,304 words, length 512."""

    def __init__(self, words: int = 50304, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.blocks = nn.Sequential(*[Block(width, 12) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length) -> (batch * length, words)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.words(tokens) + self.places(places))
        return self.head(self.norm(x)).flatten(0, 1)


def model_of(name: str) -> nn.Module:
    """Returns a model by name: torchvision's, or the transformer."""
    if name == "transformer":
        return Transformer()
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def data_of(name: str, batch: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns inputs and labels, the same in every run."""
    source = torch.Generator(device).manual_seed(1 + dist.get_rank())
    if name == "transformer":
        tokens = torch.randint(50304, (batch, 513), device=device, generator=source)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()
    images = torch.randn(batch, 3, 224, 224, device=device, generator=source)
    return images, torch.randint(1000, (batch,), device=device, generator=source)


def replica(initial: nn.Module, group: dist.ProcessGroup, wrap: str) -> nn.Module:
    """Returns a copy of the model that sums its gradients over `group`."""
    model = copy.deepcopy(initial)
    if wrap == "ddp":
        return nn.parallel.DistributedDataParallel(model, process_group=group)
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = DeviceMesh.from_group(group, "cuda", mesh_dim_names=("ranks",))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.blocks if isinstance(model, Transformer) else model.children():
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


class Training:
    """The training of one model over one group."""

    def __init__(self, initial: nn.Module, group: dist.ProcessGroup, wrap: str) -> None:
        self.model, self.mixed = replica(initial, group, wrap), wrap == "ddp"
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.losses: list[torch.Tensor] = []

    def steps(self, data: tuple[torch.Tensor, torch.Tensor], count: int) -> None:
        """Enqueues `count` steps without waiting."""
        inputs, wanted = data
        for _ in range(count):
            torch.cuda.manual_seed(len(self.losses))  # dropout does not depend on other draws
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.mixed):
                loss = nn.functional.cross_entropy(self.model(inputs).float(), wanted)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.detach())

    def bits(self, count: int) -> list[str]:
        """Returns the bits of the first losses."""
        return [struct.pack("<f", loss.item()).hex() for loss in self.losses[:count]]


def compare(
    name: str,
    initial: nn.Module,
    batch: int,
    given: SimpleNamespace,
    groups: dict[str, dist.ProcessGroup],
) -> dict[str, object]:
    """Returns the speed of each variant, and how their losses compare."""
    data = data_of(name, batch, torch.device("cuda", torch.cuda.current_device()))
    runs = {variant: Training(initial, group, given.wrap) for variant, group in groups.items()}
    for run in runs.values():
        run.steps(data, given.warmup)
    variants = {
        variant: lambda run=run: run.steps(data, given.steps) for variant, run in runs.items()
    }
    took = timed(variants, given.rounds)
    samples = batch * dist.get_world_size() * given.steps
    row: dict[str, object] = {"program": given.wrap, "model": name, "batch": batch}
    row["gpus"] = dist.get_world_size()
    for variant, seconds in took.items():
        row[f"{variant}_ms"] = seconds * 1e3 / given.steps
        row[f"{variant}_per_s"] = samples / seconds
    compared = given.warmup + given.steps
    row["losses"] = runs["nccl"].bits(compared)
    if "plait" in groups:
        again = Training(initial, groups["plait"], given.wrap)
        again.steps(data, compared)
        mine = runs["plait"].bits(compared)
        row["ratio"] = took["nccl"] / took["plait"]
        row["same_bits_again"] = mine == again.bits(compared)
        row["same_bits_as_nccl"] = mine == row["losses"]
        other = torch.stack([*runs["nccl"].losses, *runs["plait"].losses]).view(2, -1)
        apart = (other[0] - other[1]).abs() / other[0].abs()
        row["losses_apart"] = apart[:compared].max().item()
        row["plait_losses"] = mine
    return row


def run(given: SimpleNamespace) -> None:
    """Runs all models and batch sizes in one job."""
    groups = both_groups()
    gc.disable()  # else collections always hit the same round of the same variant
    torch.utils.deterministic.fill_uninitialized_memory = False  # saves a kernel for every tensor
    for name in given.models.split(","):
        # PyTorch lists pooling in VGG as not deterministic, though it is for this shape. Attention
        # is deterministic only on demand.
        torch.use_deterministic_algorithms(True, warn_only=name != "transformer")
        torch.manual_seed(7)
        with torch.device("cuda"):
            initial = model_of(name)
        for batch in map(int, given.batches.split(",")):
            row = compare(name, initial, batch, given, groups)
            if dist.get_rank() == 0:
                print(json.dumps({**row, "served": served()}), flush=True)
            gc.collect()
            torch.cuda.empty_cache()
    dist.destroy_process_group()
