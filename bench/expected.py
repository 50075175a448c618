"""Random inputs of a collective and what it must leave, bit for bit, where the arrays lie.

Arrays of host memory are numpy's, and plait.bench's arithmetic reduces them. Arrays of a GPU are
torch's, which computes the same there: 16-bit and 8-bit floats accumulate in fp32 from rank 0 on
and are rounded once, integers are computed in 64 bits and cut to their type. Every rank can draw
every rank's input, so nothing is exchanged to check a result.
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
SCALARS = (0.5, 1.25, -3.0, 2.0)  # premul_sum's, by rank in turn; no float rounds them


def size_of(kind: str) -> int:
    """Bytes of an element."""
    return DTYPE_OF_TYPE[kind].itemsize


class HostArrays:
    """Arrays in host memory, by numpy."""

    xp: Any = np

    def slab(self, nbytes: int) -> Any:
        """So many bytes to take views of."""
        return np.zeros(nbytes, np.uint8)

    def view(self, slab: Any, offset: int, count: int, kind: str) -> Any:
        """`count` elements of a slab, from byte `offset` on."""
        return slab[offset : offset + count * size_of(kind)].view(DTYPE_OF_TYPE[kind])

    def fill(self, array: Any, value: int) -> None:
        array.view(np.uint8)[...] = value

    def bits(self, seed: int, nbytes: int) -> Any:
        """Random bytes."""
        return np.random.Generator(np.random.SFC64(seed)).integers(0, 256, nbytes, np.uint8)

    def normal(self, seed: int, count: int, double: bool) -> Any:
        """Normal numbers in fp32 or fp64."""
        kind = np.float64 if double else np.float32
        return np.random.Generator(np.random.SFC64(seed)).standard_normal(count, kind)

    def cast(self, array: Any, kind: str) -> Any:
        return array.astype(DTYPE_OF_TYPE[kind])

    def signed(self, array: Any) -> Any:
        """The same bits as signed integers."""
        return array.view(f"int{8 * array.itemsize}")

    def number(self, value: Any) -> float:
        return float(value)

    def reduced(self, op: str, kind: str, parts: list[Any]) -> Any:
        """All ranks' arrays as one, in rank order."""
        scaled = [SCALARS[rank % len(SCALARS)] for rank in range(len(parts))]
        return in_rank_order(op, kind, parts, scaled if op == "premul_sum" else None)

    def on_host(self, array: Any, kind: str) -> np.ndarray[Any, Any]:
        """A copy as numpy has it."""
        return np.array(array)

    def finish(self) -> None:
        """Waits for all work; none is ever left here."""


class TorchArrays(HostArrays):
    """Arrays by torch, on one GPU ("cuda:1"), or on the host to test just this."""

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
        """64-bit integers, cut to the width of a type."""
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
    """Element by element over ranks, as plait promises it: by torch, with few unsigned types."""

    def __init__(self, on: TorchArrays, kind: str, op: str, ranks: int) -> None:
        self.on, self.kind, self.op, self.ranks = on, kind, op, ranks
        self.is_float = kind in FLOATS
        self.bits = 8 * size_of(kind)
        self.unsigned = kind.startswith("uint")

    def of(self, sources: list[Any]) -> Any:
        """One result of all ranks' arrays, in rank order."""
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
        """Integers in 64 bits as the type would hold them."""
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
        """min or max; -0 is below +0."""
        where = self.on.xp.where
        if self.is_float:
            a_is_less = (a < b) | ((a == b) & self.on.xp.signbit(a))
        elif self.unsigned and self.bits == 64:  # their order is that of the halves turned round
            a_is_less = (a ^ -(1 << 63)) < (b ^ -(1 << 63))
        else:
            a_is_less = a < b
        return where(a_is_less, a, b) if self.op == "min" else where(a_is_less, b, a)

    def _divided(self, total: Any) -> Any:
        """By the number of ranks: floats rounded once with the cast, integers towards zero."""
        where, ranks = self.on.xp.where, self.ranks
        if self.is_float:
            return total / (self.on.xp.zeros_like(total) + ranks)  # no product with a reciprocal
        total = self._cut(total)
        if self.unsigned and self.bits == 64:
            half = ((total >> 1) & ((1 << 63) - 1)) // ranks * 2
            rest = total - half * ranks
            return half + where(rest >= ranks, rest // ranks, rest * 0)
        return where(total < 0, -((-total) // ranks), total // ranks)


class ExpectedCall:
    """One request with its data: inputs that a seed determines, and the outputs they must give."""

    def __init__(self, on: HostArrays, request: plait.Request, seed: int) -> None:
        self.on, self.request, self.seed = on, request, seed

    def input_count(self) -> int:
        """Elements of the array that a rank passes in; one that sends nothing shows its shape."""
        divides = self.request.collective in ("reduce_scatter", "all_to_all", "scatter")
        return self.request.count * (self.request.ranks if divides else 1)

    def gathered_count(self) -> int:
        """Elements of the longest output that a rank may have."""
        gathers = self.request.collective in ("all_gather", "gather", "all_to_all")
        return self.request.count * (self.request.ranks if gathers else 1)

    def output_count(self, rank: int) -> int:
        return self.request.output_bytes(rank) // size_of(self.request.type)

    def drawn(self, rank: int) -> Any:
        """A rank's input."""
        kind, count = self.request.type, self.input_count()
        seed = (self.seed * 64 + rank) & ((1 << 62) - 1)
        if kind in FLOATS:
            normal = self.on.normal(seed, count, kind == "fp64")
            if kind.startswith("fp8"):  # far from overflow, whose NaN has a sign or none
                normal = self.on.xp.clip(normal, -4.0, 4.0)
            return self.on.cast(normal, kind)
        return self.on.view(self.on.bits(seed, count * size_of(kind)), 0, count, kind)

    def expected(self, rank: int) -> Any:
        """A rank's output; None where it has none."""
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
        """How many elements of a rank's output differ in any bit from what they must be."""
        expected = self.expected(rank)
        if expected is None:
            return 0
        return int(self.on.number((self.on.signed(expected) != self.on.signed(output)).sum()))
