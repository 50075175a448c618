"""Tests `plait run --bitwise` and `plait doctor` on programs with sum kernels of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import plait
from plait import gpu, run, same_bits
from plait.commands.run import with_order


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """beside("vllm-0.33.0") makes that package look installed in the command's Python."""

    def install(*packages: str) -> None:
        for one in packages:
            (tmp_path / f"{one}.dist-info").mkdir()
        monkeypatch.setattr(run, "package_folders", lambda command: [tmp_path])

    return install


SERVE = ["vllm", "serve", "m", "-tp", "8"]
SGLANG = ["python", "-m", "sglang.launch_server", "--tp", "8"]


@pytest.mark.parametrize(
    ("command", "installed", "environ", "said", "sets", "advised"),
    [
        (
            SERVE,
            ["vllm-0.33.0", "plait-1"],
            {},
            "vLLM 0.33.0: tensor-parallel sums are plait's",
            2,
            False,
        ),
        (SERVE, ["vllm-0.33.0"], {}, "plait is not installed beside vLLM", 2, True),
        (SERVE, ["plait-1"], {"VLLM_PLUGINS": "lora"}, "VLLM_PLUGINS=lora leaves", 2, True),
        (
            SERVE,
            ["plait-1"],
            {"VLLM_PLUGINS": "lora,plait"},
            "sums are plait's, by its plug-in",
            2,
            False,
        ),
        (
            [*SERVE, "--disable-custom-all-reduce"],
            [],
            {},
            "leaves tensor-parallel sums to NCCL",
            2,
            False,
        ),
        (
            [*SGLANG, "--enable-deterministic-inference"],
            [],
            {},
            "sums to NCCL, so plait's",
            0,
            False,
        ),
        (SGLANG, ["sglang-0.5.23"], {}, "SGLang 0.5.23: it sums by kernels of its own", 0, True),
        (SGLANG, ["plait-1"], {}, "by its hook (PLAIT_SGLANG=1)", 1, False),
        (["trtllm-serve", "m"], [], {}, "allreduce_strategy: NCCL", 1, True),
        (["python", "train.py"], [], {}, "", 0, False),
    ],
)
def test_programs_that_sum_by_themselves(beside, command, installed, environ, said, sets, advised):
    beside(*installed)
    program = same_bits.program_of(command, environ)
    assert said in " ".join(program.said) and len(program.env) == sets
    assert bool(program.advice) == advised


def test_without_a_gpu_plaits_own_sums_keep_their_order(monkeypatch):
    if not gpu.why_none():
        pytest.skip("a machine without GPUs is wanted")
    show = "import os; print(os.environ['PLAIT_BITWISE'], os.environ.get('LD_PRELOAD'))"
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "plait.cli",
                "run",
                "--bitwise",
                "--",
                sys.executable,
                "-c",
                show,
            )
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stdout == "1 None\n"
    assert "gloo and MPI sum as they do" in done.stderr


def test_without_a_drop_in_strict_stays_as_the_program_wants(monkeypatch):
    monkeypatch.setattr(gpu, "why_none", lambda: "no GPU")
    kept, _ = same_bits.plan(["python", "x.py"], environ={"PLAIT_BITWISE_STRICT": "1"})
    none, _ = same_bits.plan(["python", "x.py"], environ={})
    assert kept.env["PLAIT_BITWISE_STRICT"] == kept.env["PLAIT_BITWISE"] == "1"
    assert "PLAIT_BITWISE_STRICT" not in none.env


def test_rank_order_by_option_replaces_a_tree_of_the_environment(monkeypatch):
    monkeypatch.setattr(gpu, "why_none", lambda: "no GPU")
    found, _ = same_bits.plan(["python", "x.py"], environ={"PLAIT_SUM_ORDER": "tree"})
    assert found.env["PLAIT_SUM_ORDER"] == "rank_order" and "rank order" in found.said


@pytest.mark.parametrize(
    ("words", "own"),
    [
        ("--bitwise=tree -- prog --bitwise=x", 0),
        ("--via preload --bitwise=tree -- prog --bitwise=x", 2),
        ("--via=preload --drop-in a.so --json --bitwise=tree prog --bitwise=x", 4),
    ],
)
def test_bitwise_with_an_order_is_the_order_of_the_command_alone(words, own):
    given = ["run", *words.split()]
    wanted = [*given]
    wanted[1 + own] = "--sum-order=tree"
    assert with_order(given) == wanted
    assert with_order(["profile", *words.split()]) == ["profile", *words.split()]


def test_with_gpus_and_no_drop_in_it_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "why_none", lambda: "")
    with pytest.raises(plait.UnsupportedError, match="wanted the drop-in under NCCL"):
        same_bits.plan(["python", "x.py"], drop_in=str(tmp_path / "none.so"))


def test_under_mpi_it_is_an_error():
    with pytest.raises(plait.UnsupportedError, match="reductions stay with the MPI"):
        same_bits.plan(["mpirun", "true"], via="mpi", drop_in=sys.executable)


def test_what_was_served(tmp_path):
    rows = [
        {"name": "all_reduce", "served": 2, "calls": 3, "bytes": 300},
        {"name": "all_gather", "served": 0, "calls": 1, "bytes": 50},
        {"name": "reduce", "served": 0, "calls": 2, "bytes": 8},
    ]
    for pid in (1, 2):
        page = {"pid": pid, "rank": pid, "rows": rows}
        (tmp_path / f"plait-{pid}.json").write_text(json.dumps(page))
    assert same_bits.served(tmp_path) == [
        "served in 2 processes: sums in rank order 6 calls (600 B); moves 0 calls (0 B)",
        "left to NCCL: reductions that no order changes 4 calls (16 B); moves 2 calls (100 B)",
    ]


def test_doctor_explains(tmp_path, monkeypatch):
    (tmp_path / "vllm").write_text(f"#!{sys.executable}\n")
    (tmp_path / "vllm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    done = subprocess.run(
        [*(sys.executable, "-m", "plait.cli", "doctor", "--json", "--", "vllm", "serve", "m")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = [row for row in json.loads(done.stdout) if row["what"] == "plait run --bitwise"]
    assert len(said) == 1 and "vLLM" in said[0]["found"]


GOT_BY_ANOTHER_THREAD = """
import signal, subprocess, threading, time
from plait import same_bits
child = subprocess.Popen(["sleep", "10"])
def get():
    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        time.sleep(0.01)
    time.sleep(0.3)  # until the main thread waits
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=get).start()
print(same_bits._wait_for(child))
"""


def test_a_signal_that_another_thread_gets_reaches_the_program():
    words = [sys.executable, "-c", GOT_BY_ANOTHER_THREAD]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "143\n", done
