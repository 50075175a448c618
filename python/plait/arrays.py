"""Finds address, length and plait type of any array, without a copy.

Takes numpy arrays (ml_dtypes included), torch tensors, cupy arrays, and objects with DLPack,
__cuda_array_interface__ or the buffer protocol, in host memory or on a GPU. Raises an error for
arrays that need a copy (not contiguous, read-only output) and for unknown types.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from plait._core import (
    InvalidArgumentError,
    UnsupportedError,
    dlpack_view,
    numpy_address,
    writable_dlpack_view,
)

HOST = -1
ON_SOME_GPU = 1 << 16  # an array that does not name its GPU
_DLPACK_CPU, _DLPACK_GPUS = (1, 3), (2, 13)  # host and pinned; CUDA and CUDA-managed
# (type code, bits) of DLPack -> plait's name.
_TYPE_OF_DLPACK = {(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)}
_TYPE_OF_DLPACK |= {(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)}
_TYPE_OF_DLPACK |= {(2, 16): "fp16", (2, 32): "fp32", (2, 64): "fp64", (4, 16): "bf16"}
_TYPE_OF_DLPACK |= {(10, 8): "fp8e4m3", (12, 8): "fp8e5m2"}

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


@dataclass(slots=True)  # not frozen: that costs 0.5 us a call
class Buffer:
    """Memory of an array: address, number of elements, plait type, shape.

    owner: keeps the memory alive; device: CUDA ordinal, HOST or ON_SOME_GPU; export: keeps the
    memory that DLPack exported, which may be a copy.
    """

    address: int
    count: int
    type: str
    shape: tuple[int, ...]
    owner: Any
    device: int = HOST
    export: Any = None


_type_of: dict[Any, str] = {}  # by dtype object: the dtype's name costs 1 us


def _type_name(dtype: Any) -> str:
    known = _type_of.get(dtype)
    if known is not None:
        return known
    name = str(dtype).removeprefix("torch.")
    if name not in TYPE_OF_DTYPE:
        names = ", ".join(TYPE_OF_DTYPE)
        raise UnsupportedError(f"wanted an element type of {names}; found {name}")
    return _type_of.setdefault(dtype, TYPE_OF_DTYPE[name])


def _no() -> bool:
    return False


def _torch_buffer(tensor: Any, role: str, writable: bool) -> Buffer:
    if tensor.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"wanted {role} in host memory or on a CUDA GPU, found a tensor on {tensor.device}"
        )
    if not tensor.is_contiguous():
        raise InvalidArgumentError(f"wanted a contiguous {role}; call .contiguous() on it first")
    if getattr(tensor, "is_neg", _no)():  # the memory holds negated values
        if writable or tensor.device.type != "cpu":  # the copy's stream may be another
            raise InvalidArgumentError(
                f"wanted {role} whose memory holds its values, found a tensor that torch negates "
                "when it is read (is_neg()); call .resolve_neg() on it first"
            )
        tensor = tensor.resolve_neg()
    shape = tuple(tensor.shape)
    device = HOST if tensor.device.type == "cpu" else tensor.device.index
    type_name = _type_name(tensor.dtype)
    return Buffer(tensor.data_ptr(), tensor.numel(), type_name, shape, tensor, device)


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None, unit: int) -> bool:
    """Returns whether strides are contiguous. unit: stride of an element; strides None = yes."""
    if strides is None or prod(shape) == 0:
        return True
    step = unit
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != step:
            return False
        step *= length
    return True


def _interface_buffer(array: Any, role: str, writable: bool) -> Buffer:
    """Buffer of an array with __cuda_array_interface__ (cupy, numba)."""
    facts = array.__cuda_array_interface__
    shape, (address, read_only) = tuple(facts["shape"]), facts["data"]
    dtype = np.dtype(getattr(array, "dtype", None) or facts["typestr"])
    if not _is_contiguous(shape, facts.get("strides"), dtype.itemsize):
        raise InvalidArgumentError(f"wanted a contiguous {role}, found strides {facts['strides']}")
    if writable and read_only:
        raise InvalidArgumentError(f"wanted a writable {role}, found a read-only array; copy it")
    if facts.get("mask") is not None:
        raise UnsupportedError(
            f"wanted {role} without a mask, found an array with one: its masked elements would "
            "count; fill them first"
        )
    # The interface does not name the device; the call asks the driver.
    ordinal = getattr(getattr(array, "device", None), "id", None)
    device = ordinal if isinstance(ordinal, int) else ON_SOME_GPU
    return Buffer(address or 0, prod(shape), _type_name(dtype), shape, array, device)


def _dlpack_buffer(array: Any, role: str, writable: bool) -> Buffer:
    """Buffer of an array with DLPack: on a GPU, or of a type that numpy lacks (bf16, fp8)."""
    view_of = writable_dlpack_view if writable else dlpack_view
    try:
        kind, ordinal, address, shape, strides, code, bits, lanes, export = view_of(array)
    except TypeError:  # raised by the binding for every failure
        found = type(array).__name__
        if writable:
            raise InvalidArgumentError(
                f"wanted a writable {role} as DLPack, found a {found} without it or "
                "read-only; copy it"
            ) from None
        raise UnsupportedError(f"wanted {role} as DLPack, found a {found} without it") from None
    if (code, bits) not in _TYPE_OF_DLPACK or lanes != 1:
        known = ", ".join(TYPE_OF_DTYPE)
        raise UnsupportedError(
            f"wanted an element type of {known}; found DLPack's code {code} of {bits} bits"
        )
    if not _is_contiguous(shape, strides, 1):
        raise InvalidArgumentError(f"wanted a contiguous {role}, found strides {strides}")
    device = ordinal if kind in _DLPACK_GPUS else HOST
    type_name = _TYPE_OF_DLPACK[code, bits]
    return Buffer(address, prod(shape), type_name, shape, array, device, export)


def _on_gpu(array: Any) -> bool:
    """Returns whether DLPack reports a GPU. Arrays without DLPack count as host memory."""
    if not hasattr(array, "__dlpack_device__"):
        return False
    kind = int(array.__dlpack_device__()[0])
    if kind not in _DLPACK_CPU + _DLPACK_GPUS:
        raise UnsupportedError(
            f"wanted an array in host memory or on a CUDA GPU, found DLPack device type {kind}"
        )
    return kind in _DLPACK_GPUS


def is_on_gpu(array: Any) -> bool:
    """Whether the array says that its memory is a GPU's; never raises."""
    if array is None or type(array) is np.ndarray:
        return False
    try:
        if hasattr(array, "data_ptr"):
            return bool(array.device.type == "cuda")
        return hasattr(array, "__cuda_array_interface__") or _on_gpu(array)
    except Exception:
        return False


def empty_like(source: Buffer, shape: tuple[int, ...]) -> Any:
    """A new array of `shape` in the memory of `source`, of the same type: torch, cupy, else numpy.

    Raises InvalidArgumentError for GPU arrays of other libraries: only the array's library can make
    a new array.
    """
    owner, library = source.owner, type(source.owner).__module__.split(".")[0]
    if hasattr(owner, "data_ptr"):  # torch, in host memory and on GPUs alike
        return owner.new_empty(shape)
    if source.device == HOST:
        return np.empty(shape, DTYPE_OF_TYPE[source.type])
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with owner.device:
            return cupy.empty(shape, owner.dtype)
    raise InvalidArgumentError(
        f"wanted an output to write into: pass out=, since plait makes no arrays of {library}"
    )


def of_kind(array: Any, made: Any) -> Any:
    """Converts a filled result of empty_like to the library of `array`.

    A numpy result becomes an array of a library with the array API standard (jax and others; arrays
    may be immutable). Buffers and bare DLPack objects get the numpy array.
    """
    if not isinstance(made, np.ndarray) or isinstance(array, np.ndarray):
        return made
    if not hasattr(array, "__array_namespace__"):
        return made
    return array.__array_namespace__().asarray(made, device=array.device)


def stream_handle(stream: Any, buffers: list[Buffer]) -> int:
    """Returns a CUstream as a number.

    stream: an int, torch.cuda.Stream, cupy.cuda.Stream or object with __cuda_stream__; None = the
    current stream of the arrays' library, else torch's if loaded, else the legacy default stream 0.
    For a torch.cuda.Stream, torch's allocator keeps the arrays' memory until the stream is done.
    For other streams (torch.cuda.ExternalStream too) the caller must keep the arrays.
    """
    if stream is None:
        return _current_stream(buffers)
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):
        if isinstance(getattr(stream, name, None), int):
            _keep_for(stream, buffers)
            return int(getattr(stream, name))
    if callable(getattr(stream, "__cuda_stream__", None)):
        return int(stream.__cuda_stream__()[1])
    raise InvalidArgumentError(
        "wanted a stream as a number, torch.cuda.Stream or cupy.cuda.Stream, found "
        f"{type(stream).__name__}"
    )


def _current_stream(buffers: list[Buffer]) -> int:
    libraries = {type(buffer.owner).__module__.split(".")[0] for buffer in buffers}
    if "cupy" in libraries:
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    device = max((buffer.device for buffer in buffers), default=HOST)
    return int(torch.cuda.current_stream(device if device >= 0 else None).cuda_stream)


def _keep_for(stream: Any, buffers: list[Buffer]) -> None:
    """Tells torch's allocator that the stream uses the arrays' memory (record_stream).

    Skips ExternalStream: the allocator queries the stream when the memory is freed. If the program
    has destroyed the stream, the query ends the process. torch's own streams are never destroyed.
    """
    torch = sys.modules.get("torch")
    if not hasattr(stream, "cuda_stream") or torch is None:
        return
    if isinstance(stream, torch.cuda.ExternalStream):
        return
    for buffer in buffers:
        if hasattr(buffer.owner, "record_stream"):
            buffer.owner.record_stream(stream)


def _as_numpy(array: Any, role: str) -> np.ndarray[Any, Any] | None:
    """Returns a numpy view; None if numpy lacks the DLPack type."""
    if isinstance(array, np.ma.MaskedArray):
        raise UnsupportedError(
            f"wanted {role} without a mask, found a numpy.ma array: its masked elements would "
            "count; pass .filled(value) of it, or .data"
        )
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "__dlpack__"):
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError):
            return None
    try:
        return np.asarray(memoryview(array))
    except TypeError:
        wanted = "a numpy array, or an object with DLPack or the buffer protocol"
        found = type(array).__name__
        raise InvalidArgumentError(f"wanted {wanted} as {role}, found {found}") from None


def _numpy_buffer(view: np.ndarray[Any, Any], role: str, writable: bool) -> Buffer:
    flags = view.flags
    if not flags.c_contiguous:
        raise InvalidArgumentError(
            f"wanted a contiguous {role}, found strides {view.strides} for shape {view.shape}; "
            "pass numpy.ascontiguousarray of it"
        )
    if writable and not flags.writeable:
        raise InvalidArgumentError(f"wanted a writable {role}, found a read-only array; copy it")
    return Buffer(numpy_address(view), view.size, _type_name(view.dtype), view.shape, view)


def buffer_of(array: Any, role: str, *, writable: bool = False) -> Buffer:
    """Returns the memory of `array`. role: the array's name in errors ("input", "output").

    Raises InvalidArgumentError if `array` is no array, not contiguous, or read-only with
    `writable`; UnsupportedError if plait lacks the element type or device.
    """
    if type(array) is np.ndarray:
        return _numpy_buffer(array, role, writable)
    if hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):
        return _torch_buffer(array, role, writable)
    if hasattr(array, "__cuda_array_interface__"):
        return _interface_buffer(array, role, writable)
    if _on_gpu(array):
        return _dlpack_buffer(array, role, writable)
    view = _as_numpy(array, role)
    if view is None and writable:
        raise InvalidArgumentError(
            f"wanted a writable {role}, found DLPack of a type that numpy has no name for, which "
            "does not say so; pass a numpy or torch array"
        )
    return (
        _dlpack_buffer(array, role, False) if view is None else _numpy_buffer(view, role, writable)
    )
