"""Times all-reduces over several nodes by pieces, with the simulator's times and MPI's own.

Each rank of the MPI job runs this program. Nodes are the hosts of the launcher, or pretended by
PLAIT_NODE_SIZE. Prints medians of the slowest rank. Each result must equal MPI's on fresh data, in
an output poisoned before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI

import plait
from bench.lib import rows, variants
from plait import _core

VARIANTS = [("multi_node", pieces) for pieces in (1, 4, 16, 64)]
VARIANTS += [("node_order", pieces) for pieces in (1, 16)]
WORLD = MPI.COMM_WORLD


def slowest_s(
    comm: plait.Communicator, call: Callable[..., object], *args: Any, **how: Any
) -> float:
    comm.barrier()
    began = time.perf_counter()
    call(*args, **how)
    return float(WORLD.allreduce(time.perf_counter() - began, MPI.MAX))


def measure(
    comm: plait.Communicator, tree: plait.Communicator, mib: int, turns: int
) -> list[dict[str, Any]]:
    """Times strategies by name, and the chosen ones without an order and in order `tree`."""
    count = mib << 18
    source = np.random.default_rng(comm.rank)
    times: dict[str, list[float]] = {}
    for _ in range(turns + 1):  # the first turn does not count
        mine = source.integers(-9, 9, count).astype(np.float32)
        wanted = np.empty_like(mine)
        taken = slowest_s(comm, WORLD.Allreduce, mine, wanted)
        times.setdefault("MPI_Allreduce", []).append(taken)
        for strategy, pieces in VARIANTS:
            found = np.full_like(mine, np.nan)
            how = {"strategy": strategy, "params": {"pieces": pieces}}
            taken = slowest_s(comm, comm.all_reduce, mine, out=found, **how)
            times.setdefault(f"{strategy} pieces={pieces}", []).append(taken)
            if not np.array_equal(found, wanted):
                raise SystemExit(f"wrong sums by {strategy} in {pieces} pieces")
        for way, one in (("chosen", comm), ("chosen in a tree", tree)):
            found = np.full_like(mine, np.nan)
            times.setdefault(way, []).append(slowest_s(one, one.all_reduce, mine, out=found))
            if not np.array_equal(found, wanted):
                raise SystemExit(f"wrong sums: {way}")
    found = []
    for variant, seconds in variants.medians(
        {key: all_[1:] for key, all_ in times.items()}
    ).items():
        row = {"way": variant, "ranks": comm.ranks, "MiB": mib}
        row |= {"ms": round(1e3 * seconds, 1), "simulated_ms": ""}
        if "pieces=" in variant:
            request = plait.Request("all_reduce", count, "fp32", ranks=comm.ranks)
            pieces = {"pieces": int(variant.rpartition("=")[2])}
            plan = comm.plan_for(request, variant.partition(" ")[0], pieces)
            row["simulated_ms"] = round(_core.predicted_ns(plan, comm.topology) / 1e6, 1)
        found.append(row)
    return found


def run(given: SimpleNamespace) -> None:
    comm = plait.init()
    found = measure(comm, plait.init(sum_order="tree"), given.mib, given.turns)
    if comm.rank == 0:
        rows.show(found)
        rows.keep(given.csv, found)
