"""Right and wrong strategies, and ranks that run them; for test_planning.py."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import plait
from plait.bench.oracle import Oracle
from plait.launch import Emit


def pair_sum(
    topology: plait.Topology, request: plait.Request, *, chunks: int = 3, ranks: int = 0
) -> plait.Plan:
    """Sends every rank's input to all ranks; sums in rank order."""
    del ranks
    builder = plait.Builder(topology, request, "pair_sum")
    everyone = range(request.ranks)

    def step(courier: plait.Courier, chunk: plait.Range) -> None:
        for rank in everyone:
            for peer in everyone:
                if peer != rank:
                    courier.send(rank, peer, [builder.input(rank, chunk)])
        for rank in everyone:
            came = {
                peer: courier.receive(rank, peer, chunk.bytes) for peer in everyone if peer != rank
            }
            mine = builder.input(rank, chunk)
            parts = [came[peer].region if peer != rank else mine for peer in everyone]
            courier.reduce(rank, builder.output(rank, chunk), parts)
            for message in came.values():
                courier.release(message)

    plait.in_chunks(
        builder, "all", step, chunks=chunks, slots=2, scratch_per_byte=2.0 * request.ranks
    )
    builder.param("ranks", request.ranks)
    return builder.build()


def races(topology: plait.Topology, request: plait.Request) -> plait.Plan:
    """Pushes into a peer's scratch without a signal: a race."""
    builder = plait.Builder(topology, request, "races")
    whole = plait.whole_range(request)
    slots = [builder.alloc("scratch", rank, whole.bytes) for rank in range(2)]
    for rank in range(2):
        lane = builder.lane(rank)
        builder.copy(lane, slots[1 - rank], builder.input(rank))
        parts = [builder.input(rank), slots[rank]]
        builder.reduce(lane, builder.output(rank), parts if rank == 0 else parts[::-1])
    return builder.build()


def unequal(topology: plait.Topology, request: plait.Request) -> plait.Plan:
    return pair_sum(topology, request, chunks=1 + int(os.environ["RANK"]))


def raises(topology: plait.Topology, request: plait.Request) -> plait.Plan:
    return {}[3]


def no_plan(topology: plait.Topology, request: plait.Request) -> Any:
    return None


def other_request(topology: plait.Topology, request: plait.Request) -> plait.Plan:
    return pair_sum(topology, plait.Request("all_reduce", 3, "fp32", ranks=2))


def refuses(topology: plait.Topology, request: plait.Request) -> plait.Plan:
    raise plait.UnsupportedError("not on such machines")


def add(name: str) -> None:
    plait.strategy(collectives=["all_reduce"])(globals()[name])


def by_name(task: dict[str, Any], emit: Emit) -> None:
    """Compares a call by pair_sum with the oracle."""
    add("pair_sum")
    comm = plait.init()
    oracle = Oracle(plait.Request("all_reduce", task["count"], "fp32", ranks=comm.ranks), seed=1)
    result = comm.all_reduce(
        oracle.input(comm.rank), strategy="pair_sum", params={"ranks": comm.ranks}
    )
    wrong = oracle.wrong(comm.rank, result, bitwise=True)
    (counted,) = comm.counters().calls_of
    emit({"rank": comm.rank, "wrong": wrong, "by": counted})


def wrong(task: dict[str, Any], emit: Emit) -> None:
    """Makes a call by a wrong strategy, then a call by plait's choice."""
    add(task["strategy"])
    comm = plait.init()
    mine = np.full(2000, 1.0 + comm.rank, np.float32)
    try:
        comm.all_reduce(mine, strategy=task["strategy"])
    except plait.Error as error:
        after = float(comm.all_reduce(mine)[0])
        kind = type(error).__name__
        emit({"rank": comm.rank, "kind": kind, "error": str(error), "after": after})
