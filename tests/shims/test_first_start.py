"""Tests the measurement at the first start of GPUs without a table, over the stand-in libnccl: the
budget, agreement, the file, later starts, and failures."""

from __future__ import annotations

import fcntl
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

A100 = "NVIDIA A100-SXM4-80GB, 108 multiprocessors, 12 NVLinks to switches"


@pytest.fixture
def start(run_case: Any, tmp_path: Path) -> Any:
    """Returns a function that runs a case on GPUs without a table."""

    def run(case: str = "all_reduce", ranks: int = 2, mode: str = "processes", **env: str) -> Any:
        given = {"STANDIN_GPU": A100, "XDG_CACHE_HOME": str(tmp_path), "PLAIT_DEBUG": "INFO"}
        given["PLAIT_AUTOTUNE"] = "1"
        rows = run_case(case, ranks, mode, env=given | env)
        run.said = run_case.stderr  # type: ignore[attr-defined]
        return rows

    return run


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "plait").iterdir()) if (folder / "plait").exists() else []


def _table(folder: Path) -> dict[str, Any]:
    (file,) = _files(folder)
    table: dict[str, Any] = json.loads(file.read_text())
    return table


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_first_start_measures_and_later_ones_read(start, tmp_path, ranks):
    for row in start(ranks=ranks):
        assert row["wrong"] == 0 and row["served"] > 0 and row["passed"] > 0
    assert re.search(r"measured \d+ sizes of calls", start.said)
    table = _table(tmp_path)
    (file,) = _files(tmp_path)
    assert re.fullmatch(
        rf"tuning-[0-9a-f]{{16}}[-0-9a-f]*-cuda0-nccl2\.28\.9-{ranks}\.json", file.name
    )
    assert file.stat().st_mode & 0o777 == 0o600
    assert (table["schema"], table["nccl"]) == ("plait.tuning/4", "2.28.9")
    assert table["gpu"]["model"] == "NVIDIA A100-SXM4-80GB"
    rows = [row for row in table["rows"] if row["collective"] == "all_reduce"]
    assert {row["type"] for row in rows} == {"bf16", "fp32"}
    for row in rows:
        # NCCL counts where it is ahead at the smaller or the larger size.
        assert row["ahead_of_nccl"] == ("from_bytes" not in row), row
        assert row["source"] == "first start" and row["when"] == "overlap_compute"
        fastest = 10.0 if row["ahead_of_nccl"] else 40.0
        assert row["us"] == fastest + 0.5 * (ranks - 1)  # the slowest rank's
    before = file.read_bytes()
    again = start(ranks=ranks)
    assert "measured" not in start.said and f"by the tuning table {file}" in start.said
    assert [row["served"] for row in again] == [row["served"] for row in start(ranks=ranks)]
    assert file.read_bytes() == before and _files(tmp_path) == [file]


def test_calls_are_served_only_where_plait_was_ahead(start, tmp_path):
    for row in start(STANDIN_BENCH="behind"):
        assert row["wrong"] == 0 and row["served"] == 0 and row["nccl"] > 0
    assert not any(row["ahead_of_nccl"] for row in _table(tmp_path)["rows"])


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("way", [{}, {"NCCL_P2P_DISABLE": "1"}])
def test_messages_are_served_where_all_of_them_were_measured_ahead(start, tmp_path, way, ranks):
    for row in start("random_messages", ranks, STANDIN_BENCH="ahead", **way):
        assert row["wrong"] == 0 and row["served"] > 0 and row["passed"] == 0 and row["nccl"] == 0
    rows = [row for row in _table(tmp_path)["rows"] if row["engine"] == "messages"]
    assert {row["collective"] for row in rows} == {"send_recv", "all_to_all"}
    assert all(row["ahead_of_nccl"] for row in rows)
    for row in start("random_messages", ranks, **way):  # as the table says
        assert row["wrong"] == 0 and row["served"] > 0 and row["nccl"] == 0
    _files(tmp_path)[0].unlink()
    for row in start("random_messages", ranks, **way):  # NCCL is ahead from 1 MiB on
        assert row["wrong"] == 0 and row["served"] == 0 and row["nccl"] > 0
    assert not all(
        row["ahead_of_nccl"] for row in _table(tmp_path)["rows"] if row["engine"] == "messages"
    )


@pytest.mark.parametrize("case", ["nonblocking", "split_later", "split"])
def test_communicators_made_in_the_background_and_children(start, tmp_path, case):
    for row in start(case):
        assert row["wrong"] == 0 and row.get("crowded", 0) == 0
    # A communicator and its child have as many ranks: one of them measured.
    assert start.said.count("sizes of calls in") == len(_files(tmp_path)) == 1


def test_the_budget_is_kept_and_the_time_is_said(start, tmp_path):
    busy = {"STANDIN_BENCH_S": "0.05", "STANDIN_BUDGET_S": "3"}
    start(**busy)
    said = r"measured (\d+) sizes of calls in ([\d.]+) s, of which .*; (\d+) are left out"
    found = re.search(said, start.said)
    assert found and 0 < int(found[1]) <= 60 and int(found[3]) > 50 and float(found[2]) < 8
    assert start.said.count("measures this machine once") == 1
    assert _table(tmp_path)["rows"][0]["collective"] == "all_reduce"
    start(**busy)
    assert "measures" not in start.said


@pytest.mark.parametrize(
    ("env", "mode", "why"),
    [
        ({"PLAIT_AUTOTUNE": "0"}, "processes", "PLAIT_AUTOTUNE is 0"),
        ({"PLAIT_TUNING": "none"}, "processes", ""),
        ({}, "threads", "several ranks in one process"),
        ({"PLAIT_SM_BUDGET": "8"}, "processes", ""),
    ],
)
def test_nothing_is_measured(start, tmp_path, env, mode, why):
    for row in start(mode=mode, **env):
        assert row["wrong"] == 0 and row["served"] == 0 and row["nccl"] > 0
    assert "sizes of calls in" not in start.said and why in start.said
    assert _files(tmp_path) == []


def test_gpus_with_a_table_are_not_measured_unless_it_is_hidden(start, run_case, tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path), "PLAIT_DEBUG": "INFO", "PLAIT_AUTOTUNE": "1"}
    run_case("all_reduce", 2, env=env)
    assert _files(tmp_path) == []
    run_case("all_reduce", 2, env=env | {"PLAIT_TEST_HIDE_TABLES": "1"})
    assert "sizes of calls in" in run_case.stderr and len(_files(tmp_path)) == 1


def test_unlike_gpus_have_a_table_of_their_own(start, tmp_path):
    for row in start(STANDIN_OTHER_GPU="1"):
        assert row["wrong"] == 0 and row["served"] > 0
    assert _table(tmp_path)["gpu"]["model"] == "several models"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_failure_leaves_calls_on_nccl_until_the_mark_is_removed(start, tmp_path, rank):
    for row in start(STANDIN_BENCH_FAILS=rank, PLAIT_DEBUG=""):
        assert row["wrong"] == 0 and row["served"] == 0 and row["nccl"] > 0
    (mark,) = _files(tmp_path)
    assert mark.name.endswith(".json.measuring")
    assert start.said.count("measuring this machine failed") == 1
    assert f"rank {rank}: the test wants no times" in start.said
    assert "calls stay on NCCL" in start.said and f"remove {mark}" in start.said
    for row in start(PLAIT_DEBUG=""):
        assert row["wrong"] == 0 and row["served"] == 0
    assert start.said.count("did not end well") == 1 and "the test wants no times" in start.said
    mark.unlink()
    assert all(row["served"] > 0 for row in start()) and len(_files(tmp_path)) == 1


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("when", ["STANDIN_BENCH_NO_MEMORY", "STANDIN_BENCH_LATE_NO_MEMORY"])
def test_without_memory_for_the_bench_calls_stay_on_nccl_and_later_starts_try_again(
    start, tmp_path, when, rank
):
    for row in start("split", PLAIT_DEBUG="", **{when: rank}):
        assert row["wrong"] == 0 and row.get("served", 0) == 0
    assert start.said.count("cannot be measured now") == 1
    assert f"rank {rank}: the test wants no memory here" in start.said
    assert "calls stay on NCCL" in start.said and _files(tmp_path) == []
    assert all(row["served"] > 0 for row in start()) and len(_files(tmp_path)) == 1


def test_ranks_that_wait_for_a_moment_alone_are_not_kept_waiting(start, tmp_path):
    for row in start(PLAIT_ARRIVE_S="5", STANDIN_BUDGET_S="3"):
        assert row["wrong"] == 0 and row["served"] == 0
    assert "ranks wait for each other for 5" in start.said and _files(tmp_path) == []


@pytest.mark.parametrize(
    ("rank", "left"),
    [("0", r"process \d+ of .* began and did not end"), ("1", r"did not end|rank 1 has died")],
)
def test_a_process_that_dies_while_measuring_is_told_by_the_next_start(
    built, start, run_case, tmp_path, rank, left
):
    with pytest.raises(AssertionError):
        start(STANDIN_BENCH_DIES=rank)
    (mark,) = _files(tmp_path)
    assert re.search(left, mark.read_text())
    for row in start(PLAIT_DEBUG=""):
        assert row["wrong"] == 0 and row["served"] == 0 and row["nccl"] > 0
    assert re.search(left, start.said) and f"remove {mark}" in start.said


def test_a_job_waits_for_the_table_of_a_job_that_measures(start, tmp_path):
    start(STANDIN_BENCH="behind")
    (file,) = _files(tmp_path)
    kept = file.read_bytes()
    file.unlink()
    mark = Path(f"{file}.measuring")
    with mark.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        assert all(row["served"] == 0 for row in start())
        assert time.monotonic() - began > 5 and "another job measures still" in start.said
        began = time.monotonic()  # not as long as PLAIT_ARRIVE_S, with the measurement behind
        start(PLAIT_ARRIVE_S="6.5", STANDIN_BUDGET_S="3")
        assert time.monotonic() - began < 5 and "another job measures still" in start.said
        file.write_bytes(kept)
        file.chmod(0o600)
        assert all(row["served"] == 0 for row in start())
        assert f"by the tuning table {file}" in start.said


def test_without_a_folder_the_process_alone_has_the_table(start, tmp_path):
    (tmp_path / "plait").write_text("no folder")
    for row in start("split"):
        assert row["wrong"] == 0
    assert start.said.count("this process alone will have the measured table") == 1
    assert start.said.count("sizes of calls in") == 1
    assert (tmp_path / "plait").read_text() == "no folder"
