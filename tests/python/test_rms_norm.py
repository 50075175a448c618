"""Tests all_reduce_rms_norm on arrays in host memory: bits against a numpy program of the stated
roundings, types, shapes and refusals."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest

import plait

BF16, FP16, FP8 = ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn


def normed(sums, residual, weight, epsilon=1e-6):
    """Returns the stated result in fp32, and the new residual."""
    dtype, hidden = sums.dtype, sums.shape[-1]
    new = (sums.astype(np.float32) + residual.astype(np.float32)).astype(dtype)
    wide = new.astype(np.float32)
    padded = 1 << (hidden - 1).bit_length()
    squares = np.zeros((*wide.shape[:-1], padded), np.float32)
    squares[..., :hidden] = wide * wide
    while squares.shape[-1] > 1:  # a balanced tree of neighbours
        squares = squares[..., 0::2] + squares[..., 1::2]
    mean = squares * (np.float32(1) / np.float32(hidden))
    factor = np.float32(1) / np.sqrt(mean + np.float32(epsilon))
    return wide * factor * weight.astype(np.float32), new


def rows(seed, shape, dtype):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def on_threads(ranks, program):
    """Runs program(communicator) on a thread per rank; returns results or exceptions by rank."""
    name, told = plait.unique_id(), [None] * ranks

    def run(rank):
        try:
            told[rank] = program(plait.Communicator(rank, ranks, unique_id=name, arrive_s=30))
        except Exception as error:
            told[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_the_bits_are_those_of_the_stated_roundings(ranks, dtype):
    shape = (2, 3, 72)
    residual, weight = rows(20, shape, dtype), rows(21, shape[-1:], dtype)

    def program(comm):
        mine, its = rows(comm.rank, shape, dtype), residual.copy()
        out = comm.all_reduce_rms_norm(mine, its, weight, 1e-5)
        sums = comm.all_reduce(mine)
        wide, new = normed(sums, residual, weight, 1e-5)
        assert out.dtype == dtype and out.shape == shape
        assert out.tobytes() == wide.astype(dtype).tobytes()
        assert its.tobytes() == new.tobytes()
        again = residual.copy()
        assert comm.all_reduce_rms_norm(mine, again, weight, 1e-5, out=mine) is mine
        assert mine.tobytes() == out.tobytes()
        return "done"

    assert on_threads(ranks, program) == ["done"] * ranks


def test_fp8_output_is_divided_by_the_scale_and_saturates():
    shape, scale = (4, 256), np.array([0.03125], np.float32)

    def program(comm):
        mine, its = rows(comm.rank, shape, BF16), rows(9, shape, BF16)
        weight, out = rows(21, shape[-1:], BF16) * BF16(8), np.empty(shape, FP8)
        wide, _ = normed(comm.all_reduce(mine), its, weight)
        comm.all_reduce_rms_norm(mine, its, weight, out=out, scale=scale)
        wanted = np.clip(wide * (np.float32(1) / scale), -448, 448).astype(FP8)
        assert out.tobytes() == wanted.tobytes()
        assert 448 in np.abs(out.astype(np.float32))
        return "done"

    assert on_threads(2, program) == ["done"] * 2


def test_a_wrong_argument_of_one_rank_fails_the_call_on_all():
    def program(comm):
        mine, its = np.zeros((2, 16), BF16), np.zeros((2, 16), BF16)
        weight = np.ones(8 if comm.rank == 1 else 16, BF16)
        return comm.all_reduce_rms_norm(mine, its, weight)

    for error in on_threads(2, program):
        assert isinstance(error, plait.InvalidArgumentError)
        assert "wanted a weight of 16 bf16 elements for rows of 16, found 8 bf16" in str(error)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"array": np.zeros((2, 16), np.float32)}, "wanted a residual of 32 fp32"),
        ({"out": np.zeros((2, 16), np.int8)}, "wanted an output of 32 bf16 or fp8e4m3"),
        ({"scale": np.ones(2, np.float32)}, "a scale of one fp32 element, found 2 fp32"),
        ({"scale": np.ones(1, np.float32)}, "scale: wanted none for output of bf16"),
        ({"epsilon": "small"}, "wanted a number as epsilon, found 'small'"),
        ({"epsilon": -1.0}, "wanted an epsilon of at least 0, found -1"),
        ({"stream": 7}, "wanted arrays on a GPU with stream="),
        ({"strategy": 3}, "wanted text as strategy, found 3"),
    ],
)
def test_refusals_name_what_was_wanted_and_found(arguments, words):
    given = {
        "array": np.zeros((2, 16), BF16),
        "residual": np.zeros((2, 16), BF16),
        "weight": np.ones(16, BF16),
    }
    comm = plait.Communicator(0, 1)
    with pytest.raises(plait.Error) as caught:
        comm.all_reduce_rms_norm(**(given | arguments))
    assert words in str(caught.value)


def test_rows_are_limited():
    comm = plait.Communicator(0, 1)
    for length in (12, 16392):
        array = np.zeros((1, length), BF16)
        with pytest.raises(plait.InvalidArgumentError, match="a multiple of 8 elements, at most"):
            comm.all_reduce_rms_norm(array, array.copy(), np.ones(length, BF16))
