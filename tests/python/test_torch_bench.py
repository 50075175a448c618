"""Runs the subcommands of `python -m bench` that need PyTorch and no GPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from test_bench_programs import bench, printed, table

pytest.importorskip("torch")


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def test_training_twice_has_one_hash():
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    env["MASTER_PORT"] = free_port()
    said = [printed("train-twice", "--cpu", "--steps", "2", **env) for _ in range(2)]
    first, second = ([json.loads(line)["hash"] for line in one.splitlines()] for one in said)
    assert len(first) == 2 and first == second


def test_torch_over_plait_and_gloo(tmp_path):
    file = tmp_path / "rows.csv"
    words = ["--ranks", "2", "--load", "0", "--bytes", "8", "--bound", "no"]
    bench("torch-backend", *words, "--calls", "all_reduce,send_recv", "--csv", str(file))
    assert [row["call"] for row in table(file)] == ["all_reduce", "send_recv"]


def on_two_ranks(*words: str) -> list[dict[str, object]]:
    """Runs a program of several GPUs on two ranks with stand-ins for CUDA; returns rank 0's lines
    of JSON."""
    program = [sys.executable, str(Path(__file__).with_name("cuda_stand_in.py")), *words]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = [
        subprocess.Popen(
            program,
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ended
    return [json.loads(line) for line in ended[0][0].splitlines()]


def test_decoding_has_a_row_a_batch_size():
    words = ["--hidden", "64", "--layers", "2", "--batches", "1,2", "--replays", "2"]
    found = on_two_ranks("decode", *words, "--rounds", "2")
    assert [row["batch"] for row in found] == [1, 2]
    assert all(row["nccl_step_us"] > 0 and row["nccl_output"] for row in found)


def test_products_with_calls_have_a_row(tmp_path):
    file = tmp_path / "rows.csv"
    words = ["--size", "64", "--mib", "1", "--products", "3", "--rounds", "2", "--csv", str(file)]
    for collective in ("all_reduce", "all_gather"):
        (row,) = on_two_ranks("overlap", *words, "--collective", collective)
        assert row["collective"] == collective and row["by"] == "nccl"
    assert len(table(file)) == 2


def test_memory_and_times_are_counted_at_each_stage(tmp_path):
    file = tmp_path / "rows.csv"
    found = on_two_ranks("memory", "--groups", "3", "--large-mib", "2", "--csv", str(file))
    stages = [row["stage"] for row in found if row.get("variant") == "plait"]
    assert stages == [row["stage"] for row in found if row.get("variant") == "nccl"]
    small = ["made", "first call of 8 B", "calls of up to 1 MiB"]
    assert stages[:6] == 2 * small and stages[-2:] == ["calls of 256 MiB", "all given back"]
    assert all(row["ms"] > 0 for row in found if row.get("stage") in small[:2])
    assert [(row.get("memory") or row["time"], row["goal"]) for row in found if "goal" in row] == [
        ("calls of up to 1 MiB", 0.5),
        ("calls of 256 MiB", 0.8),
        ("made", 1.0),
        ("first call of 8 B", 1.0),
    ]
    assert len(table(file)) == 1 + 2 * len(stages)
