"""Tests casts of small floats and canonical NaNs in sums of CPU ranks: every pair of fp8 codes
against ml_dtypes, and NaNs of many payloads in all types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import plait
from plait.arrays import DTYPE_OF_TYPE
from plait.launch import Emit

# docs/same_bits.md has the same table.
NAN = {
    "fp8e4m3": 0x7F,
    "fp8e5m2": 0x7E,
    "fp16": 0x7E00,
    "bf16": 0x7FC0,
    "fp32": 0x7FC00000,
    "fp64": 0x7FF8000000000000,
}
LARGEST = {"fp8e4m3": 448.0, "fp8e5m2": 57344.0}
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def unsigned_of(name: str) -> Any:
    return UNSIGNED[DTYPE_OF_TYPE[name].itemsize]


def ranks_of_fp8(task: dict[str, Any], emit: Emit) -> None:
    """Emits the sums and products of all pairs of codes that differ from ml_dtypes' cast."""
    comm = plait.init()
    name, dtype = task["type"], DTYPE_OF_TYPE[task["type"]]
    codes = np.arange(1 << 16, dtype=np.uint32)
    both = [part.astype(np.uint8).view(dtype) for part in (codes >> 8, codes & 255)]
    wide = [part.astype(np.float32) for part in both]
    said = {"rank": comm.rank}
    with np.errstate(all="ignore"):
        for op, exact in {"sum": wide[0] + wide[1], "prod": wide[0] * wide[1]}.items():
            cast = exact.astype(dtype)
            is_nan = np.isnan(cast.astype(np.float32))
            expected = np.where(is_nan, NAN[name], cast.view(np.uint8))
            found = comm.all_reduce(both[comm.rank], op).view(np.uint8)
            said[op] = int(np.count_nonzero(found != expected))
            said[f"{op} above"] = int(np.count_nonzero(np.abs(exact) > LARGEST[name]))
    emit(said)


def ranks_of_nans(task: dict[str, Any], emit: Emit) -> None:
    """Emits results of NaNs of both signs and some payloads, combined with 1."""
    comm = plait.init()
    unsigned = unsigned_of(task["type"])
    codes = task["codes"] if comm.rank == 0 else [task["one"]] * len(task["codes"])
    values = np.array(codes, unsigned).view(DTYPE_OF_TYPE[task["type"]])
    results = {
        op: comm.all_reduce(values, op).view(unsigned).tolist() for op in ("sum", "min", "max")
    }
    emit({"rank": comm.rank, **results})


def check_fp8(run_ranks: Any, name: str) -> None:
    for row in run_ranks("test_small_floats:ranks_of_fp8", 2, {"type": name}):
        for op in ("sum", "prod"):
            assert row[op] == 0 and row[f"{op} above"] > 100, row  # overflows included


def test_fp8_with_one_nan_and_no_infinity_casts_as_ml_dtypes_do(run_ranks):
    check_fp8(run_ranks, "fp8e4m3")


def test_fp8_with_infinities_casts_as_ml_dtypes_do(run_ranks):
    check_fp8(run_ranks, "fp8e5m2")


def test_every_nan_becomes_the_one_of_its_type(run_ranks):
    for name, canonical in NAN.items():
        unsigned = unsigned_of(name)
        bits = 8 * np.dtype(unsigned).itemsize
        one = int(np.ones(1, np.float32).astype(DTYPE_OF_TYPE[name]).view(unsigned)[0])
        sign = 1 << bits - 1
        top = canonical if name == "fp8e4m3" else sign - 1  # all ones: a NaN in all types
        codes = [canonical, canonical | sign, top, top | sign]
        if name != "fp8e4m3":
            codes += [canonical + 1, canonical - (canonical & -canonical) + 1]  # a signalling one
        for row in run_ranks("test_small_floats:ranks_of_nans", 2, _task(name, codes, one)):
            for op in ("sum", "min", "max"):
                assert row[op] == [canonical] * len(codes), (name, op, [hex(x) for x in row[op]])


def _task(name: str, codes: list[int], one: int) -> dict[str, Any]:
    return {"type": name, "codes": codes, "one": one}


def test_the_page_has_the_same_nans():
    page = (Path(__file__).parents[2] / "docs" / "same_bits.md").read_text()
    for name, code in NAN.items():
        digits = DTYPE_OF_TYPE[name].itemsize * 2
        assert f"| {name} | `{code:0{digits}x}` |" in page
