"""Runs the subcommands of `python -m bench` that need PyTorch and no GPU."""

from __future__ import annotations

import json

import pytest
from test_bench_programs import bench, printed, table

pytest.importorskip("torch")


def test_training_twice_has_one_hash():
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29581"}
    said = [printed("train-twice", "--cpu", "--steps", "2", **env) for _ in range(2)]
    first, second = ([json.loads(line)["hash"] for line in one.splitlines()] for one in said)
    assert len(first) == 2 and first == second


def test_torch_over_plait_and_gloo(tmp_path):
    file = tmp_path / "rows.csv"
    words = ["--ranks", "2", "--load", "0", "--bytes", "8", "--bound", "no"]
    bench("torch-backend", *words, "--calls", "all_reduce,send_recv", "--csv", str(file))
    assert [row["call"] for row in table(file)] == ["all_reduce", "send_recv"]
