"""Compares the benchmarks' expected results with the reference executor, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu_stand_ins import plait_command

import plait
from plait.arrays import DTYPE_OF_TYPE
from plait.bench import gpu_ranks as bench_gpu
from plait.bench import reductions
from plait.bench.oracle import Oracle

INTEGERS = [name for name in DTYPE_OF_TYPE if not reductions.is_float(name)]
FLOATS = [name for name in DTYPE_OF_TYPE if reductions.is_float(name)]
BITWISE_OPS = ("bit_and", "bit_or", "bit_xor")
CASES = [
    (op, kind)
    for op in reductions.COMBINE
    for kind in DTYPE_OF_TYPE
    if kind not in (FLOATS if op in BITWISE_OPS else INTEGERS if op == "premul_sum" else ())
]


def by_reference(op: str, kind: str, parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Runs an all_reduce by the reference executor."""
    request = plait.Request("all_reduce", len(parts[0]), kind, op, len(parts))
    plan = plait.propose_one(plait.load_topology("hgx-h200"), request, "one_shot")
    outputs = [np.zeros_like(parts[0]) for _ in parts]
    plait.run_reference(plan, parts, outputs)
    return outputs[0]


def any_bits(kind: str, ranks: int, count: int) -> list[np.ndarray[Any, Any]]:
    """Returns values of all bit patterns: zeros of both signs, subnormals, infinities, NaNs."""
    dtype, random = DTYPE_OF_TYPE[kind], np.random.default_rng(ranks)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    few = random.integers(0, 1 << 8 * dtype.itemsize, 8, unsigned)  # so that ranks share values
    few[0], few[1] = 0, 1 << (8 * dtype.itemsize - 1)
    parts = [random.integers(0, 1 << 8 * dtype.itemsize, count, unsigned) for _ in range(ranks)]
    for part in parts:
        part[: count // 2] = random.choice(few, count // 2)
    return [part.view(dtype) for part in parts]


@pytest.mark.parametrize(("op", "kind"), CASES)
def test_rank_order_is_the_references(op, kind):
    for ranks in (1, 2, 3, 5):
        parts = any_bits(kind, ranks, 4001)
        with np.errstate(all="ignore"):
            wanted = by_reference(op, kind, parts)
            assert reductions.other_bits(wanted, reductions.in_rank_order(op, kind, parts)) == 0


@pytest.mark.parametrize(("op", "kind"), CASES)
@pytest.mark.parametrize("ranks", [3, 8])
def test_the_benches_take_right_results_and_no_others(op, kind, ranks):
    request = plait.Request("all_reduce", 499, kind, op, ranks)
    oracle = Oracle(request, 5)
    right = by_reference(op, kind, oracle.inputs())
    for bitwise in (True, False):
        assert oracle.wrong(0, right, 0, bitwise) == 0
    off = right.copy()
    off.view(np.uint8)[7 * off.itemsize] ^= 1  # the last bit of a single element
    tolerated = 0 if reductions.is_float(kind) else 1
    for bitwise, wrong in ((True, 1), (False, tolerated)):
        assert oracle.wrong(0, off, 0, bitwise) == wrong
    off[9] = right[9] + DTYPE_OF_TYPE[kind].type(64)
    assert oracle.wrong(0, off, 0, False) == 1 + tolerated


def test_what_sums_in_rank_order():
    machine = plait.load_topology("hgx-h200")
    request = plait.Request("all_reduce", 1 << 20, "fp32", "sum", 4)
    said = {
        "all_reduce/two_shot": True,
        "all_reduce/copy_exchange": True,
        "all_reduce/direct(pieces=2,throttle=1)": True,
        "all_reduce/direct(fuse=0,pieces=2,throttle=1)": False,
        "all_reduce/ring(lanes=1,segments=1)": False,
    }
    for done_by, promised in said.items():
        assert bench_gpu.sums_in_rank_order(machine, request, done_by) == promised, done_by
    moved = plait.Request("all_gather", 1 << 20, "fp32", "sum", 4)
    assert bench_gpu.sums_in_rank_order(machine, moved, "all_gather/rerouted")
    two = plait.Request("all_reduce", 1 << 20, "fp32", "sum", 2)  # no way of theirs is masked here
    assert not bench_gpu.sums_in_rank_order(machine, two, "all_reduce/rerouted")


@pytest.mark.parametrize("op", reductions.COMBINE)
def test_the_host_bench_finds_all_right(op):
    kinds = ",".join(kind for asked, kind in CASES if asked == op)
    words = ("all_reduce", "-g", "4", "-b", "64", "-e", "1K", "-f", "16", "-d", kinds, "-o", op)
    done = plait_command("bench", *words, "--iters", "1")
    assert done.returncode == 0 and "0 OK" in done.stdout, done


class TimedBench(bench_gpu.BenchRank):
    """A BenchRank without a GPU: a call takes 1 ms; records the numbers of enqueued calls."""

    rank, ranks, input, output, stream = 0, 2, 0, 0, 0

    def __init__(self, task: dict[str, Any], done_by: str = "all_reduce/two_shot") -> None:
        self.take_options(task)
        self.row_budget_s, self.nccl, self.comm = 0.35, self, self
        self._core, self.done_by = self, done_by
        self.enqueued: list[int] = []
        self.checked: list[bool] = []
        self.device_topology = plait.load_topology("hgx-h200")

    def largest(self, value: float) -> float:
        return value

    def _timed(self, enqueue: Any, times: int) -> float:
        enqueue(times)
        return times / 1024

    def graph_s(self, call: Any, size_bytes: int) -> float:
        return 0.001

    def counted_as(self, call: Any) -> str:
        if not isinstance(call, partial):
            call()
        elif "direct_ll" in call.args:
            raise plait.UnsupportedError("hop does not take it")
        return self.done_by

    def captured_as(self, call: Any) -> str:
        return self.done_by.replace("two_shot", "tiled")

    @contextmanager
    def replayed(self, call: Any) -> Iterator[Any]:
        yield call

    def enqueue(self, *_: Any) -> None:
        raise AssertionError("nothing is enqueued here")

    call = enqueue

    def load(self, pattern: Any) -> None:
        pass

    def wrong_after(self, call: Any, pattern: Any, bitwise: bool = True) -> int:
        self.checked.append(bitwise)
        return 0


def test_iterations_and_warm_up_asked_for_are_made_on_gpus():
    bench = TimedBench({"iters": 7, "warmup": 3})
    assert bench.seconds(bench.enqueued.append, 1) == pytest.approx(1 / 1024)
    assert bench.enqueued == [3, 2, 7, 7, 7, 7, 7]
    bench = TimedBench({"iters": None})
    bench.seconds(bench.enqueued.append, 1)
    assert bench.enqueued == [1, 2] + 5 * [71]  # as many as the time allows


def test_a_capture_ends_where_a_call_is_refused():
    log: list[str] = []
    gpu = SimpleNamespace(
        begin_capture=lambda stream: log.append("begin"),
        end_capture=lambda stream: log.append("end") or "graph",
        end_graph=lambda graph: log.append(f"drop {graph}"),
    )
    bench = TimedBench({})
    bench.gpu = gpu

    def refused() -> None:
        raise plait.UnsupportedError("no")

    with pytest.raises(plait.UnsupportedError, match="no"):
        bench_gpu.BenchRank.captured_as(bench, refused)
    with pytest.raises(plait.UnsupportedError), bench_gpu.BenchRank.replayed(bench, refused):
        raise AssertionError("there is no graph")
    assert log == 2 * ["begin", "end", "drop graph"]


@pytest.mark.parametrize(
    ("done_by", "promised"),
    [("all_reduce/two_shot", True), ("all_reduce/ring(lanes=1,segments=1)", False)],
)
def test_plaits_results_are_held_to_the_bits_and_nccls_are_not(done_by, promised):
    bench = TimedBench({}, done_by)
    task = {
        "ways": [("", {}), ("direct_ll", {}), ("tiled", {"blocks": 16})],
        "seed": 1,
        "check": True,
    }
    bench.eager_s = lambda call: 0.002
    request = plait.Request("all_reduce", 4096, "bf16", "sum", 2)
    row, by_tiles = bench_gpu._rows(bench, task, request)
    assert bench.checked == [False, False, *[promised] * 4]  # NCCL's once for all
    assert (
        by_tiles["way"] == "tiled:blocks=16" and by_tiles["nccl_eager_us"] == row["nccl_eager_us"]
    )
    named = f"{done_by}, in graphs all_reduce/tiled" if "two_shot" in done_by else done_by
    assert row["kernel"] == named and (row["plait_wrong"], row["nccl_wrong"]) == (0, 0)
