"""Tests the first arena of a communicator, made at the first call if the paths between its GPUs are
proved: NCCL serves calls until all ranks have the arena."""

from __future__ import annotations

import pytest

REMOTE_ERROR = 6


@pytest.mark.parametrize("ranks", [2, 3])
def test_first_calls_of_every_kind_make_the_arena(run_case, ranks):
    for row in run_case("first_arena", ranks):
        assert row["wrong"] == 0
        assert row["made_early"] == 0 and row["early"] == 1000  # the stand-in's own
        assert row["first"] == 1 and row["late"] == 1_001_000
        assert row["arenas"] == 4  # the fifth communicator makes no call
        assert row["passed"] == 0 and row["served"] == 9 and row["nccl"] == 0


@pytest.mark.parametrize(
    "said",
    [{"PLAIT_BITWISE": "1"}, {"PLAIT_DEVICE_MEMORY": "192M"}, {"STANDIN_MESSAGES": "1"}],
)
def test_the_arena_with_the_communicator_if_calls_or_messages_want_it(run_case, said):
    for row in run_case("first_arena", 2, env=said):
        assert row["wrong"] == 0 and row["made_early"] == 5 and row["passed"] == 0


def test_a_rank_without_memory_leaves_all_its_communicators_calls_to_nccl(run_case):
    for row in run_case("first_arena", 3, env={"STANDIN_NO_FIRST_ARENA": "1"}):
        assert row["wrong"] == 0
        assert row["served"] == 3  # the first communicator's calls
        assert row["passed"] == 6 + (row["rank"] == 0)  # with the call that rank 0 simulates


def test_without_waiting_nccl_serves_until_all_ranks_have_the_arena(run_case):
    env = {"STANDIN_FIRST_WAIT_S": "0", "PLAIT_DEBUG": "EXPLAIN"}
    rows = run_case("first_arena", 3, env=env)
    assert all(row["wrong"] == 0 and row["passed"] > 0 for row in rows)
    assert "NCCL (its arena is not allocated on all ranks yet)" in run_case.stderr


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_simulated_group_leaves_no_rank_ahead(run_case, ranks):
    # Rank 0 may stall amid its first call, and all ranks must not have the arena by then.
    env = {"STANDIN_FIRST_WAIT_S": "0", "STANDIN_OPENS_BEHIND": "0"}
    rows = run_case("first_arena_simulated", ranks, env=env)
    # The first of four calls was decided in the group.
    assert all(row["wrong"] == 0 and row["passed"] == 1 + (row["rank"] == 0) for row in rows)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_suspend_that_freed_nothing_needs_no_common_resume(run_case, ranks):
    env = {"STANDIN_RESUMES_ALONE": "1"}
    for row in run_case("first_arena_suspended", ranks, env=env):
        assert row["wrong"] == 0 and row["resumed"] == 0
        assert row["late"] == 1_001_000 and row["passed"] == 0


def test_no_rank_waits_for_the_program_of_another(run_case):
    rows = run_case("first_arena_alone", 3)
    assert all(row["wrong"] == 0 and row["passed"] == 0 for row in rows)
    assert rows[0]["enqueued_ms"] < 8000  # the others call then; a call waits 10 s for an arena


def test_a_rank_that_dies_while_it_opens_fails_the_call_as_a_lost_rank(run_case):
    rows = run_case("first_arena_lost", 3, env={"STANDIN_DIES_OPENING": "2"})
    assert [row["rank"] for row in rows] == [0, 1]
    assert all(row["wrong"] == 0 and row["called"] == REMOTE_ERROR for row in rows)


def test_an_arena_that_no_call_has_got_is_freed_with_the_communicator(run_case):
    rows = run_case("first_arena_closed_early", 3, env={"STANDIN_FIRST_WAIT_S": "0.2"})
    assert rows[0]["freed"] == 2  # the others free later


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_suspends_and_trims_amid_growing_arenas(run_case, seed):
    env = {"SOAK_SEED": str(seed)}
    env |= {"PLAIT_TRIM_S": "0.05"} if seed % 2 else {"STANDIN_FIRST_WAIT_S": "0.005"}
    for row in run_case("arenas_soak", 2 + seed % 2, env=env):
        assert row["wrong"] == 0 and row["suspends"] > 0 and row["served"] > 0
