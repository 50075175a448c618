"""Any array -> address, length and plait type, without a copy.

Takes numpy arrays (ml_dtypes included), torch CPU tensors, anything with DLPack or the buffer
protocol. What cannot be used as it is (not contiguous, read-only output, unknown type) is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from plait._core import InvalidArgumentError, UnsupportedError

# plait's name of each numpy dtype name (torch's names are the same, "torch." apart).
TYPE_OF_DTYPE = {
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int16",
    "uint16": "uint16",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8e4m3",
    "float8_e5m2": "fp8e5m2",
}
DTYPE_OF_TYPE: dict[str, np.dtype[Any]] = {
    plait_type: np.dtype(getattr(ml_dtypes, name, None) or name)
    for name, plait_type in TYPE_OF_DTYPE.items()
}


@dataclass(frozen=True)
class Buffer:
    """Memory of one array: where, how many elements, which plait type; `owner` keeps it alive."""

    address: int
    count: int
    type: str
    shape: tuple[int, ...]
    owner: Any


def _type_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in TYPE_OF_DTYPE:
        known = ", ".join(TYPE_OF_DTYPE)
        raise UnsupportedError(f"wanted an element type of {known}; found {name}")
    return TYPE_OF_DTYPE[name]


def _torch_buffer(tensor: Any, role: str) -> Buffer:
    if tensor.device.type != "cpu":
        raise UnsupportedError(f"wanted {role} in host memory, found a tensor on {tensor.device}")
    if not tensor.is_contiguous():
        raise InvalidArgumentError(f"wanted a contiguous {role}; call .contiguous() on it first")
    shape = tuple(tensor.shape)
    return Buffer(tensor.data_ptr(), tensor.numel(), _type_name(tensor.dtype), shape, tensor)


def _as_numpy(array: Any, role: str) -> np.ndarray[Any, Any]:
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "__dlpack__"):
        return np.from_dlpack(array)
    try:
        return np.asarray(memoryview(array))
    except TypeError:
        wanted = "a numpy array, or an object with DLPack or the buffer protocol"
        found = type(array).__name__
        raise InvalidArgumentError(f"wanted {wanted} as {role}, found {found}") from None


def buffer_of(array: Any, role: str, *, writable: bool = False) -> Buffer:
    """The memory of `array`; `role` ("input", "output") is what errors call it.

    Raises InvalidArgumentError where it is not contiguous, not writable though it must be, or no
    array at all; UnsupportedError where the element type or the device is not plait's.
    """
    if hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):
        return _torch_buffer(array, role)
    view = _as_numpy(array, role)
    if not view.flags.c_contiguous:
        raise InvalidArgumentError(
            f"wanted a contiguous {role}, found strides {view.strides} for shape {view.shape}; "
            "pass numpy.ascontiguousarray of it"
        )
    if writable and not view.flags.writeable:
        raise InvalidArgumentError(f"wanted a writable {role}, found a read-only array; copy it")
    return Buffer(view.ctypes.data, view.size, _type_name(view.dtype), view.shape, view)
