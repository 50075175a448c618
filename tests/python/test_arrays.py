"""Tests buffer_of: accepted arrays and errors for the rest."""

from __future__ import annotations

import ctypes
import gc
import weakref

import numpy as np
import pytest
from array_libraries import NAMES, library
from gpu_stand_ins import FakeGpuArray

import plait
from plait.arrays import DTYPE_OF_TYPE, _dlpack_buffer, _is_contiguous, buffer_of


@pytest.mark.parametrize("name", DTYPE_OF_TYPE)
def test_numpy_types(name):
    array = np.zeros((2, 3), DTYPE_OF_TYPE[name])
    buffer = buffer_of(array, "input")
    assert (buffer.type, buffer.count, buffer.shape) == (name, 6, (2, 3))
    assert buffer.address == array.ctypes.data


def test_bytes_are_an_input_but_no_output():
    assert buffer_of(b"abc", "input").count == 3
    with pytest.raises(plait.InvalidArgumentError, match="writable output"):
        buffer_of(b"abc", "output", writable=True)


@pytest.mark.parametrize("array", [np.zeros((4, 4)).T[1:], np.zeros(9)[::2]])
def test_not_contiguous(array):
    with pytest.raises(plait.InvalidArgumentError, match="contiguous input"):
        buffer_of(array, "input")


SWAPPED = np.zeros(3, ">f4")


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, bool),
        np.zeros(3, complex),
        np.array(["a"]),
        SWAPPED,
        memoryview(SWAPPED),
        np.zeros(3, ">i8"),
    ],
)
def test_unknown_type(array):
    with pytest.raises(plait.UnsupportedError, match="element type"):
        buffer_of(array, "input")


@pytest.mark.parametrize("role", ["input", "output"])
def test_a_masked_array_is_refused_since_its_masked_elements_would_count(role):
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    with pytest.raises(plait.UnsupportedError, match=f"{role} without a mask.*filled"):
        buffer_of(masked, role, writable=role == "output")
    with pytest.raises(plait.UnsupportedError, match="without a mask"):
        plait.Communicator(0, 1, topology="local-cpu").all_reduce(masked)


def test_an_array_on_a_gpu_with_a_mask_is_refused():
    with pytest.raises(plait.UnsupportedError, match="input without a mask"):
        buffer_of(FakeGpuArray(mask=FakeGpuArray(typestr="|b1")), "input")
    assert buffer_of(FakeGpuArray(mask=None), "input").count == 6


class LazilyNegated:
    """Like a torch tensor that is negated lazily (z.conj().imag)."""

    def __init__(self, values, is_negated=True, device="cpu"):
        self.memory, self.is_negated = np.ascontiguousarray(values), is_negated
        self.shape, self.dtype = self.memory.shape, f"torch.{self.memory.dtype}"
        self.device = type("Device", (), {"type": device, "index": None})

    def data_ptr(self):
        return self.memory.ctypes.data

    def numel(self):
        return self.memory.size

    def is_contiguous(self):
        return True

    def is_neg(self):
        return self.is_negated

    def resolve_neg(self):
        return LazilyNegated(-self.memory, is_negated=False)


def test_a_lazily_negated_tensor_counts_as_what_it_reads_as():
    tensor = LazilyNegated([2.0])
    assert buffer_of(tensor, "input").owner.memory.tolist() == [-2.0]
    with pytest.raises(plait.InvalidArgumentError, match="resolve_neg"):
        buffer_of(tensor, "output", writable=True)
    with pytest.raises(plait.InvalidArgumentError, match="resolve_neg"):  # on which stream?
        buffer_of(LazilyNegated([2.0], device="cuda"), "input")
    assert buffer_of(LazilyNegated([2.0], False), "output", writable=True).owner.memory == [2.0]


class ByDlpack:
    """An array with DLPack only."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **words):
        return self.array.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_nothing_is_written_into_what_is_read_only_behind_dlpack():
    values = np.ones(3)
    values.flags.writeable = False
    with pytest.raises(plait.InvalidArgumentError, match="output"):
        buffer_of(ByDlpack(values), "output", writable=True)
    comm = plait.Communicator(0, 1, topology="local-cpu")
    with pytest.raises(plait.InvalidArgumentError, match="output"):
        comm.all_reduce(np.full(3, 2.0), out=ByDlpack(values))
    assert values.tolist() == [1, 1, 1]
    with pytest.raises(plait.InvalidArgumentError, match=r"writable output as DLPack.*read-only"):
        _dlpack_buffer(ByDlpack(values), "output", True)  # as for a GPU array
    assert _dlpack_buffer(ByDlpack(values), "input", False).count == 3
    assert _dlpack_buffer(ByDlpack(np.ones(3)), "output", True).count == 3


@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (3, 1, 2)])
def test_strides_of_dlpack_that_are_missing_or_say_nothing(shape):
    """0-d arrays have no strides; a dimension of length 1 may have any stride."""
    values = np.arange(float(np.prod(shape, dtype=int))).reshape(shape)
    odd = np.lib.stride_tricks.as_strided(
        values,
        shape,
        [
            7 * 8 if length == 1 else stride
            for length, stride in zip(shape, values.strides, strict=True)
        ],
    )
    for array in (values, odd):
        buffer = buffer_of(ByDlpack(array), "input")
        assert (buffer.count, buffer.address) == (values.size, values.ctypes.data)
        view = plait._core.dlpack_view(ByDlpack(array))
        assert _is_contiguous(view[3], view[4], 1)
    assert _is_contiguous(shape, None, 1)


@pytest.mark.parametrize("thing", [None, 7, "text", {}])
def test_no_array(thing):
    with pytest.raises(plait.InvalidArgumentError, match="numpy array"):
        buffer_of(thing, "input")


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_back_is_of_the_library_that_came_in(run_ranks, name):
    if name in ("torch", "jax"):
        pytest.importorskip(name)
    types = library(name).types
    for row in run_ranks("rank_programs:arrays_of_a_library", 2, {"library": name}):
        assert row["wrong"] == [] and row["tried"] == 11 * len(types) >= 11 * 11


@pytest.mark.parametrize("kind", ["torch", "jax"])
@pytest.mark.parametrize("dtype", ["bool", "complex64"])
def test_types_of_other_libraries_that_plait_has_not(kind, dtype):
    numbers = pytest.importorskip("jax.numpy" if kind == "jax" else kind)
    array = numbers.zeros(3, dtype=getattr(numbers, dtype))
    with pytest.raises(plait.UnsupportedError, match=f"element type.*; found {dtype}"):
        plait.Communicator(0, 1).all_reduce(array)


def test_an_array_that_cannot_be_written_to_is_no_output():
    comm, ones = plait.Communicator(0, 1), np.ones(3, np.float32)
    with pytest.raises(plait.InvalidArgumentError, match="writable output"):
        comm.all_reduce(ones, out=library("array API stand-in").make(ones))


class TypeThatNumpyHasNot:
    """bf16 in host memory by DLPack, which numpy cannot read."""

    def __init__(self, gives: bool = True) -> None:
        self.words = np.array([0x3F80, 0x4000], np.uint16)  # 1, 2
        self.gives = gives

    def __dlpack__(self, **how):
        if not self.gives:
            raise BufferError("not today")
        capsule = self.words.__dlpack__()
        retype(capsule, code=4)
        return capsule

    def __dlpack_device__(self):
        return (1, 0)


class CopiedByDlpack:
    """Exports a new copy at each call, of a type that numpy cannot read."""

    def __init__(self):
        self.copies = []

    def __dlpack__(self, **how):
        copy = np.full(4096, 0x3F80, np.uint16)
        self.copies.append(weakref.ref(copy))
        capsule = copy.__dlpack__()
        retype(capsule, code=4)
        return capsule

    def __dlpack_device__(self):
        return (1, 0)


def test_a_copy_that_dlpack_exports_lives_as_long_as_its_buffer():
    array = CopiedByDlpack()
    buffer = buffer_of(array, "input")
    gc.collect()
    assert [copy() is not None for copy in array.copies][-1]
    del buffer
    gc.collect()
    assert all(copy() is None for copy in array.copies)


def retype(capsule, code):
    """Changes the type code, byte 20 of an unversioned DLPack capsule."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 20).value = code


def test_a_type_behind_dlpack_that_numpy_has_not():
    comm = plait.Communicator(0, 1)
    found = comm.all_reduce(TypeThatNumpyHasNot())
    assert found.dtype == DTYPE_OF_TYPE["bf16"] and found.astype(np.float32).tolist() == [1, 2]
    with pytest.raises(plait.InvalidArgumentError, match="numpy has no name for"):
        comm.all_reduce(found, out=TypeThatNumpyHasNot())
    with pytest.raises(plait.UnsupportedError, match="without it"):
        comm.all_reduce(TypeThatNumpyHasNot(gives=False))
