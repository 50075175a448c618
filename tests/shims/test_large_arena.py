"""Tests the large arena, made after the communicator: NCCL serves large calls until then."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_first_large_call_waits_briefly_for_the_arena(run_case, ranks):
    for row in run_case("large_arena", ranks):
        assert row["wrong"] == 0 and row["early"] == 0
        assert row["passed"] == 0 and row["large_arenas"] > 0
        # By ncclCommMemStats: the stand-in's numbers, and plait's 1 MB, then 20 more, which can go.
        assert row["memory_before"] == [1_001_000, 0, 2000, 1_003_000]
        assert row["memory_after"] == [21_001_000, 0, 2000, 21_003_000]
        assert row["held"] == 21_000_000  # by part, of this process's only communicator


def test_memory_of_a_communicator_left_to_nccl_is_nccls(run_case):
    for row in run_case("large_arena", 2, env={"PLAIT_DISABLE": "1"}):
        assert row["wrong"] == 0 and row["memory_after"] == [1000, 0, 2000, 3000]


def test_without_waiting_nccl_serves_until_all_ranks_have_the_arena(run_case):
    rows = run_case("large_arena", 3, env={"STANDIN_ARENA_WAIT_S": "0", "PLAIT_DEBUG": "EXPLAIN"})
    assert all(row["wrong"] == 0 and row["passed"] > 0 for row in rows)
    assert "NCCL (its arena is not allocated on all ranks yet)" in run_case.stderr


def test_a_group_simulated_by_one_rank_keeps_the_order_of_calls(run_case):
    for row in run_case("large_arena_simulated", 3):
        assert row["wrong"] == 0


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_simulated_group_that_got_the_arena_midway_leaves_no_open_call(run_case, ranks):
    for row in run_case("large_arena_simulated_late", ranks, env={"PLAIT_TRIM_S": "0.5"}):
        assert row["wrong"] == 0 and row["trims"] == 1
        # The first of three calls; on rank 0 also the first of the group. The group's second call
        # got the arena.
        assert row["passed"] == 1 + (row["rank"] == 0)


def test_captures_allocate_no_arena_and_keep_their_tier(run_case):
    for row in run_case("large_arena_captured", 3):
        assert row["wrong"] == 0 and row["early"] == 0
        assert row["passed"] > 0 and row["served"] > 0 and row["nccl"] > 0


def test_communicators_in_crossing_orders(run_case):
    for row in run_case("large_arena_crossed", 3, env={"STANDIN_ARENA_WAIT_S": "0.05"}):
        assert row["wrong"] == 0
        assert row["passed"] > 0 and row["served"] > 0


@pytest.mark.parametrize("case", ["large_arena", "large_arena_of_one_thread"])
def test_ranks_of_one_process_have_both_arenas_at_once(run_case, case):
    for row in run_case(case, 3, "threads")[: 1 if case == "large_arena_of_one_thread" else 3]:
        assert row["wrong"] == 0
        assert row["served"] > 0 and row["passed"] == 0 and row["large_arenas"] == 0


def test_misaligned_memory_of_one_rank_keeps_the_order_of_calls(run_case):
    for row in run_case("large_arena_misaligned", 3):
        assert row["wrong"] == 0


def test_a_rank_without_memory_leaves_all_large_calls_to_nccl(run_case):
    for row in run_case("large_arena", 3, env={"STANDIN_NO_ARENA": "1"}):
        assert row["wrong"] == 0
        assert row["served"] > 0 and row["passed"] > 0 and row["large_arenas"] == 0


def test_an_unfinished_arena_is_freed_with_the_communicator(run_case):
    for row in run_case("large_arena_closed_early", 3):
        assert row["freed"] > 0 and row["large_arenas"] == 0


@pytest.mark.parametrize("said", [{"PLAIT_DEVICE_MEMORY": "192M"}, {"PLAIT_BITWISE": "1"}])
def test_both_arenas_at_once_if_the_program_says_so(run_case, said):
    for row in run_case("large_arena_captured", 2, env=said):
        assert row["wrong"] == 0 and row["passed"] == 0 and row["large_arenas"] == 0
