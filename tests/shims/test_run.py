"""Tests `plait run`, `plait profile` and `plait doctor -- cmd` over the stand-in libnccl."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from shim_env import plain_env

plait_run = pytest.importorskip("plait.run")
from plait import elf, profile  # noqa: E402


def _plait(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plait.cli", *words],
        env=plain_env(env or {}),
        capture_output=True,
        text=True,
        timeout=120,
    )


def _rows(done: subprocess.CompletedProcess[str]) -> list[dict]:
    assert done.returncode == 0, (done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("via", ["", "preload", "audit", "library"])
@pytest.mark.parametrize("program", ["nccl_linked", "nccl_opened"])
def test_run(built, via, program):
    if via == "library" and not (built / "nccl").exists():
        pytest.skip("no forwarding library on this processor")
    options = ["--via", via] if via else []
    drop_in = str(built / "libplait_nccl.so")
    command = [str(built / program), "all_reduce", "2", "processes"]
    real = {"LD_LIBRARY_PATH": str(built / "standin")}
    done = _plait("run", *options, "--drop-in", drop_in, "--", *command, env=real)
    seen = not (program == "nccl_opened" and via == "preload")  # looked up by handle
    for row in _rows(done):
        assert row["wrong"] == 0
        assert (row["served"] > 0) == seen and (row["nccl"] == 0) == seen
    said = [line for line in done.stderr.splitlines() if line.startswith("plait:")]
    assert len(said) == 1 and f"via {via or _needed(program)}" in said[0]


def _needed(program: str) -> str:
    return "preload" if program == "nccl_linked" else "audit"


def test_without_a_gpu_the_program_runs_as_it_would(built):
    if not plait_run.gpu.why_none():
        pytest.skip("this machine has a GPU")
    done = _plait("run", "--", str(built / "nccl_linked"), "all_reduce", "2", "processes")
    assert all(row["wrong"] == 0 and row["served"] == -1 for row in _rows(done))
    assert done.stderr.count("plait:") == 1 and "running without" in done.stderr


def test_a_drop_in_without_device_code_says_so(built):
    library = built.parent / "shims" / "libplait_nccl.so"
    if not library.exists() or plait_run.has_kernels(library):
        pytest.skip("this build has device code")
    done = _plait("run", "--drop-in", str(library), "--", "true")
    assert done.returncode == 0 and "built without nvcc: running without it" in done.stderr
    assert plait_run.has_kernels(built / "libplait_nccl.so")
    assert not plait_run.has_kernels(library.parent / "no_such.so")


@pytest.mark.parametrize("folder", ["two words", "a:b"])
@pytest.mark.parametrize("via", ["preload", "audit", "mpi"])
def test_a_drop_in_that_the_loader_cannot_name_is_left_out(tmp_path, folder, via):
    library = tmp_path / folder / "libplait_nccl.so"
    library.parent.mkdir()
    library.touch()
    done = _plait("run", "--via", via, "--drop-in", str(library), "--", "env")
    assert done.returncode == 0 and "LD_PRELOAD=" not in done.stdout
    assert f"the drop-in is at '{library}'; install plait in another folder" in done.stderr


def test_an_unknown_nccl_is_left_alone(built):
    command = [str(built / "nccl_linked"), "all_reduce", "2", "processes"]
    drop_in = str(built / "libplait_nccl.so")
    done = _plait("run", "--drop-in", drop_in, *command, env={"STANDIN_VERSION": "30100"})
    assert all(row["wrong"] == 0 and row["served"] == 0 for row in _rows(done))
    assert done.stderr.count("stays on NCCL") == 1 and "30100 is unknown" in done.stderr


def test_bad_words_are_refused(built):
    done = _plait("run", "--via", "window", "--", "true")
    assert done.returncode == 2 and "preload, audit, library" in done.stderr
    done = _plait("run", "--", "/no/such/program")
    assert done.returncode == 127 and "/no/such/program" in done.stderr
    done = _plait("run", "--", "/etc/passwd")
    assert done.returncode == 126 and "Permission denied" in done.stderr


def test_the_programs_status_is_passed_on(built):
    drop_in = str(built / "libplait_nccl.so")
    assert _plait("run", "--drop-in", drop_in, "--", "sh", "-c", "exit 7").returncode == 7
    assert _plait("profile", "--drop-in", drop_in, "--", "sh", "-c", "exit 7").returncode == 7


def test_profile(built, tmp_path):
    command = [str(built / "nccl_linked"), "groups", "3", "processes"]
    options = ["--folder", str(tmp_path), "--drop-in", str(built / "libplait_nccl.so")]
    done = _plait("profile", *options, "--", *command)
    assert done.returncode == 0 and "all_reduce" in done.stdout, done
    rows = list(csv.DictReader((tmp_path / "profile.csv").open()))
    found = {(row["collective"], row["path"]): int(row["calls"]) for row in rows}
    assert found[("all_reduce", "plait")] == 6 and found[("send", "nccl")] == 3
    sums = next(row for row in rows if row["collective"] == "all_reduce")
    assert int(sums["bytes"]) == 6 * 20000 * 4 and int(sums["size_below"]) == 131072
    assert all(page["doers"] == list(profile.DOERS) for page in profile.load(tmp_path))
    assert profile.bytes_of_path(profile.load(tmp_path)) == {"host memory": 6 * 20000 * 4}
    assert "host memory" in done.stdout
    assert profile.memory(profile.load(tmp_path)) == {"arena of small calls": (True, 1_000_000)}
    assert "arena of small calls" in done.stdout
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 6
    assert {event["pid"] for event in events} == {0, 1, 2}


def test_profile_has_what_nccl_carries_between_nodes(built, tmp_path):
    command = [str(built / "nccl_linked"), "groups", "4", "processes"]
    options = ["--folder", str(tmp_path), "--drop-in", str(built / "libplait_nccl.so")]
    env = {"PLAIT_NODE_SIZE": "2", "PLAIT_ALGO": "multi_node:pieces=1"}  # for short calls
    done = _plait("profile", *options, "--", *command, env=env)
    assert done.returncode == 0, done
    found = profile.bytes_of_path(profile.load(tmp_path))
    assert found["nccl"] == 4 * 2 * 20000 * 4 // 2  # bytes: a shard per sum and rank


def test_counters_of_a_running_program():
    assert profile.counters() == []  # the drop-in is not loaded here


def test_table_adds_processes_up_and_takes_the_slowest():
    row = {"name": "all_reduce", "served": 3, "bucket": 11, "calls": 2, "bytes": 2048}
    pages = [
        {"rank": 0, "rows": [{**row, "host_ns": 4000, "gpu_calls": 1, "gpu_ns": 5_000_000}]},
        {"rank": 1, "rows": [{**row, "host_ns": 8000, "gpu_calls": 2, "gpu_ns": 30_000_000}]},
    ]
    (found,) = profile.table(pages, run_s=0.1)
    assert (found.calls, found.bytes, found.size_below, found.path) == (4, 4096, 2048, "two_shot")
    assert found.host_us == pytest.approx(3) and found.share == pytest.approx(0.3)
    assert found.gpu_us == pytest.approx(35e3 / 3)
    assert (found.timed_by, found.us_a_call) == ("GPU", found.gpu_us)


def test_calls_without_gpu_time_count_by_host_time(tmp_path):
    row = {"name": "all_reduce", "served": 1, "bucket": 24, "calls": 2, "bytes": 2 << 23}
    none = {"gpu_calls": 0, "gpu_ns": 0}
    pages = [
        {"rank": 0, "rows": [{**row, **none, "host_ns": 4_000_000}]},
        {"rank": 1, "rows": [{**row, **none, "host_ns": 8_000_000}]},
    ]
    (found,) = profile.table(pages, run_s=0.1)
    assert found.timed_by == "host" and found.share == pytest.approx(0.08)
    assert found.us_a_call == found.host_us == pytest.approx(3000)
    pytest.importorskip("matplotlib")
    profile.plot([found], tmp_path / "sizes.svg")
    ticks = (tmp_path / "sizes.svg").read_text()
    assert "<!-- 8 MiB -->" in ticks and "<!-- all_reduce by plait (host time) -->" in ticks


@pytest.mark.parametrize(
    ("source", "via"),
    [("import torch\n", "preload"), ("import jax\n", "audit"), ("from vllm import LLM\n", "audit")],
)
def test_entry_point_of_python_programs(tmp_path, source, via):
    script = tmp_path / "train.py"
    script.write_text(source)
    assert plait_run.entry_point_for(["python3", str(script)])[0] == via
    assert plait_run.entry_point_for(["torchrun", "--nproc-per-node", "2", str(script)])[0] == via


@pytest.mark.parametrize(
    ("source", "via"),
    [
        ("from mpi4py import MPI\n", "mpi"),
        ("from mpi4py import MPI\ndef on_gpu():\n    import torch\n", "mpi"),
        ("import torch, numpy\nfrom mpi4py import MPI\n", "mpi"),
        ("import torch.distributed as dist\nfrom mpi4py import MPI\n", "preload"),
        ("from mpi4py import MPI\nfrom cupy.cuda import nccl\nimport cupy\n", "preload"),
        ("import torch\n", "preload"),
        ("import jax\n", "audit"),
        ("import program\n", "mpi"),
    ],
)
def test_entry_point_of_python_programs_under_mpirun(tmp_path, monkeypatch, source, via):
    (tmp_path / "train.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    launcher = ["mpirun", "-n", "2", "python3"]
    for program in (["train.py"], ["-m", "train"], ["-c", source]):
        assert plait_run.entry_point_for([*launcher, *program])[0] == via, program
    if via != "mpi":
        assert plait_run.entry_point_for(["python3", "train.py"])[0] == via


def test_entry_point_of_unknown_programs(built):
    program = str(built / "nccl_linked")
    found = plait_run.entry_point_for(["mpirun", "-n", "2", program])
    assert found == ("preload", "nccl_linked links NCCL")
    for word in ("", ".", "x" * 300, "a..b"):
        assert plait_run.entry_point_for(["pytest", "-m", word])[0] == "preload"
    assert plait_run.entry_point_for(["/usr/bin/mpirun.openmpi", "-n", "2", "./x.sh"])[0] == "mpi"
    assert plait_run.entry_point_for(["srun", "-n", "2", "./x.sh"])[0] == "preload"
    assert plait_run.entry_point_for(["python3", "-c", "import sys; import jax"])[0] == "audit"


@pytest.mark.parametrize("name", ["mpi_fft", "mpi_stencil", "mpi_sums"])
def test_entry_point_of_the_examples_with_mpi(name):
    script = str(Path(__file__).parents[2] / "examples" / f"{name}.py")
    via, why = plait_run.entry_point_for(["mpirun", "-n", "2", "python3", script])
    assert (via, why) == ("mpi", "mpi4py calls MPI")


def test_doctor_of_a_program(built):
    done = _plait("doctor", "--json", "--", str(built / "nccl_opened"))
    checks = {check["what"]: check for check in json.loads(done.stdout)}
    assert checks["entry point"]["found"].startswith("audit")
    assert _plait("doctor", "--", "no-such-program").returncode == 1


def test_elf_readers_agree_with_the_linker(built):
    library = built / "libplait_nccl.so"
    names, _ = elf.needed(built / "nccl_linked")
    assert "libnccl.so.2" in names and "libstandin_runtime.so" in elf.all_needed(library)
    assert {"ncclAllReduce", "plait_nccl_counters"} <= elf.exported(library)
    assert elf.is_elf(library) and not elf.is_elf(Path(__file__))


TWO_RANKS = """
import ctypes, json
from plait import profile
nccl = ctypes.CDLL(None)  # the drop-in's names, as any program in this process sees them
runtime = ctypes.CDLL("libstandin_runtime.so")
runtime.standin_stream_create.restype = ctypes.c_void_p
comms = (ctypes.c_void_p * 2)()
assert nccl.ncclCommInitAll(comms, 2, None) == 0
streams = [ctypes.c_void_p(runtime.standin_stream_create()) for _ in comms]
values = [(ctypes.c_float * 256)(*[rank + 1.0] * 256) for rank in range(2)]
for _ in range(3):
    assert nccl.ncclGroupStart() == 0
    for comm, stream, value in zip(comms, streams, values):
        comm, size = ctypes.c_void_p(comm), ctypes.c_size_t(256)
        assert nccl.ncclAllReduce(value, value, size, 7, 0, comm, stream) == 0
    assert nccl.ncclGroupEnd() == 0
for stream in streams:
    runtime.standin_stream_synchronize(stream)
print(json.dumps([values[0][0], values[1][255], profile.counters()]))
"""


def test_counters_while_a_program_runs(built):
    env = {
        "LD_PRELOAD": str(built / "libplait_nccl.so"),
        "LD_LIBRARY_PATH": f"{built}:{built / 'standin'}",
    }
    done = subprocess.run(
        [sys.executable, "-c", TWO_RANKS],
        env=plain_env(env),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    first, last, rows = json.loads(done.stdout)
    assert first == last == 12.0  # 1 + 2 = 3, doubled twice
    (row,) = rows
    assert (row["name"], row["served"], row["calls"]) == ("all_reduce", 1, 6)
    assert row["by"] == "plait"  # the host's engine has no name
    assert row["bytes"] == 6 * 1024 and row["bucket"] == 11
