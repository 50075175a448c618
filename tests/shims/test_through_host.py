"""Tests the drop-in where GPUs do not address each other.

All ranks agree on arenas in host memory. Calls are served where plait was measured ahead, or where
NCCL may hang.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

MODES = ["processes", "threads"]
BITWISE = {"PLAIT_BITWISE": "1"}


def _table(tmp_path):
    """A table of this machine's calls through host memory, as `plait tune` would write it."""
    gpu = {"model": "*", "multiprocessors": 132, "links": ["NVLinks hidden"], "upto_ranks": 4}
    row = {"when": "overlap_compute", "collective": "all_reduce", "upto_ranks": 4}
    row |= {"engine": "one_shot", "ahead_of_nccl": True, "source": "plait tune"}
    facts = {"schema": "plait.tuning/4", "name": "made up", "gpu": gpu, "nccl": "2.28.9"}
    file = tmp_path / "table.json"
    file.write_text(json.dumps(facts | {"rows": [row]}))
    file.chmod(0o600)
    return {"PLAIT_TUNING": str(file)}


def _host_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if "plait" in path.name}


FORBIDDEN = [
    ({"NCCL_P2P_DISABLE": "1"}, 3, "NCCL_P2P_DISABLE=1 forbids"),
    ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}, 4, "NCCL_P2P_DISABLE=1 forbids"),
    ({"NCCL_P2P_LEVEL": "LOC"}, 3, "NCCL_P2P_LEVEL=LOC forbids"),
    ({"NCCL_P2P_LEVEL": "0"}, 3, "NCCL_P2P_LEVEL=0 forbids"),
    ({"NCCL_P2P_LEVEL": "NVL"}, 3, "which are SYS apart"),
    ({"NCCL_P2P_LEVEL": "3"}, 3, "which are SYS apart"),
    ({"STANDIN_NO_ACCESS": "1"}, 3, "the driver grants no direct access"),
    ({"PLAIT_THROUGH_HOST": "1"}, 3, "PLAIT_THROUGH_HOST=1 takes it for all GPUs"),
]
ALLOWED = [
    ({"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "NVL"}, 2),
    ({"NCCL_P2P_LEVEL": "SYS"}, 3),
    ({"NCCL_P2P_LEVEL": "7"}, 3),
    ({"NCCL_P2P_LEVEL": "no such level"}, 3),
]


@pytest.mark.parametrize(("said", "ranks", "reason"), FORBIDDEN)
@pytest.mark.parametrize("mode", MODES)
def test_calls_without_direct_access_stay_on_nccl_unless_measured(
    run_case, tmp_path, mode, said, ranks, reason
):
    before = _host_memory()
    for row in run_case("all_reduce", ranks, mode, env={"PLAIT_DEBUG": "WARN", **said}):
        assert row["wrong"] == 0 and row["served"] == 0 and row["nccl"] > 0
    (line,) = [line for line in run_case.stderr.splitlines() if "stays on NCCL" in line]
    assert reason in line and "through host memory" in line and "`plait tune`" in line
    for env in (BITWISE, _table(tmp_path)):
        env = {"PLAIT_DEBUG": "INFO", **env, **said}
        for row in run_case("all_reduce", ranks, mode, env=env):
            assert row["wrong"] == 0 and row["served"] > 0
            assert row["passed"] == 0 or "PLAIT_TUNING" in env  # the table has sums alone
        assert re.search(rf"through host memory: .*{re.escape(reason)}", run_case.stderr)
    assert _host_memory() <= before


@pytest.mark.parametrize("mode", MODES)
def test_two_gpus_of_a_measured_kind_are_served_through_host_memory(run_case, mode):
    """tuning/through-host-h200.json has the kind of the stand-in's GPUs."""
    before = _host_memory()
    env = {"PLAIT_DEBUG": "INFO", "NCCL_P2P_DISABLE": "1"}
    for row in run_case("all_reduce", 2, mode, env=env):
        assert row["wrong"] == 0 and row["served"] > 0
    assert re.search(r"through host memory: .*NCCL_P2P_DISABLE=1 forbids", run_case.stderr)
    assert _host_memory() <= before


@pytest.mark.parametrize("mode", MODES)
def test_comparisons_through_host_memory_hold_where_nccl_goes_there_too(run_case, tmp_path, mode):
    """PLAIT_THROUGH_HOST=1 leaves NCCL's direct access, beside which no row was measured."""
    own = {"PLAIT_DEBUG": "WARN", "PLAIT_THROUGH_HOST": "1"}
    for row in run_case("all_reduce", 2, mode, env=own):
        assert row["wrong"] == 0 and row["served"] == 0 and row["nccl"] > 0
    (line,) = [line for line in run_case.stderr.splitlines() if "stays on NCCL" in line]
    assert "PLAIT_THROUGH_HOST=1 takes it for all GPUs" in line
    for env in (BITWISE, _table(tmp_path), {"NCCL_P2P_DISABLE": "1"}):
        for row in run_case("all_reduce", 2, mode, env=own | env):
            assert row["wrong"] == 0 and row["served"] > 0


@pytest.mark.parametrize(("said", "ranks"), ALLOWED)
@pytest.mark.parametrize("mode", MODES)
def test_direct_access_is_taken_where_nccl_may_take_it(run_case, mode, said, ranks):
    for row in run_case("all_reduce", ranks, mode, env={"PLAIT_DEBUG": "INFO", **said}):
        assert row["wrong"] == 0 and row["served"] > 0
    assert "through host memory" not in run_case.stderr


@pytest.mark.parametrize(("said", "ranks", "reason"), FORBIDDEN[:-1])
def test_through_host_0_leaves_such_gpus_to_nccl(run_case, said, ranks, reason):
    env = {"PLAIT_DEBUG": "WARN", "PLAIT_THROUGH_HOST": "0", **BITWISE, **said}
    for row in run_case("all_reduce", ranks, env=env):
        assert row["wrong"] == 0 and row["served"] == 0
    (line,) = [line for line in run_case.stderr.splitlines() if "stays on NCCL" in line]
    assert reason in line and "PLAIT_THROUGH_HOST=auto" in line


@pytest.mark.parametrize("env", [BITWISE, {"PLAIT_DEBUG": "WARN"}])
def test_one_rank_without_access_decides_for_all(run_case, env):
    env_of_all = {"ONE_SETS": "NCCL_P2P_DISABLE", "PLAIT_DEBUG": "INFO", **env}
    for row in run_case("one_forbids", 4, env=env_of_all):
        assert row["wrong"] == 0 and (row["served"] > 0) == (env is BITWISE)
    assert "NCCL_P2P_DISABLE=1 forbids direct access between the GPUs of ranks 1 and 0" in (
        run_case.stderr
    )


BROKEN = [
    ("mirror:1:0", "data that rank 1's GPU stores into rank 0's did not arrive within"),
    ("stale:2:1", "data that rank 2's GPU stores into rank 1's arrives changed"),
    ("flip:0:2", "data that rank 0's GPU copies into rank 2's arrives changed"),
]


@pytest.mark.parametrize(("trouble", "reason"), BROKEN)
@pytest.mark.parametrize("mode", MODES)
def test_a_path_that_is_granted_and_broken_is_left_for_host_memory(run_case, mode, trouble, reason):
    """The driver grants access but writes are lost: found in seconds, when the communicator is
    made. NCCL may hang on that path, so plait serves whatever it can."""
    env = {"PLAIT_DEBUG": "WARN", "STANDIN_PATH": trouble}
    for row in run_case("all_reduce", 3, mode, env=env):
        assert row["wrong"] == 0 and row["served"] > 0 and row["passed"] == 0
        assert row["nccl"] == 0
    (line,) = [line for line in run_case.stderr.splitlines() if reason in line]
    assert "GPUs of 3 ranks communicate through host memory" in line


A100 = "NVIDIA A100-SXM4-80GB, 108 multiprocessors, 12 NVLinks to switches"


@pytest.mark.parametrize("autotune", ["0", "1"])
@pytest.mark.parametrize(("trouble", "reason"), BROKEN)
def test_paths_of_gpus_without_a_table_are_checked_too(
    run_case, tmp_path, autotune, trouble, reason
):
    """NCCL may hang on a broken path, so plait serves these GPUs without a measurement."""
    env = {"PLAIT_DEBUG": "WARN", "STANDIN_GPU": A100, "STANDIN_PATH": trouble}
    env |= {"PLAIT_AUTOTUNE": autotune, "XDG_CACHE_HOME": str(tmp_path)}
    for row in run_case("all_reduce", 3, env=env):
        assert row["wrong"] == 0 and row["served"] > 0 and row["nccl"] == 0
    (line,) = [line for line in run_case.stderr.splitlines() if reason in line]
    assert "GPUs of 3 ranks communicate through host memory" in line
    assert not list(tmp_path.glob("plait/*"))


def test_gpus_without_a_table_stay_on_nccl_if_their_paths_work(run_case):
    env = {"PLAIT_DEBUG": "WARN", "STANDIN_GPU": A100, "STANDIN_PATH": "whole:0:0"}
    for row in run_case("all_reduce", 3, env=env):
        assert row["wrong"] == 0 and row["served"] == 0 and row["nccl"] > 0
    (line,) = [line for line in run_case.stderr.splitlines() if "stays on NCCL" in line]
    assert "not on 3 of NVIDIA A100" in line


def test_a_host_that_stalls_in_the_check_leaves_direct_access(run_case):
    """A rank's host stalls for longer than its peers wait: they check again, and find no fault."""
    for row in run_case("all_reduce", 3, env={"PLAIT_DEBUG": "INFO", "STANDIN_PATH": "stall:1:0"}):
        assert row["wrong"] == 0 and row["served"] > 0
    assert "data was late in the path check, which runs again" in run_case.stderr
    assert "communicate through host memory" not in run_case.stderr


@pytest.mark.parametrize(("trouble", "reason"), [("whole:0:0", ""), *BROKEN])
def test_a_broken_path_keeps_all_on_nccl_with_through_host_0(run_case, trouble, reason):
    env = {"PLAIT_DEBUG": "WARN", "STANDIN_PATH": trouble, "PLAIT_THROUGH_HOST": "0"}
    for row in run_case("all_reduce", 3, env=env):
        assert row["wrong"] == 0 and (row["served"] == 0) == (reason != "")
    assert reason in run_case.stderr and "communicate through host memory" not in run_case.stderr


def test_all_ranks_need_the_same_setting(run_case):
    env = {"ONE_SETS": "PLAIT_THROUGH_HOST", "PLAIT_DEBUG": "WARN", **BITWISE}
    for row in run_case("one_forbids", 3, env=env):
        assert row["wrong"] == 0 and row["served"] == 0
    assert "rank 1 has other settings" in run_case.stderr and "through_host=2" in run_case.stderr


@pytest.mark.parametrize("said", [{"NCCL_P2P_DISABLE": "1"}, {"STANDIN_PATH": "flip:0:1"}])
def test_losses_and_aborts_are_noticed_as_on_the_direct_path(run_case, said):
    before = _host_memory()
    env = {"STANDIN_PATIENCE_S": "30", "PLAIT_DEBUG": "WARN", **BITWISE, **said}
    rows = run_case("dies", 3, env=env)
    assert len(rows) == 2
    assert all(row["async"] == 6 and row["next"] == 6 for row in rows)  # ncclRemoteError
    assert all(row["noticed_ms"] < 10_000 and row["failed"] == 1 for row in rows), rows
    assert re.search(r"rank 2 \(process \d+\) has died", run_case.stderr)
    for row in run_case("abort", 3, env={**BITWISE, **said}):
        assert row["late"] == 0 and row["failed"] == 0
    assert _host_memory() <= before


@pytest.mark.parametrize("case", ["split", "streams", "mixed_graphs", "others"])
def test_communicators_graphs_and_collectives(run_case, case):
    env = {"NCCL_P2P_DISABLE": "1", **BITWISE}
    rows = run_case(case, 4, env=env)
    assert all(row["wrong"] == 0 for row in rows)
    assert rows[1]["served"] > 0 and rows[1]["passed"] == 0


def test_nothing_is_left_by_many_communicators(run_case):
    for row in run_case("churn", env={"NCCL_P2P_DISABLE": "1", **BITWISE}):
        assert row["served"] == 60
        assert abs(row["files"]) < 10  # 50 rounds: a leak would be 50
