"""MPI calls on device memory: mpi4py under mpirun, libplait_mpi.so preloaded, over any MPI.

The MPI need not be CUDA-aware. Every call is checked on fresh random data with poisoned outputs.
Then calls are timed against a program without plait: copies to pinned memory, and the MPI between.

    LD_PRELOAD=.../libplait_mpi.so mpirun -n 2 python tests/gpu/mpi_buffers.py

Ranks share GPUs if GPUs are fewer; then no kernels of plait's run, and buffers are staged. Rank 0
prints a JSON line per row and a line for all. Exit status 1 = a result was wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from mpi4py import MPI

COMM = MPI.COMM_WORLD
RANK, RANKS = COMM.Get_rank(), COMM.Get_size()
SIZES = (8, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20)
ROUNDS = 20


def served() -> int:
    """Number of calls that plait has served in this process; -1 without plait."""
    try:
        counted = ctypes.CDLL(None).plait_mpi_calls_served
    except AttributeError:
        return -1
    counted.restype = ctypes.c_uint64
    return int(counted())


def data(seed: int, rank: int, count: int) -> torch.Tensor:
    """Input of a rank, on the GPU: integers, so that sums are exact."""
    made = torch.Generator(device="cuda").manual_seed(seed * 1009 + rank)
    return torch.randint(-1000, 1000, (count,), generator=made, device="cuda").float()


def poisoned(count: int) -> torch.Tensor:
    return torch.full((count,), float("nan"), device="cuda")


def all_data(seed: int, count: int) -> torch.Tensor:
    return torch.stack([data(seed, rank, count) for rank in range(RANKS)])


def all_reduce(seed: int, count: int) -> bool:
    mine, out = data(seed, RANK, count), poisoned(count)
    torch.cuda.synchronize()
    COMM.Allreduce(mine, out)
    again = mine.clone()
    torch.cuda.synchronize()
    COMM.Iallreduce(MPI.IN_PLACE, again).Wait()
    total = all_data(seed, count).sum(0)
    return torch.equal(out, total) and torch.equal(again, total)


def reduce_scatter(seed: int, count: int) -> bool:
    part = max(1, count // RANKS)
    mine, out = data(seed, RANK, part * RANKS), poisoned(part)
    torch.cuda.synchronize()
    COMM.Reduce_scatter_block(mine, out)
    total = all_data(seed, part * RANKS).sum(0)
    return torch.equal(out, total[part * RANK : part * (RANK + 1)])


def all_gather(seed: int, count: int) -> bool:
    part = max(1, count // RANKS)
    mine, out = data(seed, RANK, part), poisoned(part * RANKS)
    torch.cuda.synchronize()
    COMM.Allgather(mine, out)
    return torch.equal(out, all_data(seed, part).flatten())


def counts_by_rank(seed: int, count: int) -> bool:
    """Reduce_scatter and Allgatherv with a count per rank: equal, then unequal counts."""
    right = True
    for more in (0, 3):
        counts = [max(1, count // RANKS) + rank * more for rank in range(RANKS)]
        begin, whole = sum(counts[:RANK]), sum(counts)
        mine, out = data(seed, RANK, whole), poisoned(counts[RANK])
        torch.cuda.synchronize()
        COMM.Reduce_scatter(mine, out, counts)
        total = all_data(seed, whole).sum(0)
        right &= torch.equal(out, total[begin : begin + counts[RANK]])
        part, gathered = data(seed, RANK, counts[RANK]), poisoned(whole)
        torch.cuda.synchronize()
        COMM.Allgatherv(part, [gathered, counts])
        wanted = torch.cat([data(seed, rank, counts[rank]) for rank in range(RANKS)])
        right &= torch.equal(gathered, wanted)
    return right


def all_to_all(seed: int, count: int) -> bool:
    part = max(1, count // RANKS)
    mine, out = data(seed, RANK, part * RANKS), poisoned(part * RANKS)
    torch.cuda.synchronize()
    COMM.Alltoall(mine, out)
    everything = all_data(seed, part * RANKS).view(RANKS, RANKS, part)
    return torch.equal(out, everything[:, RANK].flatten())


def broadcast(seed: int, count: int) -> bool:
    root = seed % RANKS
    buffer = data(seed, root, count) if root == RANK else poisoned(count)
    torch.cuda.synchronize()
    COMM.Bcast(buffer, root)
    return torch.equal(buffer, data(seed, root, count))


def rooted(seed: int, count: int) -> bool:
    """Reduce, then gather and scatter."""
    root, part = seed % RANKS, max(1, count // RANKS)
    mine, out = data(seed, RANK, count), poisoned(count)
    torch.cuda.synchronize()
    COMM.Reduce(mine, out if root == RANK else None, root=root)
    right = root != RANK or torch.equal(out, all_data(seed, count).sum(0))
    piece, whole = data(seed, RANK, part), poisoned(part * RANKS)
    torch.cuda.synchronize()
    COMM.Gather(piece, whole if root == RANK else None, root)
    right &= root != RANK or torch.equal(whole, all_data(seed, part).flatten())
    back, parts = poisoned(part), data(seed, root, part * RANKS)
    torch.cuda.synchronize()
    COMM.Scatter(parts if root == RANK else None, back, root)
    return right and torch.equal(back, parts[part * RANK : part * (RANK + 1)])


def mixed(seed: int, count: int) -> bool:
    """Odd ranks pass host memory."""
    mine, out = data(seed, RANK, count), poisoned(count)
    if RANK % 2 == 1:
        mine, out = mine.cpu(), out.cpu()
    torch.cuda.synchronize()
    COMM.Allreduce(mine.numpy() if RANK % 2 else mine, out.numpy() if RANK % 2 else out)
    return torch.equal(out.cuda(), all_data(seed, count).sum(0))


def ring(seed: int, count: int) -> bool:
    """Blocking, non-blocking and persistent messages to the next rank."""
    right_rank, left_rank = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    mine, wanted = data(seed, RANK, count), data(seed, left_rank, count)
    outs = [poisoned(count) for _ in range(3)]
    torch.cuda.synchronize()
    COMM.Sendrecv(mine, right_rank, 1, outs[0], left_rank, 1)
    requests = [COMM.Irecv(outs[1], left_rank, 2), COMM.Isend(mine, right_rank, 2)]
    MPI.Request.Waitall(requests)
    kept = [COMM.Recv_init(outs[2], left_rank, 3), COMM.Send_init(mine, right_rank, 3)]
    for _ in range(2):
        outs[2].fill_(float("nan"))
        torch.cuda.synchronize()
        MPI.Prequest.Startall(kept)
        MPI.Request.Waitall(kept)
    for request in kept:
        request.Free()
    return all(torch.equal(out, wanted) for out in outs)


def persistent(seed: int, count: int) -> bool:
    """Each rank starts the calls in a different order, with a blocking call in between."""
    part = max(1, count // RANKS)
    ins = [data(seed + at, RANK, part * RANKS) for at in range(4)]
    outs = [poisoned(part * RANKS) for _ in ins]
    try:
        kept = [COMM.Allreduce_init(ins[at], outs[at]) for at in range(3)]
        kept.append(COMM.Alltoall_init(ins[3], outs[3]))
    except NotImplementedError:
        return True  # this mpi4py was built for an MPI without these
    total = poisoned(part * RANKS)
    for _ in range(2):
        for out in outs:
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        MPI.Prequest.Startall(kept if RANK % 2 else kept[::-1])
        COMM.Allreduce(ins[0], total)
        MPI.Request.Waitall(kept)
    for request in kept:
        request.Free()
    sums = [all_data(seed + at, part * RANKS).sum(0) for at in range(3)]
    right = all(torch.equal(out, wanted) for out, wanted in zip(outs, sums, strict=False))
    everything = all_data(seed + 3, part * RANKS).view(RANKS, RANKS, part)
    right &= torch.equal(outs[3], everything[:, RANK].flatten())
    return right and torch.equal(total, sums[0])


def columns(seed: int, count: int) -> bool:
    """Receives a matrix column from each rank and writes the gaps in between meanwhile."""
    rows, width = max(1, min(count, 2000)), RANKS + 1
    grid = torch.full((rows, width), float("nan"), device="cuda")
    column = MPI.FLOAT.Create_vector(rows, 1, width).Commit()
    mine = data(seed, RANK, rows)
    torch.cuda.synchronize()
    flat = grid.flatten()
    into = [COMM.Irecv([flat[rank:], 1, column], rank, 4) for rank in range(RANKS)]
    grid[:, RANKS] = 7
    torch.cuda.synchronize()
    out = [COMM.Isend(mine, rank, 4) for rank in range(RANKS)]
    MPI.Request.Waitall(into + out)
    column.Free()
    wanted = torch.cat([all_data(seed, rows).T, torch.full((rows, 1), 7.0, device="cuda")], 1)
    return torch.equal(grid, wanted)


CHECKS: tuple[Callable[[int, int], bool], ...] = (
    all_reduce,
    reduce_scatter,
    all_gather,
    counts_by_rank,
    all_to_all,
    broadcast,
    rooted,
    mixed,
    ring,
    persistent,
    columns,
)


def median_us(call: Callable[[], Any]) -> float:
    """Times of the slowest rank."""
    times = []
    for turn in range(ROUNDS + 3):
        COMM.Barrier()
        begin = time.perf_counter()
        call()
        took = COMM.allreduce(time.perf_counter() - begin, MPI.MAX)
        if turn >= 3:
            times.append(took * 1e6)
    return sorted(times)[len(times) // 2]


def timed(count: int) -> dict[str, float]:
    mine, out = data(1, RANK, count), poisoned(count)
    host_in, host_out = torch.empty(count).pin_memory(), torch.empty(count).pin_memory()
    torch.cuda.synchronize()

    def by_hand() -> None:
        host_in.copy_(mine)
        COMM.Allreduce(host_in.numpy(), host_out.numpy())
        out.copy_(host_out)
        torch.cuda.synchronize()

    plait = median_us(lambda: COMM.Allreduce(mine, out))
    hand = median_us(by_hand)
    return {"us": plait, "by_hand_us": hand, "ratio": hand / plait}


def main() -> int:
    torch.cuda.set_device(RANK % torch.cuda.device_count())
    torch.zeros(1, device="cuda")
    wrong = checked = 0
    for seed in range(3):
        for size in SIZES:
            for check in CHECKS:
                right = COMM.allreduce(check(seed, max(1, size // 4 - seed)), MPI.LAND)
                checked += 1
                wrong += not right
                if not right and RANK == 0:
                    print(json.dumps({"wrong": check.__name__, "bytes": size}), flush=True)
    for size in SIZES:
        row = timed(max(1, size // 4))
        if RANK == 0:
            print(json.dumps({"call": "Allreduce", "bytes": size} | row), flush=True)
    if RANK == 0:
        preload = "plait" in os.environ.get("LD_PRELOAD", "")
        total = {"checked": checked, "wrong": wrong, "served": served(), "preload": preload}
        print(json.dumps(total | {"ranks": RANKS, "gpus": torch.cuda.device_count()}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
