"""Arrays of libraries other than numpy, for tests: of torch and jax if installed, else stand-ins
with the part of the interface that plait may use."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from plait.arrays import DTYPE_OF_TYPE

Numpy = np.ndarray[Any, Any]


class TensorStandIn:
    """A torch tensor in host memory."""

    def __init__(self, array: Numpy) -> None:
        self._array = np.ascontiguousarray(array)
        self.device = SimpleNamespace(type="cpu", index=None)
        self.dtype = f"torch.{self._array.dtype}"
        self.shape = self._array.shape

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def numel(self) -> int:
        return self._array.size

    def is_contiguous(self) -> bool:
        return True

    def new_empty(self, shape: tuple[int, ...]) -> TensorStandIn:
        return TensorStandIn(np.full(shape, 99).astype(self._array.dtype))

    def numpy(self) -> Numpy:
        return self._array


class ConstantStandIn:
    """An immutable array of a library with the array API standard."""

    device = "cpu"

    def __init__(self, array: Numpy) -> None:
        self._array = array.copy()
        self._array.flags.writeable = False

    def __array_namespace__(self, **how: Any) -> Any:
        return SimpleNamespace(asarray=lambda array, device: ConstantStandIn(array))

    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__(**{"max_version": (1, 0), **how})

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def numpy(self) -> Numpy:
        return self._array


class Library(NamedTuple):
    """make: converts from numpy; read: converts to numpy; types: plait's names."""

    make: Callable[[Numpy], Any]
    read: Callable[[Any], Numpy]
    types: list[str]


def _torch() -> Library:
    import torch

    def make(array: Numpy) -> Any:
        name = str(array.dtype)
        bits = torch.from_numpy(array.view(f"uint{8 * array.itemsize}").copy())
        return bits.view(getattr(torch, name))

    def read(tensor: Any) -> Numpy:
        size, name = tensor.element_size(), str(tensor.dtype).removeprefix("torch.")
        bits = tensor.view(getattr(torch, f"uint{8 * size}")).numpy()
        named = [dtype for dtype in DTYPE_OF_TYPE.values() if str(dtype) == name]
        return bits.view(named[0])

    return Library(make, read, list(DTYPE_OF_TYPE))


def _jax() -> Library:
    import jax

    jax.config.update("jax_enable_x64", True)
    return Library(jax.numpy.asarray, np.asarray, list(DTYPE_OF_TYPE))


def library(name: str) -> Library:
    """Returns "torch", "jax" or a stand-in by name. Raises ImportError if not installed."""
    if name == "torch":
        return _torch()
    if name == "jax":
        return _jax()
    if name == "torch stand-in":
        return Library(TensorStandIn, TensorStandIn.numpy, list(DTYPE_OF_TYPE))
    # The stand-in exports by numpy, which has DLPack for its own types only.
    own = [name for name, dtype in DTYPE_OF_TYPE.items() if dtype.isbuiltin == 1]
    return Library(ConstantStandIn, ConstantStandIn.numpy, own)


NAMES = ("torch stand-in", "torch", "array API stand-in", "jax")
