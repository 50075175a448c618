"""Trains from one seed by DDP and by FSDP2, and prints a hash of losses and weights to compare.

All but the sums between ranks is the same in each run: PyTorch's deterministic algorithms, one
seed, no dropout. Rank 0 prints a JSON line for DDP and for FSDP2; same-bits compares runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from types import SimpleNamespace

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same bits from every product

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from bench.lib.torch_jobs import join

WIDTH, LAYERS, BATCH = 512, 6, 32


def trained(wrapper: str, steps: int, device: torch.device) -> tuple[list[float], str]:
    """Returns (this rank's losses, a hash of all weights)."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10)).to(device)
    if wrapper == "ddp":
        wrapped: nn.Module = DistributedDataParallel(model, bucket_cap_mb=1)
    else:
        mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        wrapped = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
    source = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(steps):
        images = torch.randn(BATCH, WIDTH, generator=source).to(device)
        loss = nn.functional.cross_entropy(wrapped(images), images[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        weights.update(whole.detach().cpu().numpy().tobytes())
    return losses, weights.hexdigest()[:12]


def run(given: SimpleNamespace) -> None:
    torch.use_deterministic_algorithms(True)
    device = join(given.backend, given.cpu)
    for wrapper in ("ddp", "fsdp"):
        losses, weights = trained(wrapper, given.steps, device)
        of_ranks: list[tuple[list[float], str] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, (losses, weights))
        if dist.get_rank() == 0:
            bits = hashlib.sha256(repr(of_ranks).encode()).hexdigest()[:12]
            row = {"variant": given.variant, "way": wrapper, "ranks": len(of_ranks), "hash": bits}
            print(json.dumps(row | {"last_loss": losses[-1]}), flush=True)
    dist.destroy_process_group()
