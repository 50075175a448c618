"""Tests the drop-in over the stand-in libnccl: which library serves a call, and results."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

MODES = ["processes", "threads"]
H100 = "NVIDIA H100 80GB HBM3, 132 multiprocessors, 18 NVLinks to switches"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_reduce_is_served(run_case, ranks, mode):
    rows = run_case("all_reduce", ranks, mode)
    assert len(rows) == ranks
    for row in rows:
        assert row["wrong"] == 0
        assert row["served"] > 0 and row["passed"] == 0
        assert row["nccl"] == 0  # the native library got none


def test_without_the_drop_in_nothing_changes(run_case):
    rows = run_case("all_reduce", 2, shim=False)
    assert all(row["wrong"] == 0 and row["served"] == -1 and row["nccl"] > 0 for row in rows)


def test_calls_with_nothing_to_do_are_nccls(run_case):
    assert all(row["wrong"] == 0 and row["passed"] == 1 for row in run_case("empty"))


@pytest.mark.parametrize("mode", MODES)
def test_one_communicator_on_several_streams(run_case, mode):
    for row in run_case("streams", 3, mode):
        assert row["wrong"] == 0 and row["served"] >= 60 and row["passed"] == 0


@pytest.mark.parametrize("case", ["lost_streams", "lost_streams_late"])
@pytest.mark.parametrize("mode", MODES)
def test_no_stream_is_touched_but_a_calls_own(run_case, mode, case):
    for row in run_case(case, 3, mode, env={"STANDIN_PATIENCE_S": "30"}):
        assert row["wrong"] == 0 and row["served"] > 40


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("case", "said", "mixes"),
    [
        ("forked_capture", {}, True),
        ("forked_capture", {"NCCL_GRAPH_MIXING_SUPPORT": "0"}, False),
        ("forked_capture", {"NCCL_GRAPH_MIXING_SUPPORT": "7"}, True),  # NCCL takes 0 and 1
        ("forked_capture_unmixed", {}, False),
        ("forked_capture_unmixed", {"NCCL_GRAPH_MIXING_SUPPORT": "1"}, True),
        ("forked_capture_mixed", {}, True),
    ],
)
def test_calls_on_two_streams_of_one_capture(run_case, mode, case, said, mixes):
    env = {"STANDIN_PATIENCE_S": "3", **said}
    for row in run_case(case, 3, mode, env=env):
        assert row["wrong"] == 0 and row["served"] >= 2 and row["passed"] == 0
        dawdling = row["rank"] % 3 == 0 or row["rank"] % 3 == 2
        assert row["nodes"] == 2 + dawdling + 2 * mixes  # a wait and a record


@pytest.mark.parametrize("mode", MODES)
def test_an_eager_call_after_a_capture_has_begun(run_case, mode):
    for row in run_case("begun_capture", 3, mode, env={"STANDIN_PATIENCE_S": "3"}):
        assert row["wrong"] == 0 and row["passed"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_graphs_beside_eager_calls_and_other_graphs(run_case, mode):
    for row in run_case("mixed_graphs", 3, mode, env={"STANDIN_PATIENCE_S": "3"}):
        assert row["wrong"] == 0 and row["passed"] == 0


@pytest.mark.parametrize("case", ["served_late", "served_late_in_group"])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_served_first_waits_for_what_was_passed_on(run_case, mode, case):
    for row in run_case(case, 3, mode):
        assert row["wrong"] == 0 and row["served"] >= 1 and row["passed"] == 0


def test_only_plait_reduces_bf16(run_case):
    assert all(row["wrong"] == 0 and row["async"] == 0 for row in run_case("bf16"))
    # Without plait the stand-in refuses the type, hence plait served the case above.
    assert all(row["wrong"] > 0 for row in run_case("bf16", shim=False))


@pytest.mark.parametrize("mode", MODES)
def test_other_collectives(run_case, mode):
    for row in run_case("others", 3, mode):
        assert row["wrong"] == 0
        assert row["passed"] == 0
        assert row["served"] == 8 if mode == "processes" else 8 <= row["served"] <= 24


SERVES_MESSAGES = {"STANDIN_MESSAGES": "1"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_sends_and_receives(run_case, ranks, mode):
    for row in run_case("messages", ranks, mode, env=SERVES_MESSAGES):
        assert row["wrong"] == 0
        assert row["served"] > 0 and row["passed"] == 0
        assert row["nccl"] == 0
    for row in run_case("messages", ranks, mode):
        assert row["wrong"] == 0 and row["served"] == 0 and row["passed"] > 0


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("env", [SERVES_MESSAGES, {}])
def test_random_groups_of_messages(run_case, ranks, env):
    for row in run_case("random_messages", ranks, env=env):
        assert row["wrong"] == 0 and (row["nccl"] == 0) == bool(env)


def test_sends_and_receives_are_served_all_or_none(run_case):
    for env, why in [
        ({"PLAIT_OPS": "all_reduce"}, "send_recv is not in PLAIT_OPS"),
        ({"PLAIT_DISABLE": "1"}, "PLAIT_DISABLE is 1"),
    ]:
        rows = run_case("messages", 2, env={**SERVES_MESSAGES, "PLAIT_DEBUG": "EXPLAIN", **env})
        assert all(row["wrong"] == 0 and row["served"] == 0 for row in rows)
        assert re.search(rf"send and receive: NCCL \(.*{why}", run_case.stderr)
    env = {**SERVES_MESSAGES, "PLAIT_DEBUG": "EXPLAIN", "PLAIT_MIN_BYTES": "1G"}
    rows = run_case("messages", 2, env=env)
    assert all(row["wrong"] == 0 and row["passed"] == 0 for row in rows)
    assert "send and receive: plait" in run_case.stderr


@pytest.mark.parametrize("case", ["streams", "served_late", "served_late_in_group", "groups"])
def test_cases_whose_messages_are_served_too(run_case, case):
    for row in run_case(case, 3, env=SERVES_MESSAGES):
        assert row["wrong"] == 0 and row["passed"] == 0


def test_groups_start_at_their_outermost_end(run_case):
    for row in run_case("groups", 3):
        assert row["wrong"] == 0
        assert row["early"] == 0
        assert row["served"] == 2 and row["nccl"] == 0


@pytest.mark.parametrize("case", ["split", "shrink"])
@pytest.mark.parametrize("mode", MODES)
def test_children_attach_too(run_case, case, mode):
    rows = run_case(case, 4, mode)
    assert all(row["wrong"] == 0 for row in rows)
    assert rows[1]["served"] > 0 and rows[1]["passed"] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_premultiplied_sums_with_a_factor_a_rank_are_served(run_case, ranks, mode):
    for row in run_case("factors", ranks, mode):
        assert row["wrong"] == 0 and row["passed"] == 0
        assert row["served"] == (row["calls"] + 1) * (ranks if mode == "threads" else 1)


def test_premultiplied_sums_over_nodes_are_nccls(run_case):
    env = {"PLAIT_NODE_SIZE": "2", "PLAIT_ALGO": "multi_node:pieces=1", "PLAIT_DEBUG": "EXPLAIN"}
    for row in run_case("factors", 4, env=env):
        assert row["served"] == 0 and row["passed"] == row["calls"] + 1
    assert "premul_sum over 4 ranks: NCCL (between nodes NCCL alone" in run_case.stderr


def test_explain_says_why_a_premultiplied_sum_is_nccls(run_case):
    env = {"STANDIN_NO_FACTORS": "1", "PLAIT_DEBUG": "EXPLAIN"}
    for row in run_case("factors", 2, env=env):
        assert row["served"] == 0 and row["passed"] == row["calls"] + 1
    assert "premul_sum over 2 ranks: NCCL (the test's engine takes no factor)" in run_case.stderr


def test_a_premultiplied_sum_that_has_ended_is_nccls(run_case):
    for row in run_case("factor_ended", 2):
        assert row["nccl"] == 1 and row["served"] == row["passed"] == 0


def test_abort_releases_who_waits(run_case):
    assert all(row["late"] == 0 and row["failed"] == 0 for row in run_case("abort", 3))


def test_a_late_rank_is_waited_for_as_nccl_does(run_case):
    # The engine's seconds are milliseconds, hence 1.5 s exceed every deadline.
    for row in run_case("comes_late", 3, env={"STANDIN_SECOND": "0.001"}):
        assert row["wrong"] == 0 and row["failed"] == 0 and row["async"] == 0, row


def test_a_deadline_that_was_asked_for_fails_the_stream(run_case):
    rows = run_case("comes_late", 3, env={"STANDIN_SECOND": "0.001", "PLAIT_ARRIVE_S": "300"})
    assert all(row["failed"] == 1 for row in rows if row["wrong"] != 0), rows
    assert any(row["failed"] == 1 and row["async"] != 0 for row in rows), rows


def test_a_lost_rank_is_an_async_error(run_case):
    rows = run_case("dies", 3, env={"STANDIN_PATIENCE_S": "30", "PLAIT_DEBUG": "WARN"})
    assert len(rows) == 2
    assert all(row["async"] == 6 and row["next"] == 6 for row in rows)  # ncclRemoteError
    assert all(row["noticed_ms"] < 10_000 for row in rows)  # not by the engine's deadline
    assert all(row["failed"] == 1 for row in rows), rows
    assert re.search(r"rank 2 \(process \d+\) has died", run_case.stderr)


def test_a_rank_whose_call_breaks_off_is_lost_to_the_others(run_case):
    env = {"STANDIN_BREAKS": "2", "STANDIN_PATIENCE_S": "30", "PLAIT_DEBUG": "WARN"}
    rows = run_case("breaks_off", 3, env=env)
    assert len(rows) == 3
    (broken,) = [row for row in rows if row["first"] == 1]  # ncclUnhandledCudaError
    others = [row for row in rows if row is not broken]
    assert broken["async"] == 1 and broken["next"] == 1
    assert all(row["async"] == 6 and row["next"] == 6 for row in others), rows  # ncclRemoteError
    assert all(row["noticed_ms"] < 10_000 for row in others), rows
    # The loss may be known before the peers' call, or only after the call.
    assert all((row["first"], row["failed"]) in ((0, 1), (6, 0)) for row in others), rows
    assert re.search(r"rank 2 \(process \d+\) broke a call off", run_case.stderr)


def test_who_aborts_when_a_rank_is_lost_keeps_its_stream(run_case):
    rows = run_case("dies_and_others_abort", 3)
    assert len(rows) == 2
    assert all(row["async"] == 6 and row["failed"] == 0 for row in rows), rows


def test_a_rank_that_has_left_is_not_lost(run_case):
    assert all(row["async"] == 0 for row in run_case("leaves", 3))


def test_a_program_can_leave_a_communicator_to_nccl(run_case):
    for row in run_case("leave_new", 3, env={"PLAIT_DEBUG": "WARN"}):
        assert row["wrong"] == 0 and row["served"] == 1 and row["passed"] == 1
    assert run_case.stderr.count("the program wants it so") == 1


@pytest.mark.parametrize("mode", MODES)
def test_communicators_side_by_side(run_case, mode):
    for row in run_case("many_threads", 3, mode):
        assert row["wrong"] == 0 and row["passed"] == 0


@pytest.mark.parametrize(
    ("case", "env"),
    [
        ("init_all", {}),
        ("init_in_group", {}),
        ("init_all_in_group", {}),
        ("init_all", {"NCCL_COMM_BLOCKING": "0"}),
    ],
)
def test_one_thread_for_all_ranks(run_case, case, env):
    rows = run_case(case, 4, "processes", env=env)
    assert rows[0]["wrong"] == 0 and rows[0]["served"] == 4 and rows[0]["passed"] == 0


def test_one_thread_with_several_calls_a_rank(run_case):
    """Loading code on one GPU must not wait for a call with peers not yet launched."""
    env = {"STANDIN_LAZY": "1", "STANDIN_PATIENCE_S": "3"}
    rows = run_case("several_each", 3, "processes", env=env)
    assert rows[0]["wrong"] == 0 and rows[0]["served"] == 9 and rows[0]["passed"] == 0


GROUPS = [
    ("group_streams", {}),
    ("group_mixed", {"PLAIT_OPS": "all_reduce"}),
    ("group_mixed", {"PLAIT_OPS": "broadcast"}),
    ("group_messages", {}),
    ("group_messages", SERVES_MESSAGES),
]


@pytest.mark.parametrize(("case", "env"), GROUPS)
@pytest.mark.parametrize("mode", MODES)
def test_a_group_is_one_point_of_synchronisation_of_its_streams(run_case, mode, case, env):
    """Holds for calls of plait and of NCCL."""
    for row in run_case(case, 3, mode, env=env):
        assert row["wrong"] == 0 and row["early"] == 0 and row["served"] > 0
    if mode == "processes":
        for row in run_case(case, 3, mode, shim=False):
            assert row["wrong"] == 0 and row["early"] == 0


INTERNAL_ERROR = 3
ONLY_SUMS = {"PLAIT_OPS": "all_reduce", "STANDIN_PATIENCE_S": "5"}


@pytest.mark.parametrize("ranks", [2, 3])
def test_nccls_group_ends_though_the_driver_refuses_plait_a_question(run_case, ranks):
    for row in run_case("group_refused", ranks, env=ONLY_SUMS):
        assert row["wrong"] == 0
        assert row["refused"] == (INTERNAL_ERROR if row["rank"] == 0 else 0)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_group_ends_though_the_driver_refuses_an_event_behind_nccls_call(run_case, ranks):
    """Streams of the group's other calls stay in order, and the new communicator is served."""
    for row in run_case("group_refused_late", ranks, env=ONLY_SUMS):
        assert row["wrong"] == 0 and row["early"] == 0
        assert row["refused"] == (INTERNAL_ERROR if row["rank"] == 0 else 0)
        assert row["served"] == 3 and row["passed"] == 0


def test_a_group_that_nccl_refuses_leaves_no_stream_ahead_of_plaits_calls(run_case):
    for row in run_case("group_refused_by_nccl", 3, env=ONLY_SUMS):
        assert row["wrong"] == 0 and row["early"] == 0 and row["refused"] == 4


def test_over_nodes_a_group_is_one_point_of_synchronisation_too(run_case):
    env = {"PLAIT_NODE_SIZE": "2", "PLAIT_ALGO": "multi_node:pieces=1"}
    for case, more in [("group_streams", {}), ("group_mixed", {"PLAIT_OPS": "all_reduce"})]:
        for row in run_case(case, 4, env={**env, **more}):
            assert row["wrong"] == 0 and row["early"] == 0 and row["served"] > 0


def test_calls_that_are_always_nccls_keep_their_place_in_the_order(run_case):
    for row in run_case("always_nccls", 3):
        assert row["wrong"] == 0 and row["early"] == 0
        assert row["served"] == 4 and row["passed"] == 1
    env = {"PLAIT_BITWISE": "1", "PLAIT_BITWISE_STRICT": "1", "PLAIT_DEBUG": "WARN"}
    run_case("always_nccls", 3, env=env)  # sums of integers are the same in any order


def test_bad_arguments_get_ncclS_own_answers(run_case):
    bare = run_case("errors", shim=False)
    assert run_case("errors") == bare
    assert bare[0]["bad_type"] == 4 and bare[0]["end"] == 5


def test_nothing_is_left_by_many_communicators(run_case):
    for row in run_case("churn"):
        assert row["served"] == 60
        assert abs(row["files"]) < 10  # 50 rounds: a leak would be 50; some are open for a moment


def test_communicators_share_the_descriptors_of_their_processes(run_case):
    for row in run_case("many_at_once", 3):
        assert row["wrong"] == 0 and row["files"] == 2  # one a peer


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"STANDIN_REFUSE": "1"}, "the test wants no GPU here"),
        ({"STANDIN_ELSEWHERE": "1"}, "node 1 has 1 ranks, node 0 has 2"),
        ({"PLAIT_NODE_SIZE": "2"}, "node 1 has 1 ranks, node 0 has 2"),
        ({"PLAIT_NODE_SIZE": "1"}, "each of the 3 nodes has one rank only"),
        ({"STANDIN_FAIL_EARLY": "1"}, "the test wants no memory here"),
        ({"STANDIN_FAIL_LATE": "0"}, "the test wants no peer access here"),
        ({"PLAIT_DISABLE": "1"}, "PLAIT_DISABLE"),
        ({"PLAIT_ALGO": "ring:chunks"}, "PLAIT_ALGO"),
        ({"PLAIT_NO_SUCH_NAME": "1"}, "PLAIT_NO_SUCH_NAME"),
        ({"PLAIT_OPS": "no_such_collective"}, "no_such_collective"),
        ({"PLAIT_TUNING": "/no/such/table.json"}, "tuning table /no/such/table.json"),
        ({"STANDIN_VERSION": "31000"}, "31000 is unknown"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_one_refusal_keeps_all_on_nccl(run_case, env, reason, mode):
    rows = run_case("all_reduce", 3, mode, env={"PLAIT_DEBUG": "WARN", **env})
    for row in rows:
        assert row["wrong"] == 0 and row["served"] == 0 and row["nccl"] > 0
    if "PLAIT_NO_SUCH_NAME" not in env:  # the log's settings are not read then
        said = [line for line in run_case.stderr.splitlines() if "stays on NCCL" in line]
        assert len(said) == 1 and reason in said[0]


def _table(tmp_path, *rows):
    gpu = {"model": "*", "multiprocessors": 132, "links": ["NVLinks hidden"], "upto_ranks": 2}
    facts = {"schema": "plait.tuning/4", "name": "made up", "gpu": gpu, "nccl": "2.1.0"}
    file = tmp_path / "table.json"
    file.write_text(json.dumps(facts | {"rows": rows}))
    file.chmod(0o600)
    return str(file)


@pytest.mark.parametrize("place", ["named", "home"])
def test_nccls_files_of_settings_are_read(run_case, tmp_path, place):
    file = tmp_path / ".nccl.conf"
    file.write_text("# a machine's\nNCCL_DEBUG=WARN\nNCCL_P2P_DISABLE=1\nNCCL_MAX_CTAS=6\n")
    env = {"HOME": str(tmp_path)} if place == "home" else {"NCCL_CONF_FILE": str(file)}
    assert all(row["served"] == 0 for row in run_case("all_reduce", 3, env=env))
    env |= {"NCCL_P2P_DISABLE": "0", "PLAIT_DEBUG": "INFO"}  # the environment takes precedence
    assert all(row["served"] > 0 for row in run_case("all_reduce", 3, env=env))
    assert "at most 6 blocks" in run_case.stderr


@pytest.mark.parametrize(
    "who", [{}, {"PLAIT_OPS": "all_reduce"}, {"PLAIT_OPS": "broadcast"}, {"NEW_STAYS": "1"}]
)
@pytest.mark.parametrize("mode", MODES)
def test_communicators_of_a_gpu_follow_each_other_where_nccl_was_told_so(run_case, mode, who):
    """NCCL_LAUNCH_ORDER_IMPLICIT orders calls of both libraries, alone or in a group; default:
    none."""
    for row in run_case("two_communicators", 2, mode, env=who):
        assert row["wrong"] == 0 and row["early"] == 2
    env = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1", "GATE_S": "0.15", **who}
    for row in run_case("two_communicators", 2, mode, env=env):
        assert row["wrong"] == 0 and row["early"] == 0


@pytest.mark.parametrize(
    ("said", "follows"),
    [({}, True), ({"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}, False)],  # the variable takes precedence
)
@pytest.mark.parametrize("mode", MODES)
def test_communicators_configured_so_follow_each_other(run_case, mode, said, follows):
    for row in run_case(
        "launch_order", 2, mode, env={"GATE_S": "0.15", **said} if follows else said
    ):
        assert row["wrong"] == 0 and row["early"] == (0 if follows else 2)
        assert row["served"] >= 4


def _limits(run_case, **env):
    """Returns the limits of the three communicators of case `limited`, in order."""
    rows = run_case("limited", 2, env={"PLAIT_DEBUG": "INFO", **env})
    assert all(row["wrong"] == 0 for row in rows)
    lines = [line for line in run_case.stderr.splitlines() if "[0] PLAIT INFO attached" in line]
    return [int(found[1]) if (found := re.search(r"at most (\d+) ", line)) else 0 for line in lines]


def test_nccls_limits_of_blocks_are_plaits(run_case):
    assert _limits(run_case) == [15, 15, 4]  # least of all ranks; inherited; a child's
    assert _limits(run_case, NCCL_MAX_CTAS="8") == [8, 8, 8]
    assert _limits(run_case, NCCL_MAX_CTAS="-1") == [15, 15, 4]
    assert _limits(run_case, NCCL_MAX_NCHANNELS="9") == [9, 9, 4]
    assert _limits(run_case, PLAIT_SM_BUDGET="32") == [32, 32, 32]
    pinned = {"NCCL_MAX_NCHANNELS": "3", "NCCL_MIN_NCHANNELS": "3"}
    assert _limits(run_case, **pinned) == [3, 3, 3]
    strict = {"PLAIT_BITWISE": "1", "PLAIT_BITWISE_STRICT": "1"}
    assert _limits(run_case, **pinned, **strict) == [15, 15, 4]


def test_small_messages_and_other_collectives_can_be_left_to_nccl(run_case):
    rows = run_case("all_reduce", 2, env={"PLAIT_MIN_BYTES": "4K"})
    assert all(row["wrong"] == 0 and row["served"] > 0 and row["passed"] > 0 for row in rows)
    rows = run_case("others", 2, env={"PLAIT_OPS": "all_gather,broadcast"})
    assert all(row["wrong"] == 0 and row["served"] == 3 and row["passed"] == 5 for row in rows)


def test_a_tuning_table_says_what_is_left_to_nccl(run_case, tmp_path):
    row = {"when": "overlap_compute", "collective": "all_gather", "type": "bf16", "upto_ranks": 2}
    row |= {"engine": "direct_ll", "ahead_of_nccl": False, "source": "plait tune"}
    file = Path(_table(tmp_path, row, row | {"collective": "all_to_all"}))
    rows = run_case("others", 2, env={"PLAIT_DEBUG": "EXPLAIN", "PLAIT_TUNING": str(file)})
    said = run_case.stderr
    assert all(row["wrong"] == 0 and row["served"] > 0 and row["passed"] > 0 for row in rows)
    assert re.search(r"all_gather 1000 fp32 - over 2 ranks: NCCL", said)
    assert re.search(r"broadcast 1000 fp32 - over 2 ranks: plait \(over host memory\)", said)
    assert f"by the tuning table {file}" in said
    assert "measured beside NCCL 2.1.0" in said
    file.write_text("{")
    run_case("others", 2, env={"PLAIT_DEBUG": "WARN", "PLAIT_TUNING": str(file)})
    assert re.search(r"stays on NCCL: .*rank 0.*tuning table", run_case.stderr)


@pytest.mark.parametrize(
    ("gpu", "ranks", "named"),
    [
        ({"STANDIN_GPU": "NVIDIA A100-SXM4-80GB"}, 3, "not on 3 of NVIDIA A100-SXM4-80GB"),
        ({"STANDIN_GPU": H100}, 5, f"not on 5 of {H100}"),
        ({"STANDIN_OTHER_GPU": "1"}, 3, "not on unlike GPUs"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_what_was_measured_elsewhere_says_nothing_here(run_case, mode, gpu, ranks, named):
    """Choices of tuning tables do not hold for different GPUs or mixed ones."""
    for row in run_case("all_reduce", ranks, mode, env={"PLAIT_DEBUG": "WARN", **gpu}):
        assert row["wrong"] == 0 and row["served"] == 0 and row["nccl"] > 0
    assert named in run_case.stderr and "`plait tune`" in run_case.stderr
    for row in run_case("all_reduce", ranks, mode, env={"PLAIT_BITWISE": "1", **gpu}):
        assert row["wrong"] == 0 and row["served"] > 0 and row["passed"] == 0


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_was_measured_with_four_ranks_counts_for_four_and_fewer(run_case, ranks):
    for row in run_case("all_reduce", ranks, env={"STANDIN_GPU": H100}):
        assert row["wrong"] == 0 and row["served"] > 0


def test_many_communicators_stay_on_nccl_with_one_warning(run_case):
    env = {"PLAIT_DEBUG": "WARN", "STANDIN_GPU": "NVIDIA A100-SXM4-80GB"}
    assert all(row["served"] == 0 for row in run_case("churn", env=env))
    assert run_case.stderr.count("`plait tune`") == 1


def test_on_other_gpus_this_machines_table_lets_calls_in(run_case, tmp_path):
    row = {"when": "overlap_compute", "collective": "all_gather", "type": "bf16", "upto_ranks": 2}
    row |= {"engine": "direct_ll", "ahead_of_nccl": True, "source": "plait tune"}
    env = {"STANDIN_GPU": "NVIDIA A100-SXM4-80GB", "PLAIT_TUNING": _table(tmp_path, row)}
    rows = run_case("others", 2, env={"PLAIT_DEBUG": "EXPLAIN", **env})
    assert all(row["wrong"] == 0 and row["served"] > 0 and row["passed"] > 0 for row in rows)
    assert re.search(r"all_gather 1000 fp32 - over 2 ranks: plait", run_case.stderr)
    assert re.search(r"broadcast 1000 fp32 - over 2 ranks: NCCL", run_case.stderr)


def test_explain_says_who_serves_each_call(run_case):
    run_case("others", 2, env={"PLAIT_DEBUG": "EXPLAIN", "PLAIT_OPS": "all_gather"})
    said = run_case.stderr
    assert re.search(r"PLAIT INFO attached to communicator", said)
    served = r"PLAIT EXPLAIN .*all_gather 1000 fp32 - over 2 ranks: plait \(over host memory\)"
    assert re.search(served, said)
    assert re.search(r"PLAIT EXPLAIN .*reduce 1000 fp32 sum .*NCCL \(not in PLAIT_OPS\)", said)


def test_explain_tells_communicators_apart_that_nccl_gives_one_handle(run_case):
    run_case("churn", 2, env={"PLAIT_DEBUG": "EXPLAIN"})
    said = run_case.stderr.count("[0] PLAIT EXPLAIN communicator")
    assert said == 60  # a line a communicator


@pytest.mark.alone
def test_a_call_that_passes_through_costs_under_200_ns(run_case):
    differences = []
    for _ in range(4):  # tolerates a busy machine
        bare = run_case("overhead", shim=False)[0]
        ours = run_case("overhead")[0]
        names = ("pair_ns", "call_ns", "one_send_ns", "eight_sends_ns", "cold_call_ns")
        more = [ours[name] - bare[name] for name in names]
        more.append((ours["cold_group_ns"] - bare["cold_group_ns"]) / 2)  # a send and a receive
        differences.append(max(more))
        if differences[-1] < 200:
            return
    pytest.fail(f"a call costs {min(differences):.0f} ns more")


SUMS_OF_SEVEN_AND_MORE = 3 * 2 * (4 + 2)  # counts, in place or not, of int32 and of floats


@pytest.mark.parametrize(("ranks", "size"), [(4, 2), (6, 3), (6, 2)])
def test_pretend_nodes(run_case, ranks, size):
    """plait sums in the node, NCCL between nodes; NCCL alone runs averages and odd remainders."""
    env = {"PLAIT_NODE_SIZE": str(size)}
    for row in run_case("big", ranks, env=env):
        assert row["wrong"] == 0 and row["served"] == 2 and row["passed"] == 0
        assert row["nccl"] >= 4  # one call a piece
    env |= {"PLAIT_ALGO": "multi_node:pieces=1"}  # for the short ones
    for row in run_case("all_reduce", ranks, env=env):
        assert row["wrong"] == 0
        assert row["passed"] > 0 and row["nccl"] > 0
        assert row["served"] >= SUMS_OF_SEVEN_AND_MORE
    for row in run_case("groups", ranks, env=env):
        assert row["wrong"] == 0 and row["early"] == 0 and row["served"] == 2


@pytest.mark.parametrize(("ranks", "size"), [(4, 2), (6, 3), (6, 2)])
def test_short_all_reduces_over_nodes_are_nccls(run_case, ranks, size):
    """NCCL is faster for short all_reduces; all counts of the case except 40000 fp64 are below 256
    KiB."""
    env = {"PLAIT_NODE_SIZE": str(size), "PLAIT_DEBUG": "EXPLAIN"}
    for row in run_case("all_reduce", ranks, env=env):
        assert row["wrong"] == 0 and row["served"] == 2 and row["passed"] == 62

    def explained(call):
        said = rf"PLAIT EXPLAIN .*all_reduce {call} over {ranks} ranks: (.*)"
        return set(re.findall(said, run_case.stderr))

    short = {"NCCL (over nodes NCCL is faster below 256 KiB)"}
    for call in ("7 fp32 sum", "1000 int32 max", "40000 int32 sum", "40000 fp32 sum"):
        assert explained(call) == short
    long = {f"plait (multi_node(pieces=1), NCCL between {ranks // size} nodes)"}
    assert explained("40000 fp64 sum") == long
    averages = {"NCCL (over nodes NCCL does averages and scaled sums)"}
    assert explained("40000 fp64 avg") == averages
    run_case("others", ranks, env=env)
    moves = "NCCL (over nodes only all_reduces were measured to be faster)"
    assert f"all_gather 1000 fp32 - over {ranks} ranks: {moves}" in run_case.stderr
    run_case("big", ranks, env={**env, "PLAIT_ALGO": "library"})
    named = "NCCL (PLAIT_ALGO=library leaves it whole)"
    assert f"all_reduce 5242881 fp32 sum over {ranks} ranks: {named}" in run_case.stderr


@pytest.mark.parametrize(("ranks", "size"), [(4, 2), (6, 3), (6, 2)])
def test_pretend_nodes_take_by_name_what_is_not_measured(run_case, ranks, size):
    """NCCL serves other collectives unless PLAIT_ALGO names a strategy."""
    env = {"PLAIT_NODE_SIZE": str(size)}
    for row in run_case("others", ranks, env=env):
        assert row["wrong"] == 0 and row["served"] == 0
    for row in run_case("others", ranks, env={**env, "PLAIT_ALGO": "multi_node"}):
        assert row["wrong"] == 0 and row["served"] == 8 and row["passed"] == 0
    env |= {"PLAIT_ALGO": "multi_node:pieces=3", "PLAIT_DEBUG": "EXPLAIN"}
    for row in run_case("big", ranks, env=env):
        rests = sum(((5 << 20) + more) % size != 0 for more in (1, 5))
        assert row["wrong"] == 0 and row["nccl"] == 2 * 3 + rests  # a call per piece, and the rest
    assert "plait (multi_node(pieces=3), NCCL between" in run_case.stderr


def test_threads_are_not_taken_as_nodes(run_case):
    env = {"PLAIT_NODE_SIZE": "2", "PLAIT_DEBUG": "WARN"}
    rows = run_case("all_reduce", 4, "threads", env=env)
    assert all(row["wrong"] == 0 and row["served"] == 0 for row in rows)
    assert "several ranks in one process" in run_case.stderr


def test_nvtx_ranges_where_a_tool_listens(run_case, built, tmp_path):
    record = tmp_path / "ranges"
    env = {
        "NVTX_RECORD": str(record),
        "NVTX_INJECTION64_PATH": str(built / "standin" / "libstandin_nvtx.so"),
    }
    run_case("others", 2, env=env)
    lines = record.read_text().splitlines()
    assert lines.count("domain plait 0") == 2
    assert lines.count("push all_gather 8000") == 2
    assert sum(line.startswith("push") for line in lines) == 16 == lines.count("pop - 0")
    record.unlink()
    run_case("others", 2, env={**env, "NVTX_INJECTION64_PATH": ""})
    assert not record.exists()


@pytest.mark.alone
def test_two_deaths_abort_what_lies_between_nodes_once(run_case):
    """The second death is noticed while NCCL's abort after the first still waits."""
    env = {"PLAIT_NODE_SIZE": "3", "STANDIN_ABORT_S": "8"}
    row = run_case("node_deaths", 6, env=env)[0]
    assert row["wrong"] == 0 and row["heard"] == 1
    assert row["noticed_ms"] < 6000
    assert row["aborts"] == 1 and row["again"] == 0


@pytest.mark.parametrize("case", ["die_and_let_go", "let_go_and_die"])
def test_what_was_let_go_of_does_not_wait_for_ever(run_case, case):
    rows = run_case(case, 3, env={"STANDIN_PATIENCE_S": "60"})
    assert len(rows) == 2 and all(row["failed"] == 1 for row in rows), rows


@pytest.mark.parametrize("turn", range(4))  # the order of waits is random
def test_what_nccl_ended_early_between_nodes_is_no_result(run_case, turn):
    env = {"PLAIT_NODE_SIZE": "2", "PLAIT_ALGO": "multi_node:pieces=1"}  # a short call, by plait
    rows = run_case("dies", 4, env=env)
    assert len(rows) == 3 and all(row["failed"] == 1 for row in rows), rows


def test_communicators_that_do_not_block_destroyed_unseen(run_case):
    # AddressSanitizer quarantines freed memory, hence handles are not reused.
    keeps = "quarantine_size_mb=0:thread_local_quarantine_size_kb=0"
    env = {"ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:{keeps}"}
    for row in run_case("unseen", 2, env=env):
        assert row["wrong"] == 0 and row["reused"] > 0 and row["served"] > 0


@pytest.mark.alone
def test_a_death_is_noticed_after_a_thousand_communicators(run_case):
    """A long life does not make plait deaf. A page's thousands of places are not used up here:
    test_liveness_page.cpp checks that places are given back."""
    for row in run_case("many_lives", 2):
        assert row["wrong"] == 0 and row["heard"] == 1 and row["noticed_ms"] < 3000


def test_what_a_process_shows_cannot_be_shortened_under_the_others(run_case):
    rows = run_case("short_page", 2)
    assert all(row["wrong"] == 0 for row in rows)
    assert rows[0]["pages"] >= 1


@pytest.mark.alone
def test_memory_is_freed_after_all_ranks_have_left(run_case):
    *first, last = run_case("leave_soon", 3)
    assert all(row["wrong"] == 0 and row["later"] == 1 for row in [*first, last])
    assert all(row["took_ms"] > 600 for row in first)  # all waited for the last rank


@pytest.mark.alone
def test_who_leaves_first_waits_two_seconds_and_frees_later(run_case):
    *first, last = run_case("leave_late", 3)
    assert all(row["wrong"] == 0 and row["later"] == 1 for row in [*first, last])
    # The last rank comes after 6 s; the peers continued before, with nothing freed.
    assert all(row["took_ms"] > 1900 and row["freed"] == 0 for row in first)
