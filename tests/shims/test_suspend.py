"""Tests ncclCommSuspend and ncclCommResume: plait's memory goes and comes back with NCCL's."""

from __future__ import annotations

import pytest

SYSTEM_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 2, 4, 5, 6


@pytest.mark.parametrize("ranks", [2, 3])
def test_memory_goes_and_comes_back_amid_calls(run_case, ranks):
    for row in run_case("suspended", ranks):
        assert row["wrong"] == 0 and row["stats_wrong"] == 0
        assert row["suspends"] > 5 and row["refused"] == row["suspends"]
        assert row["goes"] == 1000 + 21_000_000  # the stand-in's, and both arenas
        assert row["served"] > 20


@pytest.mark.parametrize("ranks", [2, 3])
def test_large_arenas_are_given_up_and_made_again_amid_calls(run_case, ranks):
    for row in run_case("suspended", ranks, env={"PLAIT_TRIM_S": "0.03"}):
        assert row["wrong"] == 0 and row["stats_wrong"] == 0 and row["suspends"] > 5
        assert row["given_up"] > 0


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_agree_on_groups_and_refused_calls_hold_no_memory(run_case, ranks):
    for row in run_case("suspend_groups", ranks, env={"PLAIT_TRIM_S": "0.03"}):
        assert row["wrong"] == 0 and row["in_group"] == INVALID_USAGE
        assert row["large"] == INVALID_ARGUMENT and row["given_up"] > 0


def test_memory_of_threads_stays(run_case):
    for row in run_case("suspended", 2, "threads"):
        assert row["wrong"] == 0 and row["stats_wrong"] == 0 and row["goes"] == 1000


NODES = {"PLAIT_NODE_SIZE": "2", "PLAIT_ALGO": "multi_node:pieces=1"}


@pytest.mark.parametrize(("mode", "env", "served"), [("threads", {}, 8), ("processes", NODES, 2)])
def test_memory_that_stays_needs_no_resume_outside_groups(run_case, mode, env, served):
    for row in run_case("resume_group", 4, mode, env):
        assert row["wrong"] == 0 and row["resumed"] == 0
        assert row["served"] == served  # a process counts the calls of its ranks


def test_a_rank_without_memory_fails_all_ranks(run_case):
    env = {"STANDIN_NO_ROOM_AGAIN": "1", "PLAIT_DEBUG": "WARN"}
    rows = run_case("resume_fails", 3, env=env)
    assert all(row["wrong"] == 0 and row["resumed"] != 0 and row["called"] != 0 for row in rows)
    assert rows[1]["resumed"] == SYSTEM_ERROR and "no room" in run_case.stderr
    assert all(row["called"] == INVALID_ARGUMENT for row in rows)


def test_a_rank_that_dies_while_the_others_resume_is_not_waited_for(run_case):
    rows = run_case("resume_fails", 3, env={"STANDIN_DIES_RESUMING": "2"})
    assert [row["rank"] for row in rows] == [0, 1]
    assert all(row["resumed"] == REMOTE_ERROR and row["called"] != 0 for row in rows)
