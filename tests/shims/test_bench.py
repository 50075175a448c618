"""Tests the drop-in's benchmarks with stand-in programs: tables, medians, deadlines."""

from __future__ import annotations

import csv
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shim_env import ROOT

sys.path.insert(0, str(ROOT))
from bench.lib import jobs
from bench.programs import drop_in, nccl_tests

# Two sizes, three cycles, the first line an outlier; faster with a library preloaded.
PROGRAM = """#!/bin/sh
us=99.00; usual=40.00; [ -n "$LD_PRELOAD" ] && usual=16.00
for cycle in 1 2 3; do for bytes in 1024 4096; do
  echo "  $bytes 256 float sum -1 $us 0.05 0.09 0 $us 0.05 0.09 N/A"
  us=$usual
done; done
echo "# Out of bounds values : 0 OK"
[ "$BREAK" = "$LD_PRELOAD" ] && exit 3
exit 0
"""


@pytest.fixture
def programs(tmp_path):
    """A folder with a program, and a library that may be preloaded."""
    program = tmp_path / "all_reduce_perf"
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def _nccl_tests(programs: Path, *words: str, env: dict[str, str]) -> tuple[int, list[dict]]:
    table = programs / "out.csv"
    command = [sys.executable, str(ROOT / "bench"), "nccl-tests", "--programs", str(programs)]
    command += ["--drop-in", str(programs / "no.so"), "--only", "all_reduce", "--csv", str(table)]
    done = subprocess.run(
        [*command, *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )
    with table.open() as file:
        return done.returncode, list(csv.DictReader(file))


def test_medians_over_cycles_lanes_and_runs(programs):
    words = ["--lanes", "0,1/2,3", "--modes", "threads,one_thread"]
    status, rows = _nccl_tests(programs, *words, env={"BREAK": "never"})
    assert status == 0 and len(rows) == 8  # two modes, two places, two sizes
    small = [row for row in rows if row["bytes"] == "1024"]
    assert all(row["gpus"] == "2" and row["samples"] == "6" for row in rows)
    assert all(float(row["nccl_us"]) == 40 and float(row["plait_us"]) == 16 for row in small)
    assert all(float(row["ratio"]) == 2.5 for row in rows)


def test_a_program_that_fails_with_plait_is_told(programs):
    status, rows = _nccl_tests(programs, env={"BREAK": str(programs / "no.so")})
    assert status == 1 and rows


def test_wrong_elements_are_kept_from_any_cycle():
    lines = [f"1024 256 float sum -1 9.0 0.1 0.1 {n} 9.0 0.1 0.1 N/A" for n in (0, 7, 0)]
    found = nccl_tests.parse("\n".join(lines))
    (out,) = [timings for key, timings in found.items() if key[0] == "out"]
    assert len(out) == 3 and nccl_tests.worst(out) == "7"
    assert nccl_tests.worst([(1.0, 1.0, "N/A")]) == "N/A"


def _alive(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_job_ends_with_all_its_processes_at_its_deadline():
    output, _, why = jobs.run_job(["sh", "-c", "sleep 60 & echo $!; wait"], os.environ, 0.5)
    assert "still running" in why
    end = time.monotonic() + 5
    while _alive(output.strip()):  # it was killed; the system takes its time
        assert time.monotonic() < end
        time.sleep(0.01)
    assert jobs.run_job(["/no/such"], os.environ, 1)[2].startswith("cannot start")
    assert jobs.run_job(["sh", "-c", "exit 3"], os.environ, 5)[2] == "status 3"


def test_rows_of_training_and_decoding_share_columns(tmp_path):
    pytest.importorskip("matplotlib")
    common = {"gpus": 2, "batch": 8, "served": [5, 6], "drop_in": True, "sm_budget": "0"}
    trained = {"program": "ddp", "model": "vgg16", "nccl_ms": 2.0, "plait_ms": 1.0}
    trained |= {"nccl_per_s": 10.0, "plait_per_s": 20.0, "ratio": 2.0, "same_bits_again": True}
    decoded = {"program": "decode", "hidden": 64, "layers": 2, "nccl_output": "a"}
    decoded |= {"nccl_step_us": 500.0, "nccl_tokens_per_s": 3.0, "plait_step_us": 250.0}
    decoded |= {"plait_tokens_per_s": 6.0, "plait_output": "a", "ratio": 2.0}
    rows = drop_in.rows_of([{**common, **trained}, {**common, **decoded}, {"check": "x"}], "c")
    assert len(rows) == 2 and all(set(row) == set(drop_in.COLUMNS) for row in rows)
    assert rows[1]["nccl_ms"] == 0.5 and rows[1]["same_bits_as_nccl"] is True
    assert json.dumps(rows[0]["served"]) == "5"
    drop_in.plot(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
