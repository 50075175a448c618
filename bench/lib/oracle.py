"""Draws random inputs of a collective, and computes its expected result bit for bit.

numpy holds arrays of host memory, and plait.bench's arithmetic reduces them. torch holds and
reduces arrays of a GPU there: 16-bit and 8-bit floats accumulate in fp32 from rank 0 on and are
rounded once, integers are computed in 64 bits and cut to their type. Every rank can draw every
rank's input, so checking a result exchanges nothing. soak, accuracy and section use this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import plait
from plait.arrays import DTYPE_OF_TYPE
from plait.bench.oracle import pieces
from plait.bench.reductions import EPSILON, REDUCING, in_rank_order

POISON = 0xAB
FLOATS = tuple(name for name in DTYPE_OF_TYPE if name in EPSILON)
INTEGERS = tuple(name for name in DTYPE_OF_TYPE if name not in FLOATS)
ON_FLOATS = ("sum", "prod", "min", "max", "avg", "premul_sum")
ON_INTEGERS = ("sum", "prod", "min", "max", "avg", "bit_and", "bit_or", "bit_xor")
SCALARS = (0.5, 1.25, -3.0, 2.0)  # factors of premul_sum, by rank in turn; exact in every type


def size_of(kind: str) -> int:
    """Returns the bytes of an element."""
    return DTYPE_OF_TYPE[kind].itemsize


class HostArrays:
    """numpy arrays in host memory."""

    xp: Any = np

    def slab(self, nbytes: int) -> Any:
        """Returns `nbytes` bytes, to take views of."""
        return np.zeros(nbytes, np.uint8)

    def view(self, slab: Any, offset: int, count: int, kind: str) -> Any:
        """Returns `count` elements of a slab, from byte `offset` on."""
        return slab[offset : offset + count * size_of(kind)].view(DTYPE_OF_TYPE[kind])

    def fill(self, array: Any, value: int) -> None:
        array.view(np.uint8)[...] = value

    def bits(self, seed: int, nbytes: int) -> Any:
        """Returns random bytes."""
        return np.random.Generator(np.random.SFC64(seed)).integers(0, 256, nbytes, np.uint8)

    def normal(self, seed: int, count: int, double: bool) -> Any:
        """Returns normal numbers in fp32 or fp64."""
        kind = np.float64 if double else np.float32
        return np.random.Generator(np.random.SFC64(seed)).standard_normal(count, kind)

    def cast(self, array: Any, kind: str) -> Any:
        return array.astype(DTYPE_OF_TYPE[kind])

    def signed(self, array: Any) -> Any:
        """Returns the same bits as signed integers."""
        return array.view(f"int{8 * array.itemsize}")

    def number(self, value: Any) -> float:
        return float(value)

    def reduced(self, op: str, kind: str, parts: list[Any]) -> Any:
        """Reduces all ranks' arrays in rank order."""
        scaled = [SCALARS[rank % len(SCALARS)] for rank in range(len(parts))]
        return in_rank_order(op, kind, parts, scaled if op == "premul_sum" else None)

    def on_host(self, array: Any, kind: str) -> np.ndarray[Any, Any]:
        """Returns a numpy copy."""
        return np.array(array)

    def finish(self) -> None:
        """Waits for all work; host arrays never have any."""


class TorchArrays(HostArrays):
    """torch arrays on one GPU ("cuda:1"), or on the host to test this class."""

    def __init__(self, device: str) -> None:
        import torch

        self.xp = torch
        self.device = torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.random = torch.Generator(self.device)
        names = {kind: str(dtype) for kind, dtype in DTYPE_OF_TYPE.items()}
        self.types = {kind: getattr(torch, name) for kind, name in names.items()}
        self.signed_types = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

    def slab(self, nbytes: int) -> Any:
        return self.xp.zeros(nbytes, dtype=self.xp.uint8, device=self.device)

    def view(self, slab: Any, offset: int, count: int, kind: str) -> Any:
        return slab[offset : offset + count * size_of(kind)].view(self.types[kind])

    def fill(self, array: Any, value: int) -> None:
        array.view(self.xp.uint8).fill_(value)

    def bits(self, seed: int, nbytes: int) -> Any:
        self.random.manual_seed(seed)
        words = self.xp.randint(
            -(1 << 63),
            (1 << 63) - 1,
            ((nbytes + 7) // 8,),
            dtype=self.xp.int64,
            device=self.device,
            generator=self.random,
        )
        return words.view(self.xp.uint8)[:nbytes]

    def normal(self, seed: int, count: int, double: bool) -> Any:
        self.random.manual_seed(seed)
        kind = self.xp.float64 if double else self.xp.float32
        return self.xp.randn(count, dtype=kind, device=self.device, generator=self.random)

    def cast(self, array: Any, kind: str) -> Any:
        return array.to(self.types[kind])

    def signed(self, array: Any) -> Any:
        return array.view(self.signed_types[array.element_size()])

    def from_signed(self, array: Any, kind: str) -> Any:
        """Cuts 64-bit integers to the width of a type."""
        return array.to(self.signed_types[size_of(kind)]).view(self.types[kind])

    def number(self, value: Any) -> float:
        return float(value.item())

    def reduced(self, op: str, kind: str, parts: list[Any]) -> Any:
        return TorchReduction(self, kind, op, len(parts)).of(parts)

    def on_host(self, array: Any, kind: str) -> np.ndarray[Any, Any]:
        return self.signed(array).cpu().numpy().view(DTYPE_OF_TYPE[kind])

    def finish(self) -> None:
        if self.device.type == "cuda":
            self.xp.cuda.synchronize()


class TorchReduction:
    """Reduces element by element over ranks as plait promises, by torch, which has few unsigned
    types."""

    def __init__(self, on: TorchArrays, kind: str, op: str, ranks: int) -> None:
        self.on, self.kind, self.op, self.ranks = on, kind, op, ranks
        self.is_float = kind in FLOATS
        self.bits = 8 * size_of(kind)
        self.unsigned = kind.startswith("uint")

    def of(self, sources: list[Any]) -> Any:
        """Returns the result of all ranks' arrays, in rank order."""
        total = self._wide(sources[0], 0)
        for rank in range(1, len(sources)):
            total = self._combined(total, self._wide(sources[rank], rank))
        if self.op == "avg":
            total = self._divided(total)
        if self.is_float:
            return self.on.cast(total, self.kind)
        return self.on.from_signed(total, self.kind)

    def _wide(self, array: Any, rank: int) -> Any:
        if not self.is_float:
            return self._cut(self.on.cast(self.on.signed(array), "int64"))
        wide = self.on.cast(array, "fp64" if self.kind == "fp64" else "fp32")
        return wide * SCALARS[rank % len(SCALARS)] if self.op == "premul_sum" else wide

    def _cut(self, total: Any) -> Any:
        """Returns 64-bit integers with the values that the type would hold."""
        if self.bits == 64:
            return total
        if self.unsigned:
            return total & ((1 << self.bits) - 1)
        return (total << (64 - self.bits)) >> (64 - self.bits)

    def _combined(self, a: Any, b: Any) -> Any:
        if self.op in ("min", "max"):
            return self._chosen(a, b)
        if self.op == "prod":
            return a * b
        if self.op.startswith("bit_"):
            return a & b if self.op == "bit_and" else a | b if self.op == "bit_or" else a ^ b
        return a + b

    def _chosen(self, a: Any, b: Any) -> Any:
        """Returns min or max; -0 is below +0."""
        where = self.on.xp.where
        if self.is_float:
            a_is_less = (a < b) | ((a == b) & self.on.xp.signbit(a))
        elif self.unsigned and self.bits == 64:  # as signed numbers, the upper half sorts below
            a_is_less = (a ^ -(1 << 63)) < (b ^ -(1 << 63))
        else:
            a_is_less = a < b
        return where(a_is_less, a, b) if self.op == "min" else where(a_is_less, b, a)

    def _divided(self, total: Any) -> Any:
        """Divides by the number of ranks: floats round once, with the cast, integers towards
        zero."""
        where, ranks = self.on.xp.where, self.ranks
        if self.is_float:
            return total / (self.on.xp.zeros_like(total) + ranks)  # not by 1/ranks
        total = self._cut(total)
        if self.unsigned and self.bits == 64:
            half = ((total >> 1) & ((1 << 63) - 1)) // ranks * 2
            rest = total - half * ranks
            return half + where(rest >= ranks, rest // ranks, rest * 0)
        return where(total < 0, -((-total) // ranks), total // ranks)


class ExpectedCall:
    """A request with its data: inputs from a seed, and the expected outputs."""

    def __init__(self, on: HostArrays, request: plait.Request, seed: int) -> None:
        self.on, self.request, self.seed = on, request, seed

    def input_count(self) -> int:
        """Returns the elements of the array that a rank passes in. A rank that sends nothing passes
        an array for its shape."""
        divides = self.request.collective in ("reduce_scatter", "all_to_all", "scatter")
        return self.request.count * (self.request.ranks if divides else 1)

    def gathered_count(self) -> int:
        """Returns the elements of the longest output of a rank."""
        gathers = self.request.collective in ("all_gather", "gather", "all_to_all")
        return self.request.count * (self.request.ranks if gathers else 1)

    def output_count(self, rank: int) -> int:
        return self.request.output_bytes(rank) // size_of(self.request.type)

    def drawn(self, rank: int) -> Any:
        """Returns a rank's input."""
        kind, count = self.request.type, self.input_count()
        seed = (self.seed * 64 + rank) & ((1 << 62) - 1)
        if kind in FLOATS:
            normal = self.on.normal(seed, count, kind == "fp64")
            if kind.startswith("fp8"):  # far from overflow: libraries differ in the sign of its NaN
                normal = self.on.xp.clip(normal, -4.0, 4.0)
            return self.on.cast(normal, kind)
        return self.on.view(self.on.bits(seed, count * size_of(kind)), 0, count, kind)

    def expected(self, rank: int) -> Any:
        """Returns a rank's output; None if it has none."""
        request, size = self.request, size_of(self.request.type)
        if self.output_count(rank) == 0:
            return None
        count = request.count
        parts = [self.drawn(peer)[at : at + many] for peer, at, many in pieces(request, rank)]
        if request.collective in REDUCING:
            return self.on.reduced(request.op, request.type, parts)
        joined = self.on.slab(len(parts) * count * size)
        for number, part in enumerate(parts):
            there = self.on.view(joined, number * count * size, count, request.type)
            self.on.signed(there)[:] = self.on.signed(part)
        return self.on.view(joined, 0, len(parts) * count, request.type)

    def wrong(self, rank: int, output: Any) -> int:
        """Returns the number of elements of a rank's output that differ from the expected bits."""
        expected = self.expected(rank)
        if expected is None:
            return 0
        return int(self.on.number((self.on.signed(expected) != self.on.signed(output)).sum()))
