"""Plans of all-reduces of MPI libraries: rounds of messages posted by a host thread.

The direct-sendrecv talk compares these algorithms: direct, reduce-scatter-all-gather
(Rabenseifner), ring and recursive doubling, on GPU memory or staged through the CPU.
"""

from __future__ import annotations

from typing import Any

import plait
from plait.evidence.sketch import KERNEL, Event, Sketch

RENDEZVOUS_BYTES = 64 << 10  # typical threshold of the rendezvous protocol

Sends = list[tuple[int, int, int]]  # (rank, peer, bytes)


class RoundSketch:
    """A plan in rounds: all ranks post messages, then wait for incoming messages."""

    def __init__(self, topology: plait.Topology, ranks: int, size: int, name: str) -> None:
        request = plait.Request("all_reduce", size // 4, "fp32", "sum", ranks)
        self.sketch = Sketch(topology, request, name, kernel="host_loop")
        self.ranks = ranks
        self.offset = 0

    def _await(self, waits: list[tuple[int, Event]]) -> None:
        for rank, event in waits:
            Sketch.wait(self.sketch.ops(rank, KERNEL, "host"), event)

    def announce(self, sends: Sends) -> None:
        """Adds the handshake of the rendezvous protocol: request and reply."""
        if max(size for _, _, size in sends) < RENDEZVOUS_BYTES:
            return
        for a, b in ((0, 1), (1, 0)):
            for send in sends:
                self.sketch.ops(send[a], KERNEL, "host")
            waits = [(send[b], self.sketch.signal(send[a], "host", send[b])) for send in sends]
            self._await(waits)

    def exchange(self, sends: Sends) -> None:
        """Adds a round: posts all messages, then waits for incoming messages."""
        for rank, peer, size in sends:
            self.sketch.copy(
                self.sketch.ops(rank, KERNEL, "host"),
                ("scratch", peer, self.offset, size),
                ("input", rank, 0, size),
                self.sketch.direct(rank, peer),
            )
        self._await([(peer, self.sketch.signal(rank, "host", peer)) for rank, peer, _ in sends])
        self.offset += max(size for _, _, size in sends)

    def reduce(self, size: int, sources: int) -> None:
        for rank in range(self.ranks):
            ops = self.sketch.ops(rank, KERNEL, "host")
            srcs = [("scratch", rank, index * size, size) for index in range(sources)]
            Sketch.reduce(ops, ("output", rank, 0, size), srcs)


def direct(
    rounds: RoundSketch, size: int, throttle: int, fused: bool = True, overlap: bool = True
) -> None:
    """Adds direct all-reduce: each rank sends shards to `throttle` peers at a time, then the sum to
    all."""
    ranks, shard = rounds.ranks, max(1, size // rounds.ranks)
    # All receives are posted ahead, so the handshakes cost one round trip in total.
    rounds.announce([(r, (r + 1) % ranks, shard) for r in range(ranks)])
    for phase in range(2):
        for first in range(1, ranks, throttle):
            steps = range(first, min(first + throttle, ranks))
            rounds.exchange([(r, (r + k) % ranks, shard) for k in steps for r in range(ranks)])
            if phase == 0 and not fused and not overlap:
                for _ in steps:
                    rounds.reduce(shard, 2)
        if phase == 0 and (fused or overlap):
            rounds.reduce(shard, ranks if fused else 2 * (ranks - 1))


def _pairs(rounds: RoundSketch, distance: int, size: int) -> None:
    sends = [(r, r ^ distance, size) for r in range(rounds.ranks)]
    rounds.announce(sends)
    rounds.exchange(sends)


def reduce_scatter_all_gather(rounds: RoundSketch, size: int) -> None:
    """Recursive halving, then recursive doubling (Rabenseifner); ranks a power of two."""
    part = size
    distance = rounds.ranks // 2
    while distance:
        part //= 2
        _pairs(rounds, distance, part)
        rounds.reduce(part, 2)
        distance //= 2
    distance = 1
    while distance < rounds.ranks:
        _pairs(rounds, distance, part)
        part *= 2
        distance *= 2


def ring(rounds: RoundSketch, size: int) -> None:
    shard = max(1, size // rounds.ranks)
    for step in range(2 * (rounds.ranks - 1)):
        sends = [(r, (r + 1) % rounds.ranks, shard) for r in range(rounds.ranks)]
        rounds.announce(sends)
        rounds.exchange(sends)
        if step < rounds.ranks - 1:
            rounds.reduce(shard, 2)


def recursive_doubling(rounds: RoundSketch, size: int) -> None:
    distance = 1
    while distance < rounds.ranks:
        _pairs(rounds, distance, size)
        rounds.reduce(size, 2)
        distance *= 2


ALGORITHMS = {
    "reduce_scatter_all_gather": reduce_scatter_all_gather,
    "ring": ring,
    "recursive_doubling": recursive_doubling,
}


def time_us(
    topology: plait.Topology, ranks: int, size: int, algorithm: str, throttle: int = 4
) -> float:
    """Returns simulated us of an algorithm on GPU memory."""
    rounds = RoundSketch(topology, ranks, size, algorithm)
    if algorithm.startswith("direct"):
        direct(rounds, size, throttle, algorithm == "direct", algorithm != "direct_naive")
    else:
        ALGORITHMS[algorithm](rounds, size)
    return plait.simulate(rounds.sketch.plan(), topology).total_ns / 1e3


def staged_us(topology: plait.Topology, ranks: int, size: int, algorithm: str) -> float:
    """Returns us of an algorithm staged through the CPU: copy to host, algorithm, copy back.

    The CPU reduces a small message in cache without launching a kernel.
    """
    json_topology = topology.to_json()
    on_cpu = plait.Topology.from_json(json_topology)
    parameters: dict[str, Any] = dict(on_cpu.parameters)
    for key in ("kernel_launch_ns", "host_call_ns"):
        parameters[key] = _parameter(0.0, "the CPU reduces by itself")
    on_cpu.parameters = parameters
    copies = 2 * (topology.parameter("copy_launch_ns", 9000.0) + 1000.0) / 1e3
    return copies + time_us(on_cpu, ranks, size, algorithm, throttle=ranks)


def _parameter(value: float, source: str) -> object:
    made = plait._core.Parameter()
    made.value, made.source = value, source
    return made
