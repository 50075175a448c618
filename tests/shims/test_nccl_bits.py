"""Tests `plait run --bitwise`: sums in rank order or errors, and the messages of the command."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from shim_env import plain_env

STRICT = {"PLAIT_BITWISE": "1", "PLAIT_BITWISE_STRICT": "1", "PLAIT_DEBUG": "WARN"}
INVALID_USAGE = 5


def _bitwise(built, *command: str, env: dict[str, str] | None = None):
    drop_in = str(built / "libplait_nccl.so")
    plait = [sys.executable, "-m", "plait.cli", "run", "--bitwise", "--drop-in", drop_in, "--"]
    return subprocess.run(
        [*plait, str(built / command[0]), *command[1:]],
        env=plain_env(env or {}),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"PLAIT_OPS": "all_gather"}, "PLAIT_OPS"),
        ({"PLAIT_MIN_BYTES": "1G"}, "PLAIT_MIN_BYTES"),
        ({"PLAIT_DISABLE": "1"}, "PLAIT_DISABLE is 1"),
        ({"PLAIT_NO_SUCH": "1"}, "PLAIT_NO_SUCH"),
    ],
)
def test_sums_that_would_be_nccls_are_errors(run_case, env, why):
    for row in run_case("strict", 3, env=STRICT | env):
        assert row["sum"] == row["average"] == row["premul"] == INVALID_USAGE
        assert row["whole"] == row["largest"] == row["none"] == row["gather"] == 0
    assert "refused: all_reduce of fp32, sum, over 3 ranks" in run_case.stderr
    assert why in run_case.stderr


def test_sums_that_are_plaits_are_served_with_factors_too(run_case):
    for row in run_case("strict", 3, env=STRICT):
        assert row["sum"] == row["average"] == row["premul"] == 0


def test_a_sum_whose_configuration_asks_for_nccl_is_nccls(run_case):
    for row in run_case("strict", 3, env=STRICT | {"PLAIT_DEBUG": "WARN"}):
        assert row["sum"] == row["unconfigured"] == 0
        assert [row[f"obeyed{i}"] for i in range(4)] == [0] * 4
        assert [row[f"configured{i}"] for i in range(6)] == [INVALID_USAGE] * 6
    assert "no engine obeys the limits of its configuration" in run_case.stderr
    why = "its configuration asks for an algorithm, a cluster, CTAs of NVLS or an event"
    assert why in run_case.stderr


def test_of_two_ranks_a_sum_has_one_order(run_case):
    for row in run_case("strict", 2, env=STRICT | {"PLAIT_DISABLE": "1"}):
        assert row["sum"] == 0 and row["average"] == row["premul"] == INVALID_USAGE


@pytest.mark.parametrize(("ranks", "size"), [(4, 2), (6, 3)])
def test_over_two_nodes_sums_are_in_rank_order(run_case, ranks, size):
    env = STRICT | {"PLAIT_NODE_SIZE": str(size)}
    for row in run_case("rank_order", ranks, env=env):
        assert row["wrong"] == 0 and row["served"] == 37 and row["passed"] == 0
    for row in run_case("strict", ranks, env=env):
        assert row["sum"] == 0 and row["average"] == INVALID_USAGE
        assert row["whole"] == row["largest"] == 0


@pytest.mark.parametrize("order", ["tree", "tree_rounded"])
@pytest.mark.parametrize(("ranks", "size"), [(2, 0), (4, 0), (8, 0), (4, 2), (8, 4)])
def test_a_tree_is_served_on_demand_and_goes_on_over_two_nodes(run_case, ranks, size, order):
    env = STRICT | {"PLAIT_SUM_ORDER": order, "PLAIT_NODE_SIZE": str(size)}
    for row in run_case("rank_order", ranks, env=env):
        assert row["wrong"] == 0 and row["served"] + row["passed"] == 37
        assert row["passed"] == 0 or ranks == 2


def test_three_ranks_or_nodes_have_no_tree(run_case):
    env = STRICT | {"PLAIT_SUM_ORDER": "tree"}
    for row in run_case("strict", 3, env=env):
        assert row["sum"] == INVALID_USAGE and row["largest"] == 0
    for row in run_case("strict", 6, env=env | {"PLAIT_NODE_SIZE": "3"}):
        assert row["sum"] == INVALID_USAGE and row["largest"] == 0


def test_over_three_nodes_the_order_is_nccls(run_case):
    for row in run_case("strict", 6, env=STRICT | {"PLAIT_NODE_SIZE": "2"}):
        assert row["sum"] == row["average"] == INVALID_USAGE
        assert row["whole"] == row["largest"] == 0


def test_without_strict_they_pass(run_case):
    for row in run_case("strict", 3, env={"PLAIT_BITWISE": "1", "PLAIT_DISABLE": "1"}):
        assert {row["sum"], row["average"], row["premul"]} == {0}


def test_it_says_what_was_served(built):
    done = _bitwise(built, "nccl_linked", "groups", "3", "processes")
    assert done.returncode == 0, done.stderr
    assert "sums over ranks are plait's in rank order, or errors" in done.stderr
    assert "served in 3 processes: sums in rank order 6 calls" in done.stderr
    assert "left to NCCL: reductions that no order changes 0 calls (0 B); moves" in done.stderr
    assert all(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))


def test_a_refused_sum_ends_the_program_with_its_own_status(built):
    done = _bitwise(built, "nccl_linked", "groups", "3", "processes", env={"PLAIT_OPS": "copy"})
    assert done.returncode != 0 and "refused: all_reduce" in done.stderr


def test_a_killed_program_has_a_shells_status(built):
    drop_in = str(built / "libplait_nccl.so")
    words = [sys.executable, "-m", "plait.cli", "run", "--bitwise", "--drop-in", drop_in]
    done = subprocess.run(
        [*words, "--", "sh", "-c", "kill -9 $$"], env=plain_env({}), capture_output=True, text=True
    )
    assert done.returncode == 137 and "no process made a call of NCCL" in done.stderr
