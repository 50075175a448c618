"""The local part of sums in tree order: a rank's own shards, summed as the ranks' tree goes on.

docs/same_bits.md says which parts of a program must keep this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from plait import _core

_WIDENED = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def _array(part: Any) -> Any:
    """Returns an array in this machine's byte order; numpy's scalars become arrays of no axis."""
    if isinstance(part, np.generic):
        return np.asarray(part)
    if not hasattr(part, "dtype") or not hasattr(part, "shape"):
        raise _core.InvalidArgumentError(
            f"tree_sum: wanted numpy arrays or torch tensors, found {type(part).__name__}"
        )
    dtype = part.dtype
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        return part.astype(dtype.newbyteorder("="))
    return part


def _kind(part: Any) -> str:
    """Returns "torch.bfloat16" or numpy's "bfloat16" as "bfloat16"."""
    return str(part.dtype).rsplit(".", 1)[-1]


def _cast(part: Any, kind: Any) -> Any:
    return part.astype(kind) if isinstance(part, np.ndarray) else part.to(kind)


def _copy(part: Any) -> Any:
    return part.copy() if isinstance(part, np.ndarray) else part.clone()


def _add(a: Any, b: Any) -> Any:
    """Returns a + b; numpy gives a scalar for the sum of arrays of no axis."""
    made = a + b
    return np.asarray(made) if isinstance(made, np.generic) else made


def _float32_of(part: Any) -> Any:
    if isinstance(part, np.ndarray):
        return np.float32
    import torch

    return torch.float32


def tree_sum(parts: Sequence[Any], *, rounded: bool = False) -> Any:
    """Returns ((p0+p1)+(p2+p3))+... of numpy arrays or torch tensors, 1, 2, 4, ... of equal shape.

    A rank passes its shards in their order over all ranks, and gives the result to a sum over ranks
    in tree order: the bits are those of a rank per shard. Of floats of 16 and 8 bits the result is
    fp32 (as plait's partial sums are): sum it over ranks in fp32, and cast at the end. rounded: for
    order "tree_rounded"; the result has the type of the parts, and each sum of two is rounded to
    it. The parts are unchanged; torch's autograd and compiler see plain additions. The result has
    this machine's byte order, and is an array also if the parts are scalars of numpy.
    """
    count = len(parts)
    if count == 0 or count & (count - 1):
        raise _core.InvalidArgumentError(
            f"tree_sum: wanted 1, 2, 4, 8, ... parts, found {count}; cut the shards evenly"
        )
    parts = [_array(part) for part in parts]
    for part in parts[1:]:
        if part.shape != parts[0].shape or part.dtype != parts[0].dtype:
            raise _core.InvalidArgumentError(
                f"tree_sum: wanted parts of {tuple(parts[0].shape)} {parts[0].dtype}, found "
                f"{tuple(part.shape)} {part.dtype}"
            )
    kind, is_widened = parts[0].dtype, _kind(parts[0]) in _WIDENED
    sums = list(parts)
    if is_widened:
        wide = _float32_of(parts[0])
        sums = [_cast(part, wide) for part in sums]
    while len(sums) > 1:
        sums = [_add(a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
        if is_widened and rounded:
            sums = [_cast(_cast(part, kind), wide) for part in sums]
    if is_widened and rounded:
        return _cast(sums[0], kind)
    return sums[0] if count > 1 or is_widened else _copy(sums[0])
