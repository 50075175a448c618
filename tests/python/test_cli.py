"""The plait command as a user runs it: output, JSON, exit statuses, error lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import plait


def plait_command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plait.cli", *words], capture_output=True, text=True, timeout=120
    )


def test_version():
    assert plait_command("--version").stdout.strip() == plait.__version__


def test_topo_json_is_a_topology():
    done = plait_command("topo", "-T", "hgx-h200", "--json")
    assert done.returncode == 0
    assert plait.Topology.from_json(done.stdout) == plait.load_topology("hgx-h200")


def test_topo_names_paths():
    done = plait_command("topo", "-T", "mist")
    assert "nvlink:0>1" in done.stdout and "host:0>numa0>1" in done.stdout


def test_topo_masks():
    done = plait_command("topo", "-T", "mist", "--without", "nvlink:0-1")
    assert done.returncode == 0 and "nvlink:0>1" not in done.stdout


def test_plan_prints_ranking_proof_and_bytes():
    done = plait_command("plan", "all_reduce", "--bytes", "64M", "-T", "mist")
    assert done.returncode == 0, done.stderr
    for words in ("hierarchical", "bytes per path", "nvlink:0>1", "proved"):
        assert words in done.stdout


def test_plan_json_round_trip_through_verify(tmp_path):
    done = plait_command("plan", "all_gather", "--bytes", "1M", "-T", "cedar", "--json")
    file = tmp_path / "plan.json"
    file.write_text(done.stdout)
    assert plait_command("verify", str(file)).returncode == 0
    broken = json.loads(done.stdout)
    broken["lanes"][0]["ops"].pop()
    file.write_text(json.dumps(broken))
    done = plait_command("verify", str(file), "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["findings"]


def test_bench_table_and_json():
    done = plait_command(
        "bench",
        "all_reduce",
        "-g",
        "2",
        "-b",
        "1K",
        "-e",
        "4K",
        "-d",
        "fp32,bf16",
        "--strategies",
        "all",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["out_of_bounds"] == 0 and said["bitwise_equal"] is True
    assert {row["type"] for row in said["results"]} == {"fp32", "bf16"}
    assert len({row["name"] for row in said["results"]}) >= 8


def test_bench_plot(tmp_path):
    picture = tmp_path / "busbw.png"
    done = plait_command(
        "bench", "all_reduce", "-g", "2", "-b", "1K", "-e", "2K", "--plot", str(picture)
    )
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topo", "-T", "atlantis"], "atlantis"),
        (["plan", "all_produce"], "all_produce"),
        (["plan", "all_reduce", "--bytes", "many"], "many"),
        (["plan", "all_reduce", "-T", "mist", "--ranks", "5"], "5"),
        (["plan", "all_reduce", "-T", "mist", "-s", "direct:size=2"], "size"),
        (["plan", "all_reduce", "-d", "fp12"], "fp12"),
        (["verify", "no-such-file.json"], "no-such-file.json"),
        (["verify"], "--all"),
        (["bench", "all_reduce", "-b", "4K", "-e", "1K"], "first <= last"),
        (["bench", "all_reduce", "-o", "median"], "median"),
        (["bench", "all_reduce", "--strategies", "direct,guess"], "guess"),
    ],
)
def test_errors_are_one_line_and_a_status(words, said):
    done = plait_command(*words)
    assert done.returncode in (1, 2) and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_no_regular_file_or_too_long_is_no_plan(tmp_path):
    pipe, long = tmp_path / "pipe", tmp_path / "long"
    os.mkfifo(pipe)
    with long.open("wb") as file:
        file.truncate((64 << 20) + 1)
    for name in (str(pipe), str(tmp_path), "/dev/zero", str(long)):
        done = plait_command("verify", name)
        assert done.returncode == 1 and "64 MiB" in done.stderr, done
        assert "Traceback" not in done.stderr


def test_doctor_finds_no_fault_here():
    done = plait_command("doctor", "--json")
    assert done.returncode == 0, done.stdout
    assert {check["what"] for check in json.loads(done.stdout)} >= {"processor", "topology", "GPUs"}
