"""DistributedDataParallel over plait and over gloo: with two ranks the same losses and weights, bit
for bit.

torchrun --nproc-per-node 2 examples/05_train_ddp.py
"""

import hashlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 60, 64


def train(group: dist.ProcessGroup) -> tuple[float, str, float]:
    """Returns (last loss, hash of all weights, seconds) of this rank."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    parallel = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
    images = torch.randn(STEPS * BATCH, 256, generator=torch.Generator().manual_seed(1))
    labels = images[:, :10].argmax(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    began = time.perf_counter()
    for step in range(STEPS):
        mine = torch.arange(rank, BATCH, ranks) + step * BATCH
        loss = nn.functional.cross_entropy(parallel(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - began
    weights = torch.cat([one.detach().view(-1) for one in model.parameters()])
    return loss.item(), hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:12], seconds


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("plait")
    found = {"plait": train(dist.group.WORLD), "gloo": train(dist.new_group(backend="gloo"))}
    for name, (loss, weights, seconds) in found.items():
        told = f"loss {loss:.4f}, weights {weights}, {seconds:.2f} s"
        print(f"{name:5} rank {dist.get_rank()}: {told}")
    # Sums of two ranks have a single order; gloo's sums of more ranks depend on the element's
    # position.
    assert dist.get_world_size() > 2 or found["plait"][:2] == found["gloo"][:2]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
