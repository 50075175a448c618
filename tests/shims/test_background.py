"""Tests non-blocking communicators over the stand-in libnccl. The stand-in follows NCCL's source:
the work runs in a thread, joined by ncclCommGetAsyncError."""

from __future__ import annotations

import pytest

MODES = ["processes", "threads"]
NODES = {"PLAIT_NODE_SIZE": "2", "PLAIT_ALGO": "multi_node:pieces=1"}  # short calls, by plait
CHILDREN = {"split_later": 1, "shrink_later": 1, "shrink_abort_later": 1, "group_later": 2}


def _whole(rows):
    """Checks sums, and that no two threads were inside NCCL for the same communicator."""
    return all(row["wrong"] == 0 and row["crowded"] == 0 for row in rows)


@pytest.mark.parametrize("mode", MODES)
def test_the_program_polls_until_plait_has_attached(run_case, mode):
    rows = run_case("nonblocking", 3, mode)
    assert _whole(rows)
    for row in rows:
        assert row["progress"] == 1 and row["state"] == 0
        assert row["early"] == 4  # ncclInvalidArgument, as NCCL answers
        assert row["served"] >= 3 and row["passed"] == 0
    for row in run_case("nonblocking", 3, mode, shim=False):
        assert row["wrong"] == 0 and row["early"] == 4 and row["crowded"] == 0


@pytest.mark.parametrize("case", CHILDREN)
@pytest.mark.parametrize("mode", MODES)
def test_children_attach_before_the_program_has_their_handles(run_case, mode, case):
    rows = run_case(case, 3, mode)
    assert _whole(rows)
    assert [row["there"] for row in rows][1:] == [CHILDREN[case]] * 2
    for row in rows[1:]:
        assert row["served"] >= CHILDREN[case] + (case != "shrink_abort_later")
        assert row["passed"] == 0


@pytest.mark.parametrize("late", ["0", "1"])
@pytest.mark.parametrize("case", ["split_later", "shrink_later"])
def test_a_rank_whose_thread_returns_late_does_not_attach_alone(run_case, case, late):
    """The late rank sees the handle when ncclCommSplit returns; the remaining ranks do not."""
    rows = run_case(case, 3, env={"STANDIN_RETURNS_LATE": late})
    assert _whole(rows)
    assert all(row["served"] == 2 and row["passed"] == 0 for row in rows[1:])


@pytest.mark.parametrize("mode", MODES)
def test_a_grown_communicator_attaches(run_case, mode):
    rows = run_case("grow_later", 3, mode)
    assert _whole(rows)
    assert all(row["served"] >= 1 and row["passed"] == 0 for row in rows)


@pytest.mark.parametrize("env", [{}, {"PLAIT_OPS": "all_reduce"}, {"PLAIT_OPS": "broadcast"}])
def test_a_call_of_plaits_waits_for_what_nccl_launches_later(run_case, env):
    assert _whole(run_case("order_later", 3, env=env))


@pytest.mark.parametrize("env", [{"PLAIT_OPS": "all_reduce"}, {"PLAIT_OPS": "broadcast"}])
def test_a_group_that_nccl_launches_later_joins_its_streams(run_case, env):
    for row in run_case("group_mixed_later", 3, env=env):
        assert row["wrong"] == 0 and row["early"] == 0
        assert row["served"] > 0 and row["passed"] > 0


def test_a_group_that_nccl_launches_later_joins_its_streams_though_a_step_fails(run_case):
    for row in run_case("group_mixed_refused", 3, env={"PLAIT_OPS": "all_reduce"}):
        assert row["wrong"] == 0 and row["early"] == 0 and row["errors"] == 4


@pytest.mark.parametrize("case", ["nonblocking", "split_later", "group_later", "order_later"])
def test_nodes_have_the_engine_of_all_ranks(run_case, case):
    rows = run_case(case, 4, env=NODES)
    assert _whole(rows)
    assert all(row["served"] > 0 for row in rows)


def test_groups_over_nodes_wait_until_nccl_has_launched(run_case):
    for row in run_case("group_mixed_later", 4, env={**NODES, "PLAIT_OPS": "all_reduce"}):
        assert row["wrong"] == 0 and row["early"] == 0 and row["served"] > 0


@pytest.mark.parametrize("env", [{}, NODES])
def test_a_group_that_makes_a_child_has_calls_too(run_case, env):
    """Over nodes plait's call goes over NCCL, which refuses calls while it makes the child."""
    rows = run_case("child_beside_calls", 4, env=env)
    assert _whole(rows)
    assert all(row["served"] == 3 and row["passed"] == 0 for row in rows)
