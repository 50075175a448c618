"""What the ranks of a collective put in, and what each must get."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import plait
from plait.arrays import DTYPE_OF_TYPE
from plait.bench import reductions


def pattern(seed: int, count: int, plait_type: str) -> np.ndarray[Any, Any]:
    """`count` elements that a seed determines: small enough that no sum of 64 overflows."""
    generator = np.random.Generator(np.random.SFC64(seed))
    dtype = DTYPE_OF_TYPE[plait_type]
    if plait_type.startswith(("int", "uint")):
        low = 0 if plait_type.startswith("uint") else -2
        return generator.integers(low, 3, count).astype(dtype)
    return generator.random(count, dtype=np.float32).astype(dtype)


class Oracle:
    """What a request's outputs must be, from the ranks' seeds."""

    def __init__(self, request: plait.Request, seed: int) -> None:
        self.request = request
        size = DTYPE_OF_TYPE[request.type].itemsize
        self.inputs = [
            pattern(seed * 1000 + rank, request.input_bytes(rank) // size, request.type)
            for rank in range(request.ranks)
        ]

    def expected(
        self, rank: int, lo: int, hi: int, in_rank_order: bool = True
    ) -> np.ndarray[Any, Any]:
        """Elements lo..hi of this rank's output; sums in rank order, else in float64."""
        request, count, ranks = self.request, self.request.count, self.request.ranks
        name = request.collective
        if name in reductions.REDUCING:
            at = rank * count if name == "reduce_scatter" else 0
            parts = [source[at + lo : at + hi] for source in self.inputs]
            if not in_rank_order:
                return reductions.in_float64(request.op, parts)
            return reductions.in_rank_order(request.op, request.type, parts)
        if name in ("all_gather", "gather"):
            return np.concatenate(self.inputs)[lo:hi]
        if name in ("broadcast", "copy"):
            return self.inputs[request.root][lo:hi]
        if name == "scatter":
            return self.inputs[request.root][rank * count + lo : rank * count + hi]
        if name == "send_recv":
            return self.inputs[(rank - 1) % ranks][lo:hi]
        parts = [source[rank * count : (rank + 1) * count] for source in self.inputs]
        return np.concatenate(parts)[lo:hi]

    def wrong(
        self, rank: int, output: np.ndarray[Any, Any], lo: int, hi: int, bitwise: bool = False
    ) -> int:
        """How many of output[lo:hi] are not what they must be; see reductions.wrong_elements."""
        return reductions.wrong_elements(
            self.request, output[lo:hi], bitwise, partial(self.expected, rank, lo, hi)
        )


def poison(output: np.ndarray[Any, Any]) -> None:
    """Fills an output with bytes that no right result has, so that an unwritten one shows."""
    output.view(np.uint8).fill(0xAB)
