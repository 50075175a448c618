"""Tests sums in tree order on CPU ranks: random calls against a reference in numpy of this file,
equal bits over 1, 2, 4 and 8 ranks, refusals, and a sum in rank order that must differ."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

import plait
from plait.arrays import DTYPE_OF_TYPE
from plait.launch import Emit
from plait.same_bits import tree_sum

FLOATS = ("fp32", "fp64", "bf16", "fp16", "fp8e4m3", "fp8e5m2")
ORDERS = ("tree", "tree_rounded")


def tree(parts: list[Any], op: str, order: str, dtype: np.dtype[Any]) -> Any:
    """Adds or multiplies in pairs; parts are wide. Rounds each result of two but the last."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [a * b if op == "prod" else a + b for a, b in pairs]
        if order == "tree_rounded" and len(parts) > 1:
            parts = [part.astype(dtype).astype(part.dtype) for part in parts]
    return parts[0]


def expected(inputs: list[Any], op: str, order: str, scalars: list[float]) -> Any:
    dtype = inputs[0].dtype
    wide = dtype if dtype.itemsize >= 4 else np.dtype(np.float32)
    parts = [part.astype(wide) for part in inputs]
    if op == "premul_sum":
        parts = [part * wide.type(by) for part, by in zip(parts, scalars, strict=True)]
    with np.errstate(all="ignore"):
        total = tree(parts, op, order, dtype)
        if op == "avg":
            total = total / wide.type(len(parts))
        made = total.astype(dtype)
    made[np.isnan(made)] = np.nan
    return made


def inputs_of(ranks: int, count: int, dtype: np.dtype[Any], seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    spread = 4.0 if dtype.itemsize == 1 else 30.0
    return [
        (random.standard_normal(count) * np.exp2(random.uniform(-spread / 2, 2, count))).astype(
            dtype
        )
        for _ in range(ranks)
    ]


def bits(array: Any) -> Any:
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def random_calls(task: dict[str, Any], emit: Emit) -> None:
    """Emits the calls whose result differs from expected(), and those whose rank order would."""
    comm = plait.init(sum_order=task["order"])
    random = np.random.default_rng(task["seed"])
    wrong, apart = [], 0
    for call in range(task["calls"]):
        name = str(random.choice(FLOATS))
        op = str(random.choice(["sum", "sum", "avg", "prod"]))
        collective = str(random.choice(["all_reduce", "reduce_scatter", "reduce"]))
        count = int(2 ** random.uniform(0, 15)) * comm.ranks
        inputs = inputs_of(comm.ranks, count, DTYPE_OF_TYPE[name], call)
        whole = expected(inputs, op, task["order"], [])
        if collective == "reduce_scatter":
            share = count // comm.ranks
            whole = whole[comm.rank * share : (comm.rank + 1) * share]
            found = comm.reduce_scatter(inputs[comm.rank], op)
        elif collective == "reduce":
            found = comm.reduce(inputs[comm.rank], op, root=0)
        else:
            found = comm.all_reduce(inputs[comm.rank], op)
        if collective == "reduce" and comm.rank != 0:
            continue
        if not np.array_equal(bits(found), bits(whole)):
            wrong.append([call, collective, name, op, count])
        in_turn = inputs[0].astype(np.float64)
        for part in inputs[1:]:
            in_turn = (in_turn + part.astype(np.float64)).astype(np.float32)
        if op == "sum" and collective == "all_reduce":
            in_turn = in_turn.astype(whole.dtype)
            apart += int(np.count_nonzero(bits(in_turn) != bits(whole)))
    emit({"rank": comm.rank, "wrong": wrong, "apart": apart})


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_random_calls_have_the_bits_of_the_reference(run_ranks, ranks, order):
    task = {"order": order, "seed": ranks, "calls": 60}
    for row in run_ranks("test_tree_order:random_calls", ranks, task):
        assert row["wrong"] == []
        assert row["apart"] > 0 or row["rank"] != 0  # other orders have other bits


def sums_of_eight(task: dict[str, Any], emit: Emit) -> None:
    """Sums eight parts of each type: this rank's in the local tree, then those of all ranks."""
    comm = plait.init(sum_order=task["order"])
    each = 8 // comm.ranks
    said = {}
    for kind in FLOATS:
        dtype = DTYPE_OF_TYPE[kind]
        parts = inputs_of(8, 5000, dtype, 3)
        mine = parts[comm.rank * each : (comm.rank + 1) * each]
        total = comm.all_reduce(tree_sum(mine, rounded=task["order"] == "tree_rounded"))
        if task["order"] == "tree":
            total = total.astype(dtype)
            if comm.ranks == 8:  # partial sums inside the call are those of fp32
                assert np.array_equal(bits(comm.all_reduce(mine[0])), bits(total))
        said[kind] = hashlib.sha256(bits(total).tobytes()).hexdigest()
    emit({"rank": comm.rank, "said": said})


@pytest.mark.parametrize("order", [*ORDERS, "rank_order"])
def test_the_same_bits_over_one_two_four_and_eight_ranks(run_ranks, order):
    found = []
    for ranks in (1, 2, 4, 8):
        rows = run_ranks("test_tree_order:sums_of_eight", ranks, {"order": order})
        found += [row["said"] for row in rows]
    if order != "rank_order":
        assert all(said == found[0] for said in found)
    else:  # the order that a tree replaces
        assert all({said[kind] for said in found} != {found[0][kind]} for kind in ("fp32", "bf16"))


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i4"])
def test_parts_in_another_byte_order_have_the_same_sum(kind, rounded):
    parts = inputs_of(4, 1000, np.dtype(kind), 1)
    for count in (1, 2, 4):
        wanted = tree_sum(parts[:count], rounded=rounded)
        found = tree_sum(
            [part.astype(part.dtype.newbyteorder()) for part in parts[:count]], rounded=rounded
        )
        assert found.dtype == wanted.dtype and found.dtype.isnative
        assert np.array_equal(bits(found), bits(wanted))


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", FLOATS)
def test_parts_without_an_axis_are_summed(kind, rounded):
    dtype = DTYPE_OF_TYPE[kind]
    wide = dtype if dtype.itemsize >= 4 or rounded else np.dtype(np.float32)
    for count in (1, 2, 4):
        for part in (np.array(1, dtype), np.array([1], dtype)[0]):
            total = tree_sum([part] * count, rounded=rounded)
            assert isinstance(total, np.ndarray) and total.shape == ()
            assert total.dtype == wide and float(total) == count


def test_parts_that_are_no_arrays_are_refused():
    with pytest.raises(
        plait.InvalidArgumentError, match="numpy arrays or torch tensors, found float"
    ):
        tree_sum([1.0, 2.0])


def demands(task: dict[str, Any], emit: Emit) -> None:
    """Emits what a communicator with a demand says of sums, and how it sums."""
    comm = plait.init(**task["options"])
    said = {"rank": comm.rank}
    try:
        comm.all_reduce(np.ones(100, np.float32))
    except plait.Error as error:
        said["sum"] = str(error)
    said["max"] = comm.all_reduce(np.full(3, comm.rank), "max").tolist()
    request = plait.Request("all_reduce", 1000, "bf16", ranks=comm.ranks)
    try:
        said["explained"] = comm.explain(request)
    except plait.Error as error:
        said["explained"] = str(error)
    emit(said)


def test_three_ranks_have_no_tree(run_ranks):
    for row in run_ranks("test_tree_order:demands", 3, {"options": {"sum_order": "tree"}}):
        assert "power of two of ranks, found 3; use rank_order" in row["sum"]
        assert row["max"] == [2, 2, 2]


def test_explain_names_the_order_and_the_variable_demands_it(run_ranks):
    env = {"PLAIT_SUM_ORDER": "tree_rounded"}
    for row in run_ranks("test_tree_order:demands", 4, {"options": {}}, env=env):
        assert "sum" not in row
        assert "sums in tree_rounded" in row["explained"]
        assert "does not sum in the order tree_rounded" in row["explained"]
    for row in run_ranks("test_tree_order:demands", 2, {"options": {"sum_order": "rank"}}, env=env):
        assert "sums in rank_order" in row["explained"]


def test_a_wrong_order_is_refused():
    with pytest.raises(plait.InvalidArgumentError, match="wanted rank_order, tree or tree_rounded"):
        plait.init(rank=0, ranks=1, sum_order="pairs")


def test_a_plan_in_a_tree_is_proved_and_a_ring_has_none():
    machine = plait.load_topology("hgx-h200")
    request = plait.Request("all_reduce", 1 << 16, "bf16", ranks=8)
    for order in ORDERS:
        plan = plait.propose_one(machine, request, "direct").in_order(order)
        assert plan.sum_order == order
        assert plait.verify(plan).proved
        assert plait.propose_one(machine, request, "ring").in_order(order) is None
