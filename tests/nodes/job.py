"""A rank of a job that compares every collective over nodes with a reference, for test_nodes.py.

    mpiexec -n 4 python tests/nodes/job.py MODE

PLAIT_NODE_SIZE splits the ranks of this machine into nodes. Rank 0 prints a JSON line.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ml_dtypes
import numpy as np

import plait

TYPES = ("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
COUNTS = (1, 7, 1001)


def inputs(rank: int, shape: int, dtype: str) -> np.ndarray[Any, Any]:
    """Returns numbers whose float sums are rounded, so that another order gives other bits."""
    source = np.random.default_rng(1000 * rank + shape)
    if np.dtype(dtype).kind in "iu":
        return source.integers(0, 5, shape).astype(dtype)
    return (source.standard_normal(shape) * 8.0 ** source.integers(-2, 3, shape)).astype(dtype)


def total(parts: list[np.ndarray[Any, Any]], op: str) -> np.ndarray[Any, Any]:
    """Returns the sum in rank order; 16-bit floats are summed in fp32 and rounded once."""
    dtype = parts[0].dtype
    wide = np.float32 if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[op]
    whole = parts[0].astype(wide)
    for part in parts[1:]:
        whole = combine(whole, part.astype(wide))
    return whole.astype(dtype)


class Checks:
    """Counts comparisons and collects differences."""

    def __init__(self) -> None:
        self.count = 0
        self.wrong: list[str] = []

    def same(self, what: str, found: Any, wanted: Any) -> None:
        self.count += 1
        if np.asarray(found).tobytes() != np.ascontiguousarray(wanted).tobytes():
            self.wrong.append(what)


def collectives(comm: plait.Communicator, checks: Checks) -> None:
    n, me = comm.ranks, comm.rank
    for dtype in TYPES:
        kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
        for count in COUNTS:
            about = f"{dtype} x {count}"
            each = [inputs(rank, count, kind) for rank in range(n)]
            all_ = [inputs(rank, count * n, kind) for rank in range(n)]
            for op in ("sum", "max") if dtype != "int8" else ("sum", "max", "min", "prod"):
                checks.same(
                    f"all_reduce {op} {about}", comm.all_reduce(each[me], op), total(each, op)
                )
            block = slice(me * count, (me + 1) * count)
            checks.same(
                f"reduce_scatter {about}", comm.reduce_scatter(all_[me]), total(all_, "sum")[block]
            )
            checks.same(f"all_gather {about}", comm.all_gather(each[me]), np.concatenate(each))
            checks.same(
                f"all_to_all {about}",
                comm.all_to_all(all_[me]),
                np.concatenate([part[block] for part in all_]),
            )
            for root in (0, n - 1):
                checks.same(f"broadcast {about}", comm.broadcast(each[me], root=root), each[root])
                found = comm.reduce(each[me], root=root)
                if me == root:
                    checks.same(f"reduce {about}", found, total(each, "sum"))
                found = comm.gather(each[me], root=root)
                if me == root:
                    checks.same(f"gather {about}", found, np.concatenate(each))
                found = comm.scatter(all_[root], root=root)
                checks.same(f"scatter {about}", found, all_[root][block])


def strategies(comm: plait.Communicator, checks: Checks) -> None:
    """Checks reductions up to 1 MB of whole numbers, exact in any order. Rank 0 works in place."""
    n, me, strategy = comm.ranks, comm.rank, sys.argv[2]
    for count in (5, 1001, 1 << 18):
        source = [
            np.random.default_rng(rank + count).integers(-9, 9, n * count) for rank in range(n)
        ]
        for dtype in ("float32", "float16", "int64"):
            each = [part[:count].astype(dtype) for part in source]
            for op in ("sum", "max", "avg"):
                if op == "avg" and dtype != "float32":
                    continue
                mine = each[me].copy()
                out = mine if me == 0 else np.full_like(mine, 99)
                comm.all_reduce(mine, op, out=out, strategy=strategy)
                wanted = total(each, "sum" if op == "avg" else op)
                checks.same(f"{op} {dtype} x {count}", out, wanted / n if op == "avg" else wanted)
            if strategy in ("library", "multi_node"):
                found = comm.send_recv(each[me], strategy=strategy)
                checks.same(f"send_recv {dtype} x {count}", found, each[(me - 1) % n])
                mine = np.full_like(each[me], 99)
                comm.copy(each[me], src=1, dst=1, out=mine, strategy=strategy)
                if me == 1:
                    checks.same(f"copy to itself {dtype} x {count}", mine, each[1])


def refusals(comm: plait.Communicator, checks: Checks) -> None:
    """Checks that a mistake of a single rank is an error on all ranks, and that later calls
    work."""
    for _ in range(3):
        try:
            comm.all_reduce(np.ones(10 + (comm.rank == comm.ranks - 1), np.float32))
            checks.wrong.append("ranks with different counts were not refused")
        except plait.Error as error:
            culprit = f"rank {comm.ranks - 1}"
            checks.same("refusal", culprit in str(error), True)
        checks.same(
            "sum after the refusal", comm.all_reduce(np.ones(3)), np.full(3, float(comm.ranks))
        )
    comm.barrier()


def copies(comm: plait.Communicator, checks: Checks) -> None:
    """Copies between every two ranks, which other ranks of both nodes take part in."""
    for count in (1, 1001, 100_000):
        for src in range(comm.ranks):
            for dst in range(comm.ranks):
                out = np.full(count, 99.0)
                comm.copy(np.full(count, src + 1.0), src, dst, out=out)
                found = src + 1.0 if comm.rank == dst else 99.0
                checks.same(f"copy {src} to {dst} x {count}", out, np.full(count, found))


def pairs(comm: plait.Communicator, checks: Checks) -> None:
    """Exchanges between every two ranks, in a single node and across nodes. Then all ranks
    reduce."""
    me = comm.rank
    for count in (1, 1001, 1 << 20):
        for peer in range(comm.ranks):
            if peer == me:
                continue
            out = np.zeros(count)
            if me < peer:
                comm.send(np.full(count, me + 1.0), peer)
                comm.recv(out, peer)
            else:
                comm.recv(out, peer)
                comm.send(np.full(count, me + 1.0), peer)
            checks.same(f"recv from {peer} x {count}", out, np.full(count, peer + 1.0))
            found = comm.exchange_with(np.full(count, 10.0 * me), peer)
            checks.same(f"exchange with {peer} x {count}", found, np.full(count, 10.0 * peer))
    checks.same(
        "sum after the messages", comm.all_reduce(np.ones(3)), np.full(3, float(comm.ranks))
    )
    ways = comm.counters().calls_of
    moved = sum(ways[way] for way in ways if way.startswith(("copy", "send_recv")))
    checks.same("calls of pairs", moved, 3 * 3 * (comm.ranks - 1))


JOBS = {
    "collectives": collectives,
    "strategies": strategies,
    "refusals": refusals,
    "copies": copies,
    "pairs": pairs,
}


def main() -> None:
    from mpi4py import MPI

    checks = Checks()
    comm = plait.init()
    JOBS[sys.argv[1]](comm, checks)
    facts = {"ranks": comm.ranks, "topology": comm.topology.name}
    wrong = MPI.COMM_WORLD.gather((checks.count, checks.wrong))
    if wrong is not None:
        counts, lists = zip(*wrong, strict=True)
        print(
            json.dumps(
                {**facts, "checks": sum(counts), "wrong": [one for part in lists for one in part]}
            )
        )


if __name__ == "__main__":
    main()
