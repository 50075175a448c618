"""Communicator on device memory with a process per GPU; skipped with fewer than two GPUs."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from plait import gpu, launch
from plait.bench.nccl import COLLECTIVES

GPUS = gpu.count()
FOLDER = str(Path(__file__).parent)
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, found {GPUS}: {gpu.why_none() or 'one'}"),
]
RANKS = 4 if GPUS >= 4 else 2
SOAK_S = 5.0 * float(os.environ.get("PLAIT_TEST_SCALE", "1"))


@pytest.fixture(autouse=True)
def _without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_TUNING", "none")


def run(entry: str, task: dict[str, Any], ranks: int = RANKS) -> list[dict[str, Any]]:
    """Returns the rows by rank; every rank must exit with 0."""
    job = launch.start(f"gpu_programs:{entry}", ranks, task, folder=FOLDER)
    rows = list(job.lines())
    statuses = job.wait()
    assert statuses == [0] * ranks, (statuses, rows)
    return sorted(rows, key=lambda row: row["rank"])


def check(requests: list[list[Any]], least: int) -> None:
    for row in run("collectives", {"requests": requests, "most_bytes": 96 << 20}):
        assert row["wrong"] == [], row
        assert row["refused"] == [], row
        assert row["checked"] >= least, row
        assert row["counted"] >= row["checked"], row


def test_every_collective_at_odd_sizes():
    counts = (0, 1, 7, 1003, 65537, (1 << 20) + 3)
    check(
        [[name, count, "fp32", "sum", count % 2, ""] for name in COLLECTIVES for count in counts],
        len(COLLECTIVES) * len(counts) * 2,
    )


def test_all_reduce_of_every_type_and_op():
    floats = ("fp16", "fp32", "fp64", "bf16", "fp8e4m3", "fp8e5m2")
    whole = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    requests = [
        ["all_reduce", 4099, name, op, 0, ""]
        for name in floats
        for op in ("sum", "prod", "min", "max", "avg")
    ]
    requests += [
        ["all_reduce", 4099, name, op, 0, ""]
        for name in whole
        for op in ("sum", "prod", "min", "max", "bit_and", "bit_or", "bit_xor")
    ]
    check(requests, len(requests) * 3)


def test_large_messages():
    check(
        [["all_reduce", (8 << 20) + 5, kind, "sum", 0, ""] for kind in ("fp32", "bf16")],
        6,
    )


def test_kernels_by_name_and_plans():
    names = ("one_shot", "two_shot", "tiled", "direct", "ring")
    check([["all_reduce", 10007, "bf16", "sum", 0, name] for name in names], len(names) * 3)


def test_a_masked_link_carries_nothing():
    requests = [
        [name, count, "fp32", "sum", 0, ""]
        for name in ("all_reduce", "all_gather")
        for count in (7, 65537, (1 << 20) + 3, 1 << 26)  # the last is larger than a rank's scratch
    ]
    options = {"masks": ["nvlink:0-1"]}
    task = {"requests": requests, "most_bytes": 512 << 20, "options": options}
    for row in run("collectives", task):
        assert row["wrong"] == [] and row["refused"] == [], row
        assert "no kernel: " in row["explained"] and "masks" in row["explained"], row
        assert not any(path in ("nvlink:0>1", "nvlink:1>0") for path in row["paths"]), row
    for kernel in ("one_shot", "rotation"):
        named = {**task, "requests": [["all_reduce", 1003, "fp32", "sum", 0, kernel]]}
        for row in run("collectives", named):
            assert "masks" in row["refused"][0], row


def test_parameters_without_a_strategy_reach_the_chosen_kernel():
    given = {"most_bytes": 1 << 20, "params": {"threads": 100}}
    for row in run("collectives", {**given, "requests": [["all_reduce", 7, "fp32", "sum", 0, ""]]}):
        assert "multiple of 32" in row["refused"][0], row


def test_random_calls_back_to_back():
    task = {"seed": 5, "seconds": SOAK_S, "batch": 8, "collectives": COLLECTIVES}
    for row in run("random_calls", task):
        assert row["wrong"] == [], row
        assert row["done"] >= 40, row


def test_communicators_side_by_side(tmp_path):
    task = {"folder": str(tmp_path), "count": 100_003, "rounds": 50}
    tmp_path.chmod(0o700)
    for row in run("many_communicators", task):
        assert row["wrong"] == 0 and row["calls"] == [50, 50, 50], row


@pytest.mark.parametrize(
    ("collective", "count", "kind"),
    [
        ("all_reduce", 1000, "fp32"),
        ("all_reduce", 1 << 18, "fp32"),  # one_shot on every SM
        ("all_reduce", 4 << 20, "fp32"),  # two_shot
        ("all_reduce", 1 << 19, "int32"),
        ("all_gather", 1 << 17, "fp32"),  # direct_ll on every SM
    ],
)
@pytest.mark.parametrize("budgets", [(0, 0), (0, 132), (132, 132), (60, 60)])
def test_communicators_that_cross(tmp_path, collective, count, kind, budgets):
    tmp_path.chmod(0o700)
    asked = {"collective": collective, "count": count, "type": kind, "budgets": budgets}
    task = {"folder": str(tmp_path), **asked, "calls": 40, "rounds": 20, "captured": True}
    for row in run("crossing_communicators", task):
        assert row["error"] == "", row


@pytest.mark.skipif(GPUS >= 4, reason="two ranks' engines; CUDA_VISIBLE_DEVICES=0,1 runs it")
@pytest.mark.parametrize(
    # Two graphs of 40 calls of this kind each hung if ranks launched the graphs in different
    # orders.
    ("captured", "crosses", "calls"),
    [(False, True, 40), (True, True, 4), (True, False, 40)],
)
@pytest.mark.parametrize(("mib", "budgets"), [(256, (0, 0)), (28, (60, 60))])
def test_communicators_whose_copy_engines_cross(tmp_path, captured, crosses, calls, mib, budgets):
    tmp_path.chmod(0o700)
    asked = {"collective": "all_reduce", "count": mib << 18, "type": "fp32", "budgets": budgets}
    how = {"captured": captured, "crosses": crosses, "calls": calls, "rounds": 10}
    for row in run("crossing_communicators", {"folder": str(tmp_path), **asked, **how}):
        assert row["error"] == "" and row["ways"] == ["all_reduce/copy_exchange"], row


@pytest.mark.skipif(GPUS >= 4, reason="two ranks' engines; CUDA_VISIBLE_DEVICES=0,1 runs it")
def test_one_hardware_queue_has_no_copy_engines(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    tmp_path.chmod(0o700)
    asked = {"collective": "all_reduce", "count": 28 << 18, "type": "fp32", "budgets": (60, 60)}
    how = {"captured": False, "crosses": False, "calls": 20, "rounds": 6}
    for row in run("crossing_communicators", {"folder": str(tmp_path), **asked, **how}):
        assert row["error"] == "" and row["ways"] == ["all_reduce/tiled"], row


def test_two_ranks_send_to_each_other():
    for row in run("pairs", {"counts": [1, 1003, 1 << 18, (3 << 20) + 5, 6 << 20, 27 << 20]}):
        assert row["wrong"] == [], row
        # A pair's memory has no slots for tiled (docs/design/memory_tiers.md).
        ways = {
            f"{name}/{by}"
            for name in ("copy", "send_recv")
            for by in ("direct_ll", "copy_exchange")
        }
        assert ways == set(row["ways"]), row


def test_few_blocks_send_by_copy_engines_sooner():
    for row in run("pairs", {"counts": [2 << 20, 7 << 20], "options": {"sm_budget": 14}}):
        assert row["wrong"] == [], row
        wanted = {"copy/direct_ll", "copy/copy_exchange", "send_recv/copy_exchange"}
        assert wanted <= set(row["ways"]), row
        assert "copy/tiled" not in row["ways"], row


@pytest.mark.skipif(GPUS < 4, reason="two ranks exchange instead")
def test_large_all_gathers_go_round_a_ring():
    requests = [
        ["all_gather", count, kind, "sum", 0, strategy]
        for count, kind, strategy in (
            (8 << 20, "fp32", ""),
            ((9 << 20) + 3, "fp32", ""),
            (100_003, "bf16", "rotation"),
        )
    ]
    task = {"requests": requests, "most_bytes": 160 << 20}
    for row in run("collectives", task):
        assert row["wrong"] == [] and row["refused"] == [], row
        assert row["checked"] == 3 * len(requests), row
        assert "all_gather/copy_ring" in row["ways"] and "all_gather/tiled" not in row["ways"], row


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("count", "strategy"), [(1000, ""), (4 << 20, ""), (1 << 20, "direct")])
def test_survivors_of_a_killed_rank_are_told(inside, count, strategy):
    task = {"victim": 1, "calls": 20, "count": count, "inside": inside, "strategy": strategy}
    job = launch.start("gpu_programs:until_a_rank_dies", RANKS, task, folder=FOLDER)
    rows = list(job.lines())
    statuses = job.wait(60)
    died_at = next(row["died_at"] for row in rows if "died_at" in row)
    survivors = [row for row in rows if "class" in row]
    assert len(survivors) == RANKS - 1, (statuses, rows)
    for row in survivors:
        assert row["class"] in ("PeerLostError", "AbortedError"), row
        assert "rank 1" in row["error"], row
        assert row["noticed_at"] - died_at < 2.0, row
    assert [status for rank, status in enumerate(statuses) if rank != 1] == [0] * (RANKS - 1)


def test_a_rank_that_does_not_come_is_named():
    row = run("a_rank_that_does_not_come", {"arrive_s": 2.0, "abort": False}, 2)[0]
    assert row["class"] == "DeadlineError" and "rank 1" in row["error"], row
    assert row["seconds"] < 5.0 and row["failed"], row


def test_abort_ends_a_waiting_kernel():
    row = run("a_rank_that_does_not_come", {"arrive_s": 60.0, "abort": True}, 2)[0]
    assert row["class"] == "AbortedError" and row["seconds"] < 2.0, row
    assert not row["failed"], row


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_torch_tensors_streams_and_mistakes():
    for row in run("torch_arrays", {}):
        for name in ("all_reduce", "all_gather", "in_place", "by_number", "graph"):
            assert row[name] is True, row
        host_output, other_gpu, strided, kind, small, host_stream = row["errors"]
        assert host_output.startswith("InvalidArgumentError") and "host memory" in host_output
        assert other_gpu.startswith("InvalidArgumentError") and "GPU" in other_gpu
        assert "contiguous" in strided and "complex64" in kind and "6 bf16" in small
        assert "stream" in host_stream, row


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_sums_with_norms_give_the_bits_of_host_memory():
    for row in run("rms_norms", {}):
        assert row["wrong"] == [] and row["checked"] == 60, row


def test_the_c_api_on_device_memory(tmp_path):
    tmp_path.chmod(0o700)
    for row in run("c_api", {"count": 5003, "gpu": True, "folder": str(tmp_path)}):
        for name in ("host", "gpu", "default", "async", *(f"{at}_wrong" for at in ("host", "gpu"))):
            assert row[name] == 0, row
        assert row["default_wrong"] == 0 and row["device"] == row["rank"], row
        assert row["host_with_stream"] == 1 and row["mixed"] == 1, row
