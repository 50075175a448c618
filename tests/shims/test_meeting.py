"""Tests that ranks of one host attach without a call on NCCL, which would connect NCCL's channels,
and that other ranks attach over NCCL. Cases report the all_gathers that reach the stand-in."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MODES = ["processes", "threads"]
# Ways to make a communicator: the case, and ranks.
WAYS = {
    "all_reduce": 3,
    "limited": 2,
    "init_all": 3,
    "init_in_group": 3,
    "split": 4,
    "shrink": 4,
    "nonblocking": 3,
    "split_later": 3,
    "shrink_later": 3,
    "group_later": 3,
    "grow_later": 3,
    "many_threads": 2,
    "meet_twice": 3,
    "meet_scalable": 3,
    "meet_children": 4,
}


NODES = {"PLAIT_NODE_SIZE": "2", "PLAIT_ALGO": "multi_node:pieces=1"}


def _gathered(rows) -> list[int]:
    return [row.get("gathered", 0) for row in rows]


def _staged_early(rows) -> bool:
    """An allocation may wait for kernels. After NCCL's function another communicator's exchange may
    already run, and wait for a host where the same happens the other way round."""
    return all(row.get("staged_late", 0) == 0 for row in rows)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder with a short path, as XDG_RUNTIME_DIR must have."""
    with tempfile.TemporaryDirectory(prefix="plait-", dir="/tmp") as made:
        yield Path(made)


def _entries(folder: Path) -> list[str]:
    """Returns the entries of ranks that meet."""
    return [name for name in os.listdir(folder / "plait") if name.startswith(("meet-", "alias-"))]


def _shared_memory() -> set[str]:
    """Returns plait's files in /dev/shm; other programs' files may come and go."""
    return {name for name in os.listdir("/dev/shm") if "plait" in name}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", WAYS)
def test_ranks_of_one_host_meet_without_nccl(run_case, folder, case, mode):
    rows = run_case(case, WAYS[case], mode, env={"XDG_RUNTIME_DIR": str(folder)})
    assert all(row["wrong"] == 0 for row in rows)
    assert _gathered(rows) == [0] * len(rows)
    assert not _entries(folder)


def test_children_meet_though_nccl_has_refused_a_rank_one(run_case):
    rows = run_case("split_refused", 3)
    assert [row["refused"] for row in rows] == [2, 0, 0]
    assert [row["freed"] for row in rows] == [0, 0, 0]  # waits for no kernel
    assert all(row["wrong"] == 0 and row["served"] == 1 for row in rows)
    assert _gathered(rows) == [0, 0, 0]


def test_a_communicator_of_a_single_rank_frees_no_staging(run_case):
    assert all(row["freed"] == 0 for row in run_case("split_alone", 3))


def test_a_staging_from_before_a_reset_of_the_device_is_not_taken(run_case):
    for row in run_case("meet_reset", 2):
        assert row["wrong"] == 0 and row["first"] == row["again"] == 0 and row["behind"] == 1


@pytest.mark.parametrize("env", [{"PLAIT_DISABLE": "1"}, {"PLAIT_OPS": "broadcast"}])
def test_communicators_left_to_nccl_cost_no_call_either(run_case, env):
    for case in ("split", "shrink"):
        rows = run_case(case, 3, env=env)
        assert all(row["wrong"] == 0 for row in rows) and _gathered(rows) == [0] * 3


@pytest.mark.parametrize("mode", MODES)
def test_pretended_nodes_exchange_over_nccl(run_case, mode):
    rows = run_case("all_reduce", 4, mode, env=NODES)
    assert all(row["wrong"] == 0 and row["gathered"] > 0 for row in rows)
    assert _staged_early(rows)
    assert mode == "threads" or all(row["served"] > 0 for row in rows)


@pytest.mark.parametrize("case", ["split", "nonblocking", "split_later", "group_later"])
def test_each_way_over_nodes_allocates_before_nccl(run_case, case):
    rows = run_case(case, 4, env=NODES)
    assert all(row["wrong"] == 0 for row in rows) and _staged_early(rows)


def test_ranks_that_see_no_others_folder_exchange_over_nccl(run_case, folder):
    folders = [folder / name for name in ("one", "other")]
    for path in folders:
        path.mkdir(mode=0o700)
    env = {"MEET_FOLDERS": ":".join(map(str, folders))}
    rows = run_case("meet_apart", 3, env=env)
    assert all(row["wrong"] == 0 and row["gathered"] > 0 for row in rows)
    assert all(row["served"] > 0 for row in rows)
    assert _staged_early(rows)
    assert not any(_entries(path) for path in folders)


def test_an_unusable_folder_leaves_the_exchange_to_nccl(run_case, folder):
    """A file is in the place of plait's folder."""
    (folder / "plait").write_text("")
    rows = run_case("all_reduce", 2, env={"XDG_RUNTIME_DIR": str(folder)})
    assert all(row["wrong"] == 0 and row["gathered"] > 0 for row in rows)
    assert all(row["served"] > 0 for row in rows)
    assert _staged_early(rows)


@pytest.mark.parametrize("seed", range(8))
def test_ranks_that_end_amid_the_call_leave_nothing(run_case, folder, seed):
    before = _shared_memory()
    env = {
        "XDG_RUNTIME_DIR": str(folder),
        "MEET_SEED": str(seed),
        "STANDIN_PATIENCE_S": "1",
        "PLAIT_DEBUG": "VERSION",
    }
    run_case("meet_random_ends", 3, env=env)
    rows = run_case("all_reduce", 2, env={"XDG_RUNTIME_DIR": str(folder)})
    assert all(row["wrong"] == 0 for row in rows) and _gathered(rows) == [0, 0]
    assert not _entries(folder)
    assert _shared_memory() <= before
