"""all_reduce_rms_norm: a sum over all ranks, residual and RMSNorm in one call, on arrays.

A tensor-parallel layer makes this step behind each row-wise split product.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from plait import _core
from plait._core import InvalidArgumentError, UnsupportedError
from plait.arguments import way_of
from plait.arrays import (
    HOST,
    ON_SOME_GPU,
    Buffer,
    buffer_of,
    empty_like,
    is_on_gpu,
    of_kind,
    stream_handle,
)


class RmsNormCalls:
    """Mixed into Communicator."""

    _core: Any
    _tell: Callable[[Exception], None]

    def all_reduce_rms_norm(
        self,
        array: Any,
        residual: Any,
        weight: Any,
        epsilon: float = 1e-6,
        out: Any = None,
        scale: Any = None,
        *,
        strategy: str = "",
        params: Any = None,
        stream: Any = None,
    ) -> Any:
        """Returns RMSNorm(all_reduce(array) + residual) * weight, and replaces the residual by the
        sum.

        array: rows of up to 16384 elements (its last dimension, a multiple of 8), bf16 or fp16.
        residual: of the same shape and type; becomes residual + all_reduce(array). weight: one row.
        out: of the array's type (may be `array`) or fp8e4m3, then with scale, one fp32 element in
        the arrays' memory by which values are divided. Arrays are aligned to 16 bytes.

        The bits are those of all_reduce() and the norm behind it: the sum is rounded to the type,
        residual + sum too; the mean of the squares and the product are fp32, with one rounding at
        the end (include/plait/rms_norm.hpp, docs/rms_norm.md). On GPUs of one host usually one
        kernel makes the call.
        strategy: one_shot or two_shot of that kernel, with params units, blocks and ahead;
        "unfused", or a strategy of the all_reduce. stream, errors: as in all_reduce.
        """
        arrays = (array, residual, weight, out, scale)
        on_gpu = any(is_on_gpu(one) for one in arrays)
        try:
            norm, made, buffers = prepared(array, residual, weight, epsilon, out, scale)
            strategy, given = way_of(strategy, params)
            where = self._core.device if on_gpu else HOST
            if on_gpu and where == HOST:
                raise UnsupportedError(
                    "wanted arrays in host memory, found one on a GPU, and this communicator has "
                    "none: make it with device= (PLAIT_DEVICE)"
                )
            if stream is not None and not on_gpu:
                raise InvalidArgumentError("wanted arrays on a GPU with stream=, found host memory")
            for role, buffer in buffers.items():
                if buffer.device != where and not (on_gpu and buffer.device == ON_SOME_GPU):
                    raise InvalidArgumentError(
                        f"wanted {role} {_place(where)}, found {_place(buffer.device)}"
                    )
        except Exception as error:
            if not on_gpu or self._core.device == HOST:
                self._tell(error)
            raise
        places = [buffer.address for buffer in buffers.values()]
        if "scale" not in buffers:
            places.append(0)
        if not on_gpu:
            self._core.all_reduce_rms_norm(norm, *places, strategy, given)
            return made if out is not None else of_kind(array, made)
        handle = stream_handle(stream, list(buffers.values()))
        self._core.enqueue_all_reduce_rms_norm(norm, *places, handle, strategy, given)
        return made


def _place(device: int) -> str:
    return "in host memory" if device == HOST else f"on GPU {device}"


def _article(role: str) -> str:
    return f"an {role}" if role == "output" else f"a {role}"


def prepared(
    array: Any, residual: Any, weight: Any, epsilon: float, out: Any, scale: Any
) -> tuple[Any, Any, dict[str, Buffer]]:
    """Checks shapes and types; returns (the core's call, output, buffers by role)."""
    source = buffer_of(array, "input")
    if not source.shape:
        raise InvalidArgumentError("wanted rows as input, found an array of no dimension")
    hidden = source.shape[-1]
    rows = prod(source.shape[:-1])
    if out is not None and out is residual:
        raise InvalidArgumentError(
            "wanted two arrays as residual and out, found the same array: the residual becomes the "
            "sum, and out gets the normalized rows"
        )
    made = empty_like(source, source.shape) if out is None else out
    buffers = {
        "input": source,
        "residual": buffer_of(residual, "residual", writable=True),
        "weight": buffer_of(weight, "weight"),
        "output": buffer_of(made, "output", writable=True),
    }
    wanted = {"residual": source.count, "weight": hidden, "output": source.count}
    for role, count in wanted.items():
        found = buffers[role]
        types = (source.type, "fp8e4m3") if role == "output" else (source.type,)
        if found.count != count or found.type not in types:
            raise InvalidArgumentError(
                f"wanted {_article(role)} of {count} {' or '.join(types)} elements for rows of "
                f"{hidden}, found {found.count} {found.type}"
            )
    if scale is not None:
        factor = buffer_of(scale, "scale")
        if factor.count != 1 or factor.type != "fp32":
            raise InvalidArgumentError(
                f"wanted a scale of one fp32 element, found {factor.count} {factor.type}"
            )
        buffers["scale"] = factor
    try:
        small = float(epsilon)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"wanted a number as epsilon, found {epsilon!r:.60}") from None
    norm = _core.RmsNorm(rows, hidden, source.type, buffers["output"].type, small)
    return norm, made, buffers
