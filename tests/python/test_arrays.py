"""buffer_of: what is taken as it is, what is refused and how."""

from __future__ import annotations

import numpy as np
import pytest

import plait
from plait.arrays import DTYPE_OF_TYPE, buffer_of


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


@pytest.mark.parametrize("array", [np.zeros(3, bool), np.zeros(3, complex), np.array(["a"])])
def test_unknown_type(array):
    with pytest.raises(plait.UnsupportedError, match="element type"):
        buffer_of(array, "input")


@pytest.mark.parametrize("thing", [None, 7, "text", {}])
def test_no_array(thing):
    with pytest.raises(plait.InvalidArgumentError, match="numpy array"):
        buffer_of(thing, "input")
