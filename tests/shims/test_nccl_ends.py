"""Tests how communicators end over the stand-in libnccl: finalized, aborted, revoked, or by a
death."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("case", ["finalize", "finalize_later"])
def test_all_calls_have_ended_when_a_communicator_is_finalized(run_case, case):
    rows = run_case(case, 3)
    assert all(row["wrong"] == 0 and row["has_sum"] == 1 and row["served"] == 2 for row in rows)


@pytest.mark.parametrize(
    "case", ["finalize_refused", "finalize_group_refused", "finalize_misaligned"]
)
def test_a_refused_call_leaves_the_end_of_later_calls_known(run_case, case):
    for row in run_case(case, 3, env={"PLAIT_OPS": "all_reduce"}):
        assert row["refused"] == 4  # ncclInvalidArgument
        assert row["wrong"] == 0 and row["has_sum"] == 1


@pytest.mark.parametrize("case", ["abort_in_group", "abort_alongside_group", "destroy_in_group"])
def test_a_communicator_can_end_while_a_group_of_it_is_open(run_case, case):
    for row in run_case(case, 3):
        assert row["wrong"] == 0 and row["took_ms"] < 1500
        assert row["ended"] == 5 and row["later"] == 1  # ncclInvalidUsage; and memory is freed


@pytest.mark.parametrize("case", ["revoke_refused", "revoke_refused_late"])
def test_calls_go_on_where_nccl_refuses_to_revoke(run_case, case):
    rows = run_case(case, 3)
    assert [row["revoked"] for row in rows] == [4, 0, 0]  # ncclInvalidArgument
    calls = 2 if case == "revoke_refused_late" else 3
    assert all(row["wrong"] == 0 and row["served"] == calls for row in rows)


def test_abort_ends_what_keeps_plait_inside_nccl(run_case):
    """plait attaches inside a first connection that a rank never joins, of pretended nodes."""
    for row in run_case("abort_attaching", 2, env={"PLAIT_NODE_SIZE": "1"}):
        assert row["made"] == 6 and row["took_ms"] < 20_000  # ncclRemoteError


@pytest.mark.alone
@pytest.mark.parametrize("case", ["abort_frees", "death_frees"])
def test_what_is_aborted_is_freed_too(run_case, case):
    for row in run_case(case, 3):
        assert row["wrong"] == 0 and row["took_ms"] < 3000 and row["later"] == 1


@pytest.mark.alone
def test_a_rank_that_dies_while_plait_attaches_is_not_waited_for(run_case):
    rows = run_case("dies_attaching", 3, env={"PLAIT_DEBUG": "WARN", "STANDIN_PATIENCE_S": "60"})
    assert len(rows) == 2
    assert all(row["result"] == 6 and row["took_ms"] < 5000 for row in rows)  # ncclRemoteError
    assert "rank 2 has died while plait was attaching" in run_case.stderr
