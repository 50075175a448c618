"""Expected results of reductions in numpy, equal to cpu/reference_reduce.cpp.

Results in rank order are compared bit for bit. Other orders (an algorithm's, NCCL's) may round at
every rank, hence the results are compared with a sum in float64, within as many roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import plait
from plait.arrays import DTYPE_OF_TYPE

Array = np.ndarray[Any, Any]
REDUCING = ("all_reduce", "reduce", "reduce_scatter")

# Relative error of a rounding.
EPSILON = {
    "fp32": 2**-23,
    "fp64": 2**-52,
    "fp16": 2**-10,
    "bf16": 2**-7,
    "fp8e4m3": 2**-3,
    "fp8e5m2": 2**-2,
}


def _least(a: Array, b: Array) -> Array:
    """Returns the minimum; -0 < +0; NaN if either is NaN."""
    return np.where(a == b, np.where(np.signbit(a), a, b), np.minimum(a, b))


def _largest(a: Array, b: Array) -> Array:
    return np.where(a == b, np.where(np.signbit(a), b, a), np.maximum(a, b))


# Every op of reduce_ops.def; premul_sum with factors of 1, as in benchmarks.
COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": _least,
    "max": _largest,
    "avg": np.add,
    "premul_sum": np.add,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
}


def _divided(total: Array, ranks: int) -> Array:
    """Divides for avg; integers round towards zero, as in C++ (numpy's // rounds down)."""
    if total.dtype.kind not in "iu":
        return total / total.dtype.type(ranks)
    down = total // ranks
    return (down + ((total < 0) & (total % ranks != 0))).astype(total.dtype)


def _folded(op: str, parts: Sequence[Array]) -> Array:
    total = parts[0].copy()
    for part in parts[1:]:
        total = COMBINE[op](total, part)
    return _divided(total, len(parts)) if op == "avg" else total


def is_float(plait_type: str) -> bool:
    return plait_type in EPSILON


def in_rank_order(
    op: str, plait_type: str, parts: Sequence[Array], scalars: Sequence[float] | None = None
) -> Array:
    """Returns the parts reduced in rank order, bit for bit as plait does.

    Integers wrap. 16-bit and 8-bit floats are accumulated in fp32 and rounded once. A NaN is the
    type's canonical NaN. scalars: premul_sum's factors by rank, exact in any float; None = ones.
    """
    dtype = DTYPE_OF_TYPE[plait_type]
    wide = dtype if not is_float(plait_type) or dtype.itemsize > 4 else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        widened = [part.astype(wide, copy=False) for part in parts]
        if scalars is not None:
            widened = [part * wide.type(by) for part, by in zip(widened, scalars, strict=True)]
        total = _folded(op, widened).astype(dtype)
    if is_float(plait_type):
        total[np.isnan(total)] = np.nan
    return total


def in_float64(op: str, parts: Sequence[Array]) -> Array:
    """Returns a reduction of floats in float64."""
    return _folded(op, [part.astype(np.float64) for part in parts])


def other_bits(found: Array, expected: Array) -> int:
    """Returns the number of elements that differ in any bit."""
    unsigned = np.dtype(f"u{found.dtype.itemsize}")
    return int(np.count_nonzero(found.view(unsigned) != expected.view(unsigned)))


def beyond_rounding(found: Array, exact: Array, plait_type: str, ranks: int) -> int:
    """Returns the number of floats further from the exact value than `ranks` roundings."""
    bound = EPSILON[plait_type] * ranks
    difference = np.abs(found.astype(np.float64) - exact)
    return int(np.sum(~(difference <= bound * np.maximum(np.abs(exact), 1.0))))


def wrong_elements(
    request: plait.Request, found: Array, bitwise: bool, expected: Callable[[bool], Array]
) -> int:
    """Returns the number of wrong elements of a result.

    bitwise: floats must have the bits of a sum in rank order; else they may differ by roundings.
    expected(in_rank_order): the expected result, summed in rank order or in float64.
    """
    if bitwise or request.collective not in REDUCING or not is_float(request.type):
        return other_bits(found, expected(True))
    return beyond_rounding(found, expected(False), request.type, request.ranks)
