"""Checks CuPy's NCCL calls over the drop-in; run with the drop-in preloaded.

First a single process for two GPUs (initAll, groups), then a process per GPU. Prints a JSON line
for each. Exit status 1 = a result was wrong.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import cupy
from cupy.cuda import nccl

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.lib.drop_in import served

COUNT = 5000
FLOAT, SUM = nccl.NCCL_FLOAT32, nccl.NCCL_SUM


def values(rank: int, count: int = COUNT) -> Any:
    """Integers below 13, with another pattern on each rank."""
    return ((cupy.arange(count) * 7 + rank * 3 + 1) % 13).astype(cupy.float32)


class CupyRank:
    """A rank's communicator, stream and buffers."""

    def __init__(self, comm: Any, rank: int, ranks: int) -> None:
        self.comm, self.rank, self.ranks = comm, rank, ranks
        with cupy.cuda.Device(rank):
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.mine, self.wide = values(rank), values(rank, COUNT * ranks)
            self.sum, self.part, self.root = (cupy.zeros_like(self.mine) for _ in range(3))
            self.all, self.ring = cupy.zeros_like(self.wide), cupy.zeros_like(self.mine)
            cupy.cuda.Device(rank).synchronize()

    def enqueue(self) -> None:
        """Five collectives and a ring of messages, between groupStart and groupEnd."""
        on = self.stream.ptr
        with cupy.cuda.Device(self.rank):
            self.comm.allReduce(self.mine.data.ptr, self.sum.data.ptr, COUNT, FLOAT, SUM, on)
            self.comm.reduceScatter(self.wide.data.ptr, self.part.data.ptr, COUNT, FLOAT, SUM, on)
            self.comm.allGather(self.mine.data.ptr, self.all.data.ptr, COUNT, FLOAT, on)
            self.comm.broadcast(self.mine.data.ptr, self.root.data.ptr, COUNT, FLOAT, 0, on)
            after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
            self.comm.send(self.mine.data.ptr, COUNT, FLOAT, after, on)
            self.comm.recv(self.ring.data.ptr, COUNT, FLOAT, before, on)

    def right(self) -> bool:
        """Checks every output against values computed here."""
        with cupy.cuda.Device(self.rank):
            self.stream.synchronize()
            everyone = range(self.ranks)
            total = sum(values(rank, COUNT * self.ranks) for rank in everyone)
            wanted = [
                (self.sum, sum(values(rank) for rank in everyone)),
                (self.part, total[self.rank * COUNT : (self.rank + 1) * COUNT]),
                (self.all, cupy.concatenate([values(rank) for rank in everyone])),
                (self.root, values(0)),
                (self.ring, values((self.rank - 1) % self.ranks)),
            ]
            return all(bool((found == known).all()) for found, known in wanted)


def one_process(ranks: int) -> bool:
    """Tests a single thread that drives all GPUs."""
    comms = nccl.NcclCommunicator.initAll(ranks)
    everyone = [CupyRank(comm, rank, ranks) for rank, comm in enumerate(comms)]
    good = True
    for _ in range(3):
        nccl.groupStart()
        for rank in everyone:
            rank.enqueue()
        nccl.groupEnd()
        good &= all([rank.right() for rank in everyone])
    print(json.dumps({"check": "cupy, one process", "ok": good, "served": served()}), flush=True)
    for comm in comms:
        comm.destroy()
    return good


def process(unique: tuple[int, ...], rank: int, ranks: int) -> None:
    """Tests a process per GPU."""
    cupy.cuda.Device(rank).use()
    mine = CupyRank(nccl.NcclCommunicator(ranks, unique, rank), rank, ranks)
    good = True
    for _ in range(3):
        nccl.groupStart()
        mine.enqueue()
        nccl.groupEnd()
        good &= mine.right()
    row = {"check": "cupy, a process a GPU", "rank": rank, "ok": good, "served": served()}
    print(json.dumps(row), flush=True)
    mine.comm.destroy()
    sys.exit(0 if good else 1)


def main() -> int:
    """Runs both; returns 1 if one failed."""
    ranks = min(2, cupy.cuda.runtime.getDeviceCount())
    good = one_process(ranks)
    spawn = multiprocessing.get_context("spawn")
    unique = nccl.get_unique_id()
    children = [spawn.Process(target=process, args=(unique, rank, ranks)) for rank in range(ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return 0 if good and all(child.exitcode == 0 for child in children) else 1


if __name__ == "__main__":
    sys.exit(main())
