"""Checks plait as a backend of torch.distributed on CUDA tensors: run under torchrun.

    torchrun --standalone --nproc-per-node 2 tests/gpu/torch_backend.py [CHECK...] [--device cpu]

Every check has a separate group from new_group, so that a failure does not affect the next check.
Ranks report results to rank 0 through torch's store; rank 0 prints a JSON line per check. Exit
status 1 = one failed. A check that takes longer than --limit-s ends the job, and every rank prints
the threads' stacks. --device cpu runs the checks that apply to host memory.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

import plait

Op = dist.ReduceOp
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]
GROUP_S = 20.0  # timeout of a check's group


class CheckJob:
    """Context of a check: device of tensors, this rank, the check's group."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.is_cuda = device, device.type == "cuda"
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.group: Any = None

    def values(
        self, count: int, rank: int | None = None, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Integers below 13, so that sums are exact in every type. rank: None = this rank."""
        places = torch.arange(count, device=self.device)
        whose = self.rank if rank is None else rank
        return ((places * 7 + whose * 3 + 1) % 13).to(dtype)

    def total(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Sum of all ranks' values."""
        parts = [self.values(count, rank, torch.float64) for rank in range(self.ranks)]
        return torch.stack(parts).sum(0).to(dtype)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor filled with a value that no check expects."""
        return torch.full(shape, 77, device=self.device).to(dtype)

    def new_group(self, seconds: float = GROUP_S, **named: Any) -> Any:
        """Makes a group of all ranks."""
        return dist.new_group(timeout=timedelta(seconds=seconds), **named)

    def end(self) -> None:
        """Makes the host wait for this GPU."""
        if not self.is_cuda:
            return
        (event := torch.cuda.Event()).record()
        limit = time.monotonic() + GROUP_S
        while not event.query():
            want(time.monotonic() < limit, f"the GPU is not done after {GROUP_S} s")
            time.sleep(1e-4)


def want(good: bool, what: str) -> None:
    """assert that also works under -O."""
    if not good:
        raise AssertionError(what)


def same(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Compares bit for bit."""
    one, two = found.detach().cpu(), expected.detach().cpu()
    if one.dtype.itemsize == 1:
        one, two = one.view(torch.uint8), two.view(torch.uint8)
    if torch.equal(one, two):
        return
    first = int((one != two).flatten().nonzero()[0])
    wrong = f"{int((one != two).sum())} of {one.numel()} wrong, the first at {first}"
    found_there, wanted_there = one.flatten()[first].item(), two.flatten()[first].item()
    raise AssertionError(f"{what}: {wrong}: wanted {wanted_there}, found {found_there}")


# Collectives.


def all_reduce_types(job: CheckJob) -> None:
    """Sums of every type, odd sizes, a non-contiguous tensor."""
    for dtype in [*TYPES, torch.uint8, torch.int8]:
        for count in (1, 17, 4096, 1_000_003):
            mine = job.values(count, dtype=dtype)
            dist.all_reduce(mine, group=job.group)
            same(mine, job.total(count, dtype), f"{count} of {dtype}")
    wide = job.values(6000).view(1000, 6).t()
    dist.all_reduce(wide, group=job.group)
    same(wide, job.total(6000).view(1000, 6).t(), "a transposed one")


def all_reduce_operations(job: CheckJob) -> None:
    """Products, min, max, bit operations, means, pre-multiplied sums; bool and complex."""
    count, every = 5000, [job.values(5000, rank) for rank in range(job.ranks)]
    stacked = torch.stack(every)
    expected = {Op.PRODUCT: stacked.prod(0), Op.MIN: stacked.amin(0), Op.MAX: stacked.amax(0)}
    for op, wanted in expected.items():
        mine = job.values(count)
        dist.all_reduce(mine, op=op, group=job.group)
        same(mine, wanted, str(op))
    bits = job.values(count, dtype=torch.int32)
    dist.all_reduce(bits, op=Op.BXOR, group=job.group)
    for one in every:
        bits ^= one.int()
    same(bits, torch.zeros_like(bits), "BXOR, and again with all inputs")
    mine = job.values(count)
    dist.all_reduce(mine, op=Op.AVG, group=job.group)
    want(torch.allclose(mine, job.total(count) / job.ranks), "AVG")
    if job.is_cuda:
        mine, op = job.values(count), dist._make_nccl_premul_sum(0.5 + job.rank)
        dist.all_reduce(mine, op=op, group=job.group)
        want(torch.allclose(mine, sum(x * (0.5 + r) for r, x in enumerate(every))), "PREMUL_SUM")
    odd = job.values(count) % 2 == 1
    dist.all_reduce(odd, op=Op.MAX, group=job.group)
    same(odd, (stacked % 2 == 1).any(0), "MAX of bool")
    pairs = torch.complex(job.values(count), job.values(count))
    dist.all_reduce(pairs, group=job.group)
    same(torch.view_as_real(pairs)[:, 1].contiguous(), job.total(count), "SUM of complex")


def reduce_and_scatter(job: CheckJob) -> None:
    """reduce, and reduce_scatter of one tensor, of a list, and of unequal parts."""
    rank, ranks = job.rank, job.ranks
    mine = job.values(1000)
    dist.reduce(mine, ranks - 1, group=job.group)
    same(mine, job.total(1000) if rank == ranks - 1 else job.values(1000), "reduce")
    for dtype in (torch.float32, torch.bfloat16):
        part = job.empty(4096, dtype=dtype)
        dist.reduce_scatter_tensor(part, job.values(4096 * ranks, dtype=dtype), group=job.group)
        same(part, job.total(4096 * ranks, dtype).chunk(ranks)[rank], f"reduce_scatter of {dtype}")
    part = job.empty(300)
    dist.reduce_scatter(part, list(job.values(300 * ranks).chunk(ranks)), group=job.group)
    same(part, job.total(300 * ranks).chunk(ranks)[rank], "reduce_scatter of a list")
    part = job.empty(5 + rank)
    dist.reduce_scatter(part, [job.values(5 + r) for r in range(ranks)], group=job.group)
    same(part, job.total(5 + rank), "reduce_scatter of parts that differ")


def moves(job: CheckJob) -> None:
    """Every collective without a reduction, also for types that are moved only."""
    ranks, group = job.ranks, job.group
    for dtype in [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn]:
        of = [job.values(1000, rank).to(dtype) for rank in range(ranks)]
        mine = of[job.rank].clone()
        dist.broadcast(mine, ranks - 1, group=group)
        same(mine, of[-1], f"broadcast of {dtype}")
        whole = job.empty(1000 * ranks, dtype=dtype)
        dist.all_gather_into_tensor(whole, of[job.rank], group=group)
        same(whole, torch.cat(of), f"all_gather_into_tensor of {dtype}")
        apart = [job.empty(1000, dtype=dtype) for _ in of]
        dist.all_gather(apart, of[job.rank], group=group)
        same(torch.cat(apart), torch.cat(of), f"all_gather of {dtype}")
        got = [job.empty(1000, dtype=dtype) for _ in of] if job.rank == 0 else None
        dist.gather(of[job.rank], got, dst=0, group=group)
        if got is not None:
            same(torch.cat(got), torch.cat(of), f"gather of {dtype}")
        dist.scatter(mine, of if job.rank == 0 else None, src=0, group=group)
        same(mine, of[job.rank], f"scatter of {dtype}")
        dist.all_to_all_single(whole, torch.cat([of[job.rank]] * ranks), group=group)
        same(whole, torch.cat(of), f"all_to_all_single of {dtype}")


def part_of(source: int, target: int, scale: int) -> int:
    """Elements that a rank sends another; zero for some."""
    return (source * 3 + target * 5 + 1) % 4 * scale


def uneven(job: CheckJob) -> None:
    """all_to_all and all_gather of unequal parts, some empty."""
    ranks, rank, group = job.ranks, job.rank, job.group
    for scale in (1, 37, 5000, 300_000):
        out = [part_of(rank, peer, scale) for peer in range(ranks)]
        into = [part_of(peer, rank, scale) for peer in range(ranks)]
        wanted = []
        for peer in range(ranks):
            theirs = [part_of(peer, other, scale) for other in range(ranks)]
            wanted.append(job.values(sum(theirs), peer).split(theirs)[rank])
        got = job.empty(sum(into))
        dist.all_to_all_single(got, job.values(sum(out)), into, out, group=group)
        same(got, torch.cat(wanted), f"all_to_all_single at {scale}")
        takes = [job.empty(count) for count in into]
        dist.all_to_all(takes, list(job.values(sum(out)).split(out)), group=group)
        same(torch.cat(takes), torch.cat(wanted), f"all_to_all at {scale}")
        apart = [job.empty(scale + r) for r in range(ranks)]
        dist.all_gather(apart, job.values(scale + rank), group=group)
        whole = torch.cat([job.values(scale + r, r) for r in range(ranks)])
        same(torch.cat(apart), whole, f"all_gather at {scale}")


def unfit(job: CheckJob) -> None:
    """Tensors that do not match: an error, nothing written, and later calls work."""
    ranks, rank, group = job.ranks, job.rank, job.group
    room = job.empty(4 * ranks + 4096)
    short, whole = room[: 4 * ranks], job.values(64 * ranks)
    parts, mine = list(short.view(ranks, 4)), job.values(64)
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_to_all_single(short, whole, group=group),
        lambda: dist.all_gather_into_tensor(short, mine, group=group),
        lambda: dist.reduce_scatter_tensor(short, whole, group=group),
        lambda: dist.gather(mine, parts if rank == 0 else None, dst=0, group=group),
        lambda: dist.scatter(mine, parts if rank == 0 else None, src=0, group=group),
        lambda: dist.all_to_all_single(short, whole, [1] * ranks, [1] * ranks, group=group),
    ]
    for number, call in enumerate(calls):
        if job.is_cuda and number in (3, 4) and rank > 0:
            continue  # a GPU call does not report another rank's error
        want("wanted" in (said := raises(call)) or "plit sizes" in said, f"{number}: {said}")
        same(room, torch.full_like(room, 77), f"what call {number} must not write")
    dist.all_reduce(mine, group=group)
    same(mine, job.total(64), "all_reduce after errors")


def sparse(job: CheckJob) -> None:
    """A sum of sparse tensors, as gradients of embeddings; then a rank fails amid a sum."""
    rows = torch.tensor([[job.rank, job.ranks]], device=job.device)
    values = torch.ones(2, 3, device=job.device) * (job.rank + 1)
    mine = torch.sparse_coo_tensor(rows, values, (job.ranks + 1, 3), check_invariants=True)
    dist.all_reduce(mine, group=job.group)
    last = job.ranks * (job.ranks + 1) / 2
    column = torch.tensor([*range(1, job.ranks + 1), last], dtype=torch.float32)
    same(mine.to_dense(), column[:, None].expand(-1, 3).contiguous(), "the sum")
    lacks = torch.OutOfMemoryError("wanted memory")
    with patch.object(torch, "unique", side_effect=lacks if job.rank == 0 else torch.unique):
        said = raises(lambda: dist.all_reduce(mine, group=job.group))
    want("wanted memory" in said, said)


def objects(job: CheckJob) -> None:
    """Pickled objects, with sizes exchanged first."""
    told: list[Any] = [None] * job.ranks
    dist.all_gather_object(told, {"rank": job.rank, "text": "x" * job.rank}, group=job.group)
    want([one["rank"] for one in told] == list(range(job.ranks)), f"found {told}")


# Works, streams, graphs.


def asynchronous(job: CheckJob) -> None:
    """Many calls in flight; works, the works' futures, waits with a timeout."""
    every = [job.values(5000 + i) for i in range(64)]
    works = [dist.all_reduce(one, group=job.group, async_op=True) for one in every]
    future = works[-1].get_future().then(lambda done: done.value()[0] * 2)
    for work in works[:-1]:
        work.wait()
    works[-1].wait(timedelta(seconds=GROUP_S))
    want(works[-1].is_completed() and works[-1].is_success(), "a work that was waited for is done")
    for i, one in enumerate(every):
        same(one, job.total(5000 + i), f"call {i}")
    same(future.wait(), job.total(5063) * 2, "what follows the last one's future")


def nobody_waits(job: CheckJob) -> None:
    """A call keeps the tensors alive until it has ended, even if the work is dropped."""
    count = 1 << 20
    first = job.values(count)
    dist.all_reduce(first, group=job.group, async_op=True).wait()
    side = job.group._gpu_backend._stream
    for turn in range(5):
        mine = job.values(count)
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)  # so that the call comes after the following lines
        dist.all_reduce(mine, group=job.group, async_op=True)
        del mine
        others = [torch.full((count,), -1.0, device=job.device) for _ in range(4)]
        job.group._gpu_backend.synchronize()
        for one in others:
            same(one, torch.full((count,), -1.0), f"turn {turn}: memory made after the call")


def coalesced(job: CheckJob) -> None:
    """Several calls as a single work, with and without coalescing."""
    every = [job.values(3000 + i) for i in range(8)]
    with dist._coalescing_manager(job.group, job.device, async_ops=True) as manager:
        for one in every:
            dist.all_reduce(one, group=job.group)
    manager.wait()
    for i, one in enumerate(every):
        same(one, job.total(3000 + i), f"call {i}")
    with dist._coalescing_manager(job.group, job.device):
        dist.all_reduce(every[0], group=job.group)
    same(every[0], job.total(3000) * job.ranks, "a group that is waited for")
    ranks = job.ranks
    wholes = [job.empty(100 * ranks), job.empty(200 * ranks)]
    with dist._coalescing_manager(job.group, job.device, async_ops=True) as manager:
        for whole, count in zip(wholes, (100, 200), strict=True):
            dist.all_gather_into_tensor(whole, job.values(count), group=job.group)
    manager.wait()
    for whole, count in zip(wholes, (100, 200), strict=True):
        same(whole, torch.cat([job.values(count, r) for r in range(ranks)]), f"gather of {count}")


def messages(job: CheckJob) -> None:
    """send, recv, isend, irecv, tags in another order, a batch, any source."""
    rank, group = job.rank, job.group
    to, source = (rank + 1) % job.ranks, (rank - 1) % job.ranks
    gone = dist.isend(job.values(700_000), to, group=group)
    found = job.empty(700_000)
    dist.recv(found, source, group=group)
    gone.wait()
    same(found, job.values(700_000, source), "around the ranks")
    sent = [dist.isend(job.values(9 + tag), to, group=group, tag=tag) for tag in (1, 2, 3)]
    takes = {tag: job.empty(9 + tag) for tag in (3, 1, 2)}
    for work in [dist.irecv(one, source, group=group, tag=tag) for tag, one in takes.items()]:
        work.wait()
    for work in sent:
        work.wait()
    for tag, one in takes.items():
        same(one, job.values(9 + tag, source), f"tag {tag}")
    ring = job.empty(1000)
    ends = [
        dist.P2POp(dist.isend, job.values(1000), to, group),
        dist.P2POp(dist.irecv, ring, source, group),
    ]
    for work in dist.batch_isend_irecv(ends):
        work.wait()
    same(ring, job.values(1000, source), "a batch")
    if rank > 0:
        dist.send(job.values(50), 0, group=group, tag=7)
        return
    for _ in range(job.ranks - 1):
        one = job.empty(50)
        came = dist.recv(one, None, group=group, tag=7)
        same(one, job.values(50, came), f"from any rank, which was {came}")


def streams(job: CheckJob) -> None:
    """Calls of two streams in turn; an event behind a call orders another stream behind it."""
    two = [torch.cuda.Stream(), torch.cuda.Stream()]
    for turn in range(50):
        with torch.cuda.stream(two[turn % 2]):
            mine = job.values(30_000)
            dist.all_reduce(mine, group=job.group)
            same(mine, job.total(30_000), f"turn {turn}")
    for turn in range(20):
        with torch.cuda.stream(two[0]):
            torch.cuda._sleep(2_000_000)
            mine = job.values(100_000 + turn)
            work = dist.all_reduce(mine, group=job.group, async_op=True)
            work.wait()
            event = torch.cuda.Event()
            event.record()
        with torch.cuda.stream(two[1]):
            event.wait()
            twice = mine * 2
        two[1].synchronize()
        same(twice, job.total(100_000 + turn) * 2, f"event {turn}")


def captured(job: CheckJob) -> None:
    """Blocking and async calls in a single graph, replayed between eager calls."""
    group, mine, out = job.group, job.values(70_000), job.empty(70_000)
    dist.all_reduce(mine.clone(), group=group)  # creates the communicator
    dist.all_reduce(mine.clone(), group=group, async_op=True).wait()
    job.end()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(mine)
        dist.all_reduce(out, group=group)
        out.mul_(0.5)
        work = dist.all_reduce(out, group=group, async_op=True)
        work.wait(timedelta(seconds=GROUP_S))
        out.add_(1)
    for turn in range(100):
        graph.replay()
        eager = job.values(999 + turn)
        dist.all_reduce(eager, group=group)
        same(eager, job.total(999 + turn), f"an eager call after replay {turn}")
    job.end()
    same(out, job.total(70_000) * job.ranks / 2 + 1, "the graph's")


def suspended(job: CheckJob) -> None:
    """GPU memory goes and comes back; a graph captured before gives the same sums afterwards."""
    backend = job.group._get_backend(job.device)
    backend.suspend()  # before a first call
    mine, out = job.values(70_000), job.empty(70_000)
    dist.all_reduce(mine.clone(), group=job.group)
    job.end()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(mine)
        dist.all_reduce(out, group=job.group)
    for turn in range(5):
        graph.replay()
        stats = backend.memory_stats()
        want(stats["suspend"] > 8_000_000 and stats["suspended"] == 0, f"found {stats}")
        free = torch.cuda.mem_get_info(job.device)[0]
        backend.suspend()
        dist.barrier()  # memory goes once no rank maps it
        gone = torch.cuda.mem_get_info(job.device)[0] - free
        want(gone > 0.9 * stats["suspend"], f"freed {gone} of {stats}")
        want(backend.memory_stats()["suspended"] == 1, "memory_stats() of a suspended group")
        try:
            dist.all_reduce(mine.clone(), group=job.group)
            raise AssertionError("wanted an error, found none")
        except plait.InvalidArgumentError as error:
            want("is suspended" in str(error), f"found {error}")
        dist.barrier()
        backend.resume()
        graph.replay()
        job.end()
        same(out, job.total(70_000), f"the graph's after resume {turn}")
        eager = job.values(999 + turn)
        dist.all_reduce(eager, group=job.group)
        same(eager, job.total(999 + turn), f"an eager call after resume {turn}")


def captured_first(job: CheckJob) -> None:
    """A group's very first call inside a capture is an error, and the group works afterwards."""
    mine = job.values(100)
    job.end()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            dist.all_reduce(mine, group=job.group)
        raise AssertionError("wanted an error, found none")
    except plait.UnsupportedError as error:
        want("before a graph is captured" in str(error), f"found {error}")
    mine = job.values(100)
    dist.all_reduce(mine, group=job.group)
    same(mine, job.total(100), "the call after it")


def barrier(job: CheckJob) -> None:
    """A barrier of ranks that come at different times; earlier GPU work has ended afterwards."""
    mine = job.values(1 << 22)
    dist.all_reduce(mine, group=job.group, async_op=True).wait()
    time.sleep(0.2 * job.rank)
    began = time.monotonic()
    dist.barrier(group=job.group)
    if job.rank == 0:
        want(time.monotonic() - began > 0.1 * (job.ranks - 1), "rank 0 waited for the others")
    if job.is_cuda:
        want(torch.cuda.current_stream().query(), "the GPU's calls have ended")
    same(mine, job.total(1 << 22), "the sum before it")


# Training.


def losses(job: CheckJob, group: Any, wrap: Callable[[Any, Any], Any]) -> list[float]:
    """Losses of ten training steps of a small network."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)]
    model = wrap(torch.nn.Sequential(*layers).to(job.device), group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for step in range(10):
        generator = torch.Generator().manual_seed(100 * step + job.rank)
        images = torch.randn(32, 256, generator=generator).to(job.device)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def trained(job: CheckJob, wrap: Callable[[Any, Any], Any]) -> None:
    """plait's losses equal the other backend's: bit for bit with two ranks, nearly with more."""
    other = job.new_group(backend="nccl" if job.is_cuda else "gloo")
    ours, theirs = losses(job, job.group, wrap), losses(job, other, wrap)
    dist.destroy_process_group(other)
    exact = job.ranks == 2
    near = all(abs(a - b) <= 1e-4 * abs(b) for a, b in zip(ours, theirs, strict=True))
    want(ours == theirs if exact else near, f"losses {ours}, the other backend's {theirs}")
    want(ours[-1] < ours[0], f"the loss falls, found {ours}")


def ddp(job: CheckJob) -> None:
    """DistributedDataParallel with buckets of 25 KB, so that several are in flight."""

    def wrap(model: Any, group: Any) -> Any:
        return torch.nn.parallel.DistributedDataParallel(
            model, process_group=group, bucket_cap_mb=0.025
        )

    trained(job, wrap)


def fsdp(job: CheckJob) -> None:
    """fully_shard with reduce_scatter and all_gather beside the computation."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    def wrap(model: Any, group: Any) -> Any:
        mesh = DeviceMesh.from_group(group, job.device.type)
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    trained(job, wrap)


# Groups, and the end of groups.


def several_groups(job: CheckJob) -> None:
    """Groups made and destroyed in turn, a group of one rank, split groups."""
    for turn in range(3):
        groups = [job.new_group() for _ in range(2)]
        for count in (100, 30_000):
            for group in groups:
                mine = job.values(count + turn)
                dist.all_reduce(mine, group=group)
                same(mine, job.total(count + turn), f"turn {turn}")
        for group in groups:
            dist.destroy_process_group(group)
    alone = [dist.new_group([rank]) for rank in range(job.ranks)][job.rank]
    mine = job.values(100)
    dist.all_reduce(mine, group=alone)
    same(mine, job.values(100), "a group of one rank")
    half = job.group.split_group([0, 1], group_name="half")
    want((half is None) == (job.rank > 1), "who is in the half")
    if half is not None:
        mine = torch.full((10,), float(job.rank + 1), device=job.device)
        half.allreduce([mine]).wait()
        same(mine, torch.full((10,), 3.0), "a half")
        half.shutdown()


def late_rank(job: CheckJob) -> None:
    """A wait with a timeout ends in time with c10d's message; the group's own timeout ends the
    call."""
    mine = job.values(1000)
    dist.all_reduce(mine, group=job.group)
    job.end()
    group = job.new_group(4)
    dist.all_reduce(mine, group=group)
    job.end()
    if job.rank > 0:
        time.sleep(8)
        group.abort()
        return
    work = dist.all_reduce(mine, group=group, async_op=True)
    for seconds in (0.5, 10.0):
        began = time.monotonic()
        message = raises(lambda s=seconds: work.wait(timedelta(seconds=s)))
        took = time.monotonic() - began
        want("Timed out" in message or "timeout" in message, f"found {message}")
        want(took < seconds + 2, f"wanted {seconds} s, found {took:.2f} s")
    group.abort()


def raises(call: Callable[[], Any]) -> str:
    """Text of the RuntimeError of `call`."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("wanted an error, found none")


def aborted(job: CheckJob) -> None:
    """abort() from another thread ends a call that waits for a rank, and later calls."""
    mine = job.values(1000)
    dist.all_reduce(mine, group=job.group)
    job.end()
    if job.rank > 0:
        time.sleep(3)
        job.group.abort()
        return
    work = dist.all_reduce(mine, group=job.group, async_op=True)
    began = time.monotonic()
    threading.Timer(0.5, job.group.abort).start()
    message = raises(lambda: work.wait(timedelta(seconds=GROUP_S)))
    want("closed" in message, f"found {message}")
    want(time.monotonic() - began < 3, "it took longer than 3 s")
    message = raises(lambda: job.group.allreduce([mine]).wait())
    want("closed" in message, f"found {message}")


def shut_down(job: CheckJob) -> None:
    """Calls made before the group is destroyed end well; later calls are errors."""
    group = job.new_group()
    mine = job.values(1 << 22)
    work = dist.all_reduce(mine, group=group, async_op=True)
    group.shutdown()
    work.wait()
    same(mine, job.total(1 << 22), "the call before")
    message = raises(lambda: group.allreduce([mine]).wait())
    want("closed" in message, f"found {message}")
    dist.destroy_process_group(group)


def world(job: CheckJob) -> None:
    """The default group, and another group bound to a GPU from the start."""
    mine = job.values(1000)
    dist.all_reduce(mine)
    same(mine, job.total(1000), "the default group's sum")
    dist.barrier()
    dist.destroy_process_group()
    bound = {"device_id": job.device} if job.is_cuda else {}
    dist.init_process_group("plait", timeout=timedelta(seconds=GROUP_S), **bound)
    mine = job.values(1000)
    dist.all_reduce(mine)
    same(mine, job.total(1000), "a default group that was made again")


EVERYWHERE = [
    *(all_reduce_types, all_reduce_operations, reduce_and_scatter, moves, uneven, unfit),
    *(sparse, objects),
    *(asynchronous, coalesced, messages, barrier, ddp, several_groups, aborted, shut_down),
]
ON_GPUS = [nobody_waits, streams, captured, suspended, captured_first, fsdp]
# The process of a rank that waited in vain cannot use the GPU afterwards: the stream has failed.
LAST = [late_rank]


class Runner:
    """Runs checks on this rank; rank 0 reports the findings of all ranks."""

    def __init__(self, job: CheckJob, limit_s: float) -> None:
        self.job, self.limit_s = job, limit_s
        self.store = dist.PrefixStore("checks", dist.distributed_c10d._get_default_store())
        self.failed = 0

    def run(self, check: Callable[[CheckJob], None]) -> None:
        """Runs a check to the end within the time limit."""
        timer = threading.Timer(self.limit_s, self._give_up, [check.__name__])
        timer.daemon = True
        timer.start()
        began, why = time.monotonic(), ""
        try:
            if check is not world:
                self.job.group = self.job.new_group()
            check(self.job)
            if check not in LAST:
                self.job.end()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"[:1000]
            traceback.print_exc()
        self._tell(check.__name__, why, time.monotonic() - began)
        timer.cancel()
        if check is not world:
            self.job.group.abort()

    def _tell(self, name: str, why: str, seconds: float) -> None:
        self.store.set(f"{name}/{self.job.rank}", why)
        found = [f"{name}/{rank}" for rank in range(self.job.ranks)]
        self.store.wait(found, timedelta(seconds=self.limit_s))
        wrong = {key.rsplit("/")[-1]: self.store.get(key).decode() for key in found}
        wrong = {f"rank {rank}": text for rank, text in wrong.items() if text}
        self.failed += bool(wrong)
        if self.job.rank == 0:
            row = {"check": name, "device": self.job.device.type, "ranks": self.job.ranks}
            row |= {"ok": not wrong, "seconds": round(seconds, 3)}
            print(json.dumps(row | ({"why": wrong} if wrong else {})), flush=True)

    def _give_up(self, name: str) -> None:
        why = f"rank {self.job.rank}: not done after {self.limit_s} s"
        print(json.dumps({"check": name, "ok": False, "why": why}), flush=True)
        faulthandler.dump_traceback()
        os._exit(1)


def main() -> int:
    """Returns 1 if a check failed."""
    every = [*EVERYWHERE, *ON_GPUS, world, *LAST]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", help="all where none is named", metavar="CHECK")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit-s", type=float, default=60.0, help="of one check")
    args = parser.parse_args()
    is_cuda = args.device == "cuda"
    names = [check.__name__ for check in every]
    if unknown := set(args.checks) - set(names):
        parser.error(f"wanted checks among {', '.join(names)}, found {', '.join(unknown)}")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("plait", timeout=timedelta(seconds=GROUP_S))
    runner = Runner(CheckJob(device), args.limit_s)
    for check in every if is_cuda else [*EVERYWHERE, world, *LAST]:
        if not args.checks or check.__name__ in args.checks:
            runner.run(check)
    dist.destroy_process_group()
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
