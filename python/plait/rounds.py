"""All-reduce as MPI libraries run it: rounds of messages posted by a host thread, as plans.

The algorithms that the direct-sendrecv talk compares: direct, reduce-scatter-all-gather
(Rabenseifner), ring and recursive doubling, on GPU memory or staged through the CPU.
"""

from __future__ import annotations

import plait
from plait.sketch import KERNEL, Event, Sketch

RENDEZVOUS_BYTES = 64 << 10  # from here MPI libraries ask the receiver first; typical

Sends = list[tuple[int, int, int]]  # (rank, peer, bytes)


class Rounds:
    """A plan in rounds: all ranks post their messages, then wait for theirs."""

    def __init__(self, topology: plait.Topology, ranks: int, size: int, name: str) -> None:
        request = plait.Request("all_reduce", size // 4, "fp32", "sum", ranks)
        self.sketch = Sketch(topology, request, name, kernel="host_loop")
        self.ranks = ranks
        self.offset = 0

    def _post(self, sends: Sends, size_of: dict[tuple[int, int], int]) -> list[tuple[int, Event]]:
        waits = []
        for rank, peer, _ in sends:
            size = size_of[(rank, peer)]
            ops = self.sketch.ops(rank, KERNEL, "host")
            self.sketch.copy(
                ops,
                ("scratch", peer, self.offset, size),
                ("input", rank, 0, size),
                self.sketch.direct(rank, peer),
            )
            waits.append((peer, self.sketch.signal(rank, "host", peer)))
        return waits

    def _await(self, waits: list[tuple[int, Event]]) -> None:
        for rank, event in waits:
            Sketch.wait(self.sketch.ops(rank, KERNEL, "host"), event)

    def exchange(self, sends: Sends) -> None:
        """One round; large messages are announced and accepted first."""
        if max(size for _, _, size in sends) >= RENDEZVOUS_BYTES:
            self._await(self._post(sends, {(a, b): 64 for a, b, _ in sends}))
            back = [(b, a, s) for a, b, s in sends]
            self._await(self._post(back, {(b, a): 64 for a, b, _ in sends}))
        self._await(self._post(sends, {(a, b): size for a, b, size in sends}))
        self.offset += max(size for _, _, size in sends)

    def reduce(self, size: int, sources: int) -> None:
        for rank in range(self.ranks):
            ops = self.sketch.ops(rank, KERNEL, "host")
            srcs = [("scratch", rank, index * size, size) for index in range(sources)]
            Sketch.reduce(ops, ("output", rank, 0, size), srcs)

    def stage(self, size: int, hop: int) -> None:
        """To the host (hop 0) or back (hop 1), by a copy engine's time: one launch each."""
        for rank in range(self.ranks):
            lane = f"stage{hop}"
            ops = self.sketch.ops(rank, "copy_engine", lane)
            if hop:
                Sketch.wait(ops, self.sketch.signal(rank, "host", rank))
            place = self.sketch.device(rank)
            label = self.sketch.topology.device_label(place)
            numa = self.sketch.topology.devices[place].numa
            path = f"host:{label}>numa{numa}"
            self.sketch.copy(ops, ("ring", rank, 0, size), ("input", rank, 0, size), path, 0)


def direct(rounds: Rounds, size: int, throttle: int, fused: bool = True, overlap: bool = True) -> None:
    """Every rank sends each peer its shard, `throttle` peers at a time, then its sum to all."""
    ranks, shard = rounds.ranks, max(1, size // rounds.ranks)
    for phase in range(2):
        for first in range(1, ranks, throttle):
            steps = range(first, min(first + throttle, ranks))
            rounds.exchange([(r, (r + k) % ranks, shard) for k in steps for r in range(ranks)])
            if phase == 0 and not fused and not overlap:
                for _ in steps:
                    rounds.reduce(shard, 2)
        if phase == 0 and (fused or overlap):
            rounds.reduce(shard, ranks if fused else 2 * (ranks - 1))


def reduce_scatter_all_gather(rounds: Rounds, size: int) -> None:
    """Recursive halving, then recursive doubling (Rabenseifner); ranks a power of two."""
    part = size
    distance = rounds.ranks // 2
    while distance:
        part //= 2
        rounds.exchange([(r, r ^ distance, part) for r in range(rounds.ranks)])
        rounds.reduce(part, 2)
        distance //= 2
    distance = 1
    while distance < rounds.ranks:
        rounds.exchange([(r, r ^ distance, part) for r in range(rounds.ranks)])
        part *= 2
        distance *= 2


def ring(rounds: Rounds, size: int) -> None:
    shard = max(1, size // rounds.ranks)
    for step in range(2 * (rounds.ranks - 1)):
        rounds.exchange([(r, (r + 1) % rounds.ranks, shard) for r in range(rounds.ranks)])
        if step < rounds.ranks - 1:
            rounds.reduce(shard, 2)


def recursive_doubling(rounds: Rounds, size: int) -> None:
    distance = 1
    while distance < rounds.ranks:
        rounds.exchange([(r, r ^ distance, size) for r in range(rounds.ranks)])
        rounds.reduce(size, 2)
        distance *= 2


def time_us(topology: plait.Topology, ranks: int, size: int, algorithm: str, throttle: int = 4) -> float:
    """Simulated microseconds of one algorithm on GPU memory."""
    rounds = Rounds(topology, ranks, size, algorithm)
    if algorithm.startswith("direct"):
        direct(rounds, size, throttle, algorithm == "direct", algorithm != "direct_naive")
    else:
        ALGORITHMS[algorithm](rounds, size)
    return plait.simulate(rounds.sketch.plan(), topology).total_ns / 1e3


ALGORITHMS = {
    "reduce_scatter_all_gather": reduce_scatter_all_gather,
    "ring": ring,
    "recursive_doubling": recursive_doubling,
}
