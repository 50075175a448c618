"""Checks PyTorch over the drop-in: run under torchrun with the drop-in preloaded.

Async, coalesced, graph-captured calls, several process groups, reduce-scatter and all-gather as
FSDP makes them, pre-multiplied sums, two streams. Rank 0 prints a JSON line per check; exit status
1 = one failed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.lib.drop_in import served

Check = Callable[[], bool]


def values(count: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Integers below 16, so that sums are exact in every type."""
    places = torch.arange(count, device="cuda")
    return ((places * 7 + rank * 3 + 1) % 13).to(dtype)


def total(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Sum of all ranks' values."""
    parts = [values(count, rank, torch.float64) for rank in range(dist.get_world_size())]
    return torch.stack(parts).sum(0).to(dtype)


def all_types() -> bool:
    """Sums of every type, odd sizes."""
    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]
    good = True
    for dtype in [*types, torch.uint8, torch.int8]:
        for count in (1, 17, 4096, 1_000_003):
            mine = values(count, dist.get_rank(), dtype)
            dist.all_reduce(mine)
            good &= bool(torch.equal(mine, total(count, dtype)))
    return good


def asynchronous() -> bool:
    """Many calls in flight."""
    mine = [values(5000 + i, dist.get_rank()) for i in range(64)]
    works = [dist.all_reduce(one, async_op=True) for one in mine]
    for work in works:
        work.wait()
    return all(torch.equal(one, total(5000 + i)) for i, one in enumerate(mine))


def coalesced() -> bool:
    """A group of calls."""
    mine = [values(3000 + i, dist.get_rank()) for i in range(8)]
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as manager:
        for one in mine:
            dist.all_reduce(one)
    manager.wait()
    return all(torch.equal(one, total(3000 + i)) for i, one in enumerate(mine))


def captured() -> bool:
    """A graph of calls, replayed between eager calls."""
    mine, out = values(70_000, dist.get_rank()), torch.empty(70_000, device="cuda")
    dist.all_reduce(mine.clone())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(mine)
        dist.all_reduce(out)
        out.mul_(0.5)
        dist.all_reduce(out)
    good = True
    for _ in range(200):
        graph.replay()
        eager = values(999, dist.get_rank())
        dist.all_reduce(eager)
        good &= bool(torch.equal(eager, total(999)))
    torch.cuda.synchronize()
    return good and bool(torch.equal(out, total(70_000) * dist.get_world_size() / 2))


def several_groups() -> bool:
    """Process groups of the same ranks, used in turn."""
    ranks = list(range(dist.get_world_size()))
    groups = [dist.new_group(ranks) for _ in range(3)]
    good = True
    for round_ in range(20):
        for group in groups:
            mine = values(2000 + round_, dist.get_rank())
            dist.all_reduce(mine, group=group)
            good &= bool(torch.equal(mine, total(2000 + round_)))
    for group in groups:
        dist.destroy_process_group(group)
    return good


def sharded() -> bool:
    """Reduce-scatter and all-gather into one tensor."""
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = values(4096 * world, rank, torch.bfloat16)
    part = torch.empty(4096, device="cuda", dtype=torch.bfloat16)
    dist.reduce_scatter_tensor(part, whole)
    wanted = total(4096 * world, torch.bfloat16)
    good = torch.equal(part, wanted[rank * 4096 : (rank + 1) * 4096])
    dist.all_gather_into_tensor(whole, part)
    return bool(good and torch.equal(whole, wanted))


def others() -> bool:
    """Broadcast, reduce, all-to-all, send and receive."""
    rank, world = dist.get_rank(), dist.get_world_size()
    one = values(1000, rank)
    dist.broadcast(one, world - 1)
    good = torch.equal(one, values(1000, world - 1))
    two = values(1000, rank)
    dist.reduce(two, 0)
    good &= rank != 0 or torch.equal(two, total(1000))
    received = torch.empty(1000 * world, device="cuda")
    dist.all_to_all_single(received, values(1000 * world, rank))
    parts = [values(1000 * world, peer)[rank * 1000 : (rank + 1) * 1000] for peer in range(world)]
    good &= torch.equal(received, torch.cat(parts))
    ring = torch.empty(1000, device="cuda")
    sends = dist.P2POp(dist.isend, values(1000, rank), (rank + 1) % world)
    receives = dist.P2POp(dist.irecv, ring, (rank - 1) % world)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()
    return bool(good and torch.equal(ring, values(1000, (rank - 1) % world)))


def uneven() -> bool:
    """All-to-all of unequal parts, some empty: a group of sends and receives."""
    rank, world = dist.get_rank(), dist.get_world_size()
    good = True
    for scale in (1, 37, 5000, 700_000):

        def part(source: int, target: int, scale: int = scale) -> int:
            return (source * 3 + target * 5 + 1) % 4 * scale

        out = [part(rank, peer) for peer in range(world)]
        into = [part(peer, rank) for peer in range(world)]
        received = torch.full((sum(into),), -1.0, device="cuda")
        dist.all_to_all_single(received, values(sum(out), rank), into, out)
        wanted = []
        for peer in range(world):
            theirs = [part(peer, other) for other in range(world)]
            begin = sum(theirs[:rank])
            wanted.append(values(sum(theirs), peer)[begin : begin + theirs[rank]])
        good &= bool(torch.equal(received, torch.cat(wanted)))
    return good


def pipeline() -> bool:
    """Single sends and receives around the ranks, eager and in a graph."""
    rank, world = dist.get_rank(), dist.get_world_size()

    def around(data: torch.Tensor) -> None:
        if rank > 0:
            dist.recv(data, rank - 1)
        data.add_(1)
        dist.send(data, (rank + 1) % world)
        if rank == 0:
            dist.recv(data, world - 1)

    good = True
    for count in (1, 1000, 100_003, 3_000_000):
        data = values(count, 0)
        for _ in range(3):
            around(data)
        if rank == 0:
            good &= bool(torch.equal(data, values(count, 0) + 3 * world))
    data = values(5000, 0)
    around(data)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        around(data)
    for _ in range(50):
        graph.replay()
    torch.cuda.synchronize()
    return good and (rank != 0 or bool(torch.equal(data, values(5000, 0) + 51 * world)))


def crossing() -> bool:
    """Messages of two groups and sums of a third, reached by ranks in different orders."""
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group() for _ in range(3)]
    ring = [((rank + 1) % world, (rank - 1) % world), ((rank - 1) % world, (rank + 1) % world)]

    def around(mine: torch.Tensor, into: torch.Tensor, group: int) -> list[dist.Work]:
        to, source = ring[group]
        ends = [
            dist.P2POp(dist.isend, mine, to, groups[group]),
            dist.P2POp(dist.irecv, into, source, groups[group]),
        ]
        return dist.batch_isend_irecv(ends)

    for group in (0, 1):  # NCCL makes communicators at a group's first call
        for work in around(values(2, rank), values(2, rank), group):
            work.wait()
    dist.all_reduce(values(2, rank), group=groups[2])
    torch.cuda.synchronize()
    good = True
    for count in (5_000, 1 << 20, 1 << 22):
        for turn in range(10):
            mine, sums = values(count, rank), values(count, rank)
            into, works = [torch.empty_like(mine) for _ in ring], []
            for step in range(3):
                group = (step + rank + turn) % 3
                if group == 2:
                    works.append(dist.all_reduce(sums, group=groups[2], async_op=True))
                else:
                    works += around(mine, into[group], group)
            for work in works:
                work.wait()
            came = zip(into, ring, strict=True)
            good &= all(torch.equal(one, values(count, source)) for one, (_, source) in came)
            good &= bool(torch.equal(sums, total(count)))
    return good


def averages() -> bool:
    """The mean, and a sum pre-multiplied by a factor."""
    mine = values(5000, dist.get_rank())
    dist.all_reduce(mine, op=dist.ReduceOp.AVG)
    good = torch.allclose(mine, total(5000) / dist.get_world_size())
    scaled = values(5000, dist.get_rank())
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
    return bool(good and torch.allclose(scaled, total(5000) * 0.5))


def side_streams() -> bool:
    """The same communicator from two streams in turn."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    good = True
    for round_ in range(50):
        with torch.cuda.stream(streams[round_ % 2]):
            mine = values(30_000, dist.get_rank())
            dist.all_reduce(mine)
            good &= bool(torch.equal(mine, total(30_000)))
    return good


CHECKS: list[Check] = [
    *(all_types, asynchronous, coalesced, captured, several_groups),
    *(sharded, others, uneven, pipeline, crossing, averages, side_streams),
]


def main() -> int:
    """Runs every check; returns 1 if one failed."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    failed = 0
    for check in CHECKS:
        before = served()
        good = check()
        torch.cuda.synchronize()
        counted = [now - then for now, then in zip(served(), before, strict=False)]
        failed += not good
        row = {"check": check.__name__, "rank": dist.get_rank(), "ok": good, "served": counted}
        if dist.get_rank() == 0 or not good:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
