"""Inputs and expected outputs of collectives, for benchmarks and tests.

Every rank's input is a random pattern with a prime period. Hence a misplaced shard, tile or chunk
shows, and outputs of any size are checked in full.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import plait
from plait.arrays import DTYPE_OF_TYPE
from plait.bench import reductions

Array = np.ndarray[Any, Any]
PERIOD = 1_048_573  # prime: no shard, tile or chunk is a multiple


def pattern(seed: int, count: int, plait_type: str) -> Array:
    """Returns `count` elements determined by a seed. Sums of 64 inputs do not overflow."""
    generator = np.random.Generator(np.random.SFC64(seed))
    dtype = DTYPE_OF_TYPE[plait_type]
    if plait_type.startswith(("int", "uint")):
        low = 0 if plait_type.startswith("uint") else -2
        return generator.integers(low, 3, count).astype(dtype)
    return generator.random(count, dtype=np.float32).astype(dtype)


def sent(request: plait.Request, source: int, target: int) -> tuple[int, int]:
    """Returns (elements, offset in the input) of the block that `source` sends to `target`."""
    counts, ranks = request.counts, request.ranks
    if request.collective in ("all_gather", "gather"):
        return (counts[source] if counts else request.count), 0
    if request.collective not in ("reduce_scatter", "scatter", "all_to_all"):
        return request.count, 0
    if not counts:
        return request.count, target * request.count
    if request.collective == "all_to_all":
        counts = counts[source * ranks : (source + 1) * ranks]
    return counts[target], sum(counts[:target])


def pieces(request: plait.Request, rank: int) -> list[tuple[int, int, int]]:
    """Returns the pieces of a rank's output: (peer, offset in the peer's input, elements).

    Pieces are adjacent in the output; a reduction reduces all pieces into a single piece.
    """
    name, peers = request.collective, list(range(request.ranks))
    if name in ("broadcast", "copy", "scatter"):
        peers = [request.root]
    if name == "send_recv":
        peers = [(rank - 1) % request.ranks]
    blocks = [(peer, *sent(request, peer, rank)) for peer in peers]
    return [(peer, before, count) for peer, count, before in blocks]


class Oracle:
    """Every rank's random input and expected output."""

    def __init__(self, request: plait.Request, seed: int) -> None:
        self.request = request
        everyone, size = range(request.ranks), DTYPE_OF_TYPE[request.type].itemsize
        period = min(PERIOD, max(1, *(request.input_bytes(rank) // size for rank in everyone)))
        self.bases = [pattern(seed * 1000 + rank, period, request.type) for rank in everyone]
        self._tiled: dict[int, Array] = {}  # by id of the base
        self._reduced: dict[bool, Array] = {}

    def input(self, rank: int, lo: int = 0, hi: int | None = None) -> Array:
        """Returns elements lo..hi (None = the end) of a rank's input, read-only."""
        if hi is None:
            size = DTYPE_OF_TYPE[self.request.type].itemsize
            hi = self.request.input_bytes(rank) // size
        return self._repeated(self.bases[rank], lo, hi)

    def inputs(self) -> list[Array]:
        """Returns all ranks' inputs."""
        return [self.input(rank) for rank in range(self.request.ranks)]

    def _repeated(self, base: Array, lo: int, hi: int) -> Array:
        """Returns elements lo..hi of the infinite repetition of `base`, which lives as long as
        the oracle."""
        start = lo % len(self.bases[0])
        end = start + hi - lo
        tiled = self._tiled.get(id(base), base)
        if end > len(tiled):
            tiled = self._tiled[id(base)] = np.tile(base, -(-end // len(base)))
        return tiled[start:end]

    def _period_reduced(self, in_rank_order: bool) -> Array:
        """Returns a cached period of the reduction: in rank order, or in float64."""
        if in_rank_order not in self._reduced:
            op, plait_type = self.request.op, self.request.type
            self._reduced[in_rank_order] = (
                reductions.in_rank_order(op, plait_type, self.bases)
                if in_rank_order
                else reductions.in_float64(op, self.bases)
            )
        return self._reduced[in_rank_order]

    def expected(self, rank: int, lo: int, hi: int, in_rank_order: bool = True) -> Array:
        """Returns elements lo..hi of a rank's expected output; sums in rank order or in float64."""
        made_of = pieces(self.request, rank)
        if self.request.collective in reductions.REDUCING:
            at = made_of[0][1]
            return self._repeated(self._period_reduced(in_rank_order), at + lo, at + hi)
        parts, begin = [], 0
        for peer, at, count in made_of:
            first, last = (min(max(one - begin, 0), count) for one in (lo, hi))
            if first < last:
                parts.append(self.input(peer, at + first, at + last))
            begin += count
        return np.concatenate(parts or [self.bases[0][:0]])

    def wrong(self, rank: int, found: Array, lo: int = 0, bitwise: bool = True) -> int:
        """Returns the wrong elements of found = output[lo:...]; see reductions.wrong_elements."""
        expected = partial(self.expected, rank, lo, lo + len(found))
        return reductions.wrong_elements(self.request, found, bitwise, expected)


def poison(output: Array) -> None:
    """Fills an output with bytes that no correct result has."""
    output.view(np.uint8).fill(0xAB)
