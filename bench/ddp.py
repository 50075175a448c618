"""Images or tokens a second of data-parallel training, on synthetic data: the papers' models.

    plait run -- torchrun --nproc-per-node 2 bench/ddp.py --models resnet50,vgg16 --batches 8,32

Rank 0 prints a JSON line a model and batch size: speed, the losses' bits (to compare runs), and who
served how many collectives. Run it with and without `plait run` to compare.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import struct
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same bits from every product

import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    """Attention and a two-layer perceptron, as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) -> the same."""
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    """124 million parameters: 12 layers of width 768, 50,304 words, 512 places."""

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
    """A model by name: torchvision's, or the transformer."""
    if name == "transformer":
        return Transformer()
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def data_of(name: str, batch: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and wanted outputs, the same in every run."""
    source = torch.Generator(device).manual_seed(1 + dist.get_rank())
    if name == "transformer":
        tokens = torch.randint(50304, (batch, 513), device=device, generator=source)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()
    images = torch.randn(batch, 3, 224, 224, device=device, generator=source)
    return images, torch.randint(1000, (batch,), device=device, generator=source)


def train(name: str, batch: int, steps: int, warmup: int) -> dict[str, object]:
    """Median time of a step, and the losses."""
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(7)
    model = nn.parallel.DistributedDataParallel(model_of(name).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, wanted = data_of(name, batch, device)
    times, losses = [], []
    for step in range(warmup + steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs).float(), wanted)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        losses.append(loss.item())
        if step >= warmup:
            times.append(time.perf_counter() - begin)
    slowest = torch.tensor([statistics.median(times)], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = batch * dist.get_world_size()
    return {
        "model": name,
        "batch": batch,
        "gpus": dist.get_world_size(),
        "step_ms": slowest.item() * 1e3,
        "per_s": samples / slowest.item(),
        "losses": [struct.pack("<f", loss).hex() for loss in losses],
        "last_loss": losses[-1],
    }


def served() -> list[int]:
    """Collectives that plait served and passed on so far; empty where it is not there."""

    class Row(ctypes.Structure):
        _fields_ = (
            ("name", ctypes.c_char * 32),
            ("served", ctypes.c_int32),
            ("bucket", ctypes.c_int32),
            ("counts", ctypes.c_uint64 * 5),
        )

    try:
        library = ctypes.CDLL("libplait_nccl.so", mode=os.RTLD_NOLOAD)
    except OSError:
        return []
    rows = (Row * 4096)()
    count = library.plait_nccl_counters(rows, len(rows))
    totals = [0, 0]
    for row in rows[:count]:
        totals[0 if row.served else 1] += row.counts[0]
    return totals


def main() -> None:
    """All models and batch sizes in one job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="resnet50,resnet152,densenet201,vgg16,transformer")
    parser.add_argument("--batches", default="8,32,64")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=5)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    for name in args.models.split(","):
        for batch in map(int, args.batches.split(",")):
            row = train(name, batch, args.steps, args.warmup)
            if dist.get_rank() == 0:
                print(json.dumps({**row, "served": served()}), flush=True)
            torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
