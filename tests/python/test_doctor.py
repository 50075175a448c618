"""Tests `plait doctor`: GPUs, wrong variables, tuning table, NCCL."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from recorded import RESULTS

import plait
from plait import _core, gpu, run
from plait.commands import between, doctor


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a child process, since a denied call stays denied."""
    words = [sys.executable, "-c", program]
    env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)


def smi(folder: Path, script: str) -> None:
    """Writes an nvidia-smi that runs the script."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PLAIT_FOO", "1", "PLAIT_FOO is no variable of plait"),
        ("PLAIT_SM_BUDGET", "abc", "PLAIT_SM_BUDGET: wanted a whole number"),
        ("PLAIT_THROUGH_HOST", "2", "PLAIT_THROUGH_HOST: wanted auto, 0 or 1"),
        ("PLAIT_ALGO", "direct:pieces", "PLAIT_ALGO: wanted name:param=value"),
        ("PLAIT_ALGO", "rign", "PLAIT_ALGO: wanted an engine or a strategy (one of "),
        ("PLAIT_OPS", "reduce,all_reduse", "PLAIT_OPS: wanted a collective (one of all_reduce, "),
        ("PLAIT_DEBUG", "foo", "wanted NONE, VERSION, WARN, INFO or EXPLAIN, found 'foo'"),
        ("PLAIT_ARRIVE_S", "5m", "PLAIT_ARRIVE_S: wanted a number of seconds from 0.001 to"),
    ],
)
def test_variables_that_are_none_of_plaits(monkeypatch, variable, value, said):
    assert doctor._variables().state == "ok"
    monkeypatch.setenv(variable, value)
    check = doctor._variables()
    assert check.state == "broken" and said in check.found, check


def test_all_variables_that_are_wrong_are_named(monkeypatch):
    monkeypatch.setenv("PLAIT_FOO", "1")
    monkeypatch.setenv("PLAIT_DEBUG", "foo")
    monkeypatch.setenv("PLAIT_SM_BUDGET", "abc")
    check = doctor._variables()
    assert all(f"PLAIT_{name}" in check.found for name in ("FOO", "DEBUG", "SM_BUDGET")), check
    assert check.advice == "unset them or correct them, then run this again"
    assert [os.environ[f"PLAIT_{name}"] for name in ("FOO", "DEBUG", "SM_BUDGET")] == [
        "1",
        "foo",
        "abc",
    ]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PLAIT_ALGO", "copy_ring:blocks=2"), ("PLAIT_ALGO", "ring"), ("PLAIT_OPS", "bcast,copy")],
)
def test_right_values_are_ok(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    assert doctor._variables().state == "ok"


def test_variables_that_are_set_are_named(monkeypatch):
    monkeypatch.setenv("PLAIT_TOPOLOGY", "mist")
    monkeypatch.setenv("PLAIT_WITHOUT", "nvlink:0-1")
    assert "PLAIT_TOPOLOGY=mist, PLAIT_WITHOUT=nvlink:0-1" in doctor._variables().found
    assert doctor._topology().found.startswith("mist: ")
    monkeypatch.setenv("PLAIT_TOPOLOGY", "atlantis")
    assert doctor._topology().state == "broken"


def test_the_folder_in_which_ranks_meet(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    usual = doctor._runtime_folder()
    assert usual.state == "ok" and usual.found.startswith(f"/tmp/plait-{os.geteuid()}")
    deep = tmp_path / ("x" * 110)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    check = doctor._runtime_folder()
    assert check.state == "ok" and check.found.startswith(f"/tmp/plait-{os.geteuid()}, since ")
    assert "too long for the path of a socket" in check.found and check.advice
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/usr")
    assert "is not a private folder of this user" in doctor._runtime_folder().found


DENIED = {
    "pidfd_open": (434, "_pidfd", "broken", "pidfd_open: Operation not permitted"),
    "memfd_create": (319, "_memory", "broken", "memfd_create: Operation not permitted"),
    "process_vm_readv": (310, "_vm_read", "missing", "2.0"),  # plait works without it
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls by their numbers there")
@pytest.mark.parametrize("call", DENIED)
def test_a_system_call_that_a_sandbox_denies_is_named_by_errors_and_doctor(call):
    number, row, state, said = DENIED[call]
    program = f"""
import denied, plait, numpy
from plait.commands import doctor
denied.deny({number})
check = doctor.{row}()
print(check.state, check.found, check.advice, sep="; ")
assert doctor.{row}() in doctor.examine()
try:
    comms = plait.Communicator(0, 1)
    print(comms.all_reduce(numpy.full(1, 2.0))[0])
except plait.Error as error:
    print(error)
"""
    done = run_python(program)
    assert done.returncode == 0, done.stderr
    doctors, error = done.stdout.splitlines()
    assert doctors.startswith(f"{state}; ") and "Operation not permitted" in doctors
    assert f"seccomp profile allow {call}" in doctors
    assert said in error and (state != "broken" or f"allows {call}" in error)


def test_a_limit_on_the_size_of_files_is_named_by_errors_and_doctor():
    program = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
import os
from plait import launch
from plait.commands import doctor
print(doctor._limits())
job = launch.start("rank_programs:one_large_call", 2, {}, folder=os.environ["PYTHONPATH"])
for row in job.lines():
    print(row["error"])
job.wait()
"""
    done = run_python(program)
    assert done.returncode == 0, done.stderr
    doctors, *errors = done.stdout.splitlines()
    assert "RLIMIT_FSIZE" in doctors and "ulimit -f" in doctors
    assert len(errors) == 2 and all("(RLIMIT_FSIZE)" in error for error in errors), errors


def test_words_of_two_launchers_are_a_row_and_no_crash():
    words = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "PMI_RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "plait", "doctor", "--json"],
        env={**os.environ, **words, "PMI_SIZE": "4"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    rows = {row["what"]: row for row in json.loads(done.stdout)}
    assert (
        rows["launcher"]["state"] == "broken"
        and "PMI says rank 0 of 4" in rows["launcher"]["found"]
    )


def test_gpus_that_the_driver_sees_and_nvidia_smi_lists(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(gpu, "count", lambda: 1)
    smi(tmp_path, "echo 'GPU 0: H200'; echo 'GPU 1: H200'")
    check = doctor._gpus()
    assert check.found == "1 seen by the driver; nvidia-smi lists 2"
    assert check.advice == "CUDA_VISIBLE_DEVICES=0 hides some"
    monkeypatch.setattr(gpu, "count", lambda: 0)
    monkeypatch.setattr(gpu, "why_none", lambda: "found no device")
    smi(tmp_path, "echo 'No devices were found' >&2; exit 6")
    check = doctor._gpus()
    assert check.state == "missing"
    assert check.found == "found no device; nvidia-smi: No devices were found"


def test_an_nvidia_smi_that_hangs_or_cannot_run(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor, "SMI_S", 0.2)
    smi(tmp_path, "exec sleep 20")
    assert doctor._listed_by_smi() == (
        0,
        "nvidia-smi did not answer in 0.2 s: the driver may hang",
    )
    (tmp_path / "nvidia-smi").write_text("#!/no/such/shell\n")
    count, said = doctor._listed_by_smi()
    assert count == 0 and "No such file" in said


def test_a_build_without_device_code(monkeypatch):
    monkeypatch.setattr(run, "has_kernels", lambda library: False)
    check = doctor._device_code()
    assert check.state == "missing" and "nvcc" in check.advice
    monkeypatch.setattr(run, "has_kernels", lambda library: library.name == "libplait_nccl.so")
    assert doctor._device_code().state == "ok"


def test_which_way_calls_between_gpus_go(monkeypatch):
    monkeypatch.delenv("PLAIT_THROUGH_HOST", raising=False)
    assert doctor._direct_access().state == "ok"  # fewer than two GPUs
    monkeypatch.setattr(gpu, "count", lambda: 2)
    monkeypatch.setattr(gpu, "why_no_direct_access", lambda: "")
    assert doctor._direct_access().state == "ok"
    monkeypatch.setattr(gpu, "why_no_direct_access", lambda: "NCCL_P2P_DISABLE=1 forbids it")
    check = doctor._direct_access()
    assert check.state == "missing"
    assert check.found == "NCCL_P2P_DISABLE=1 forbids it: calls go through host memory"
    monkeypatch.setenv("PLAIT_THROUGH_HOST", "0")
    assert "stay on NCCL" in doctor._direct_access().found
    monkeypatch.setenv("PLAIT_THROUGH_HOST", "1")
    assert "PLAIT_THROUGH_HOST=1 sends calls" in doctor._direct_access().found


def test_the_nccl_that_comparisons_find(monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_NCCL_LIB", str(tmp_path / "libnccl.so.2"))
    check = doctor._nccl()
    assert check.state == "broken" and "found no file" in check.found
    source = "int ncclGetVersion(int* version) { *version = 22809; return 0; }"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(tmp_path / "libnccl.so.2")],
        input=source,
        text=True,
        check=True,
    )
    assert doctor._nccl().found == f"2.28.9 at {tmp_path}/libnccl.so.2"
    (tmp_path / "text").write_text("no library")
    monkeypatch.setenv("PLAIT_NCCL_LIB", str(tmp_path / "text"))
    assert doctor._nccl().state == "missing"


def test_the_tuning_table_in_use(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gpu, "count", lambda: 2)
    monkeypatch.delenv("PLAIT_AUTOTUNE", raising=False)
    check = doctor._tuning()
    said = "the first start measures one, plait tune measures more"
    assert (check.state, check.advice) == ("missing", said)
    monkeypatch.setenv("PLAIT_AUTOTUNE", "0")
    said = "plait tune measures one, as does a first start without PLAIT_AUTOTUNE=0"
    assert doctor._tuning().advice == said
    file = Path(_core.tuning_file(plait.discover().fingerprint(), 2))
    file.parent.mkdir()
    file.write_text((RESULTS.parents[1] / "tuning" / "hgx-h200.json").read_text())
    assert doctor._tuning() == doctor.Check("tuning table", "ok", str(file))
    other = file.with_name(re.sub(r"cuda\d+", "cuda11080", file.name))
    old = file.with_name(re.sub(r"-cuda\d+", "", file.name))
    for one in (other, old):
        one.write_text("no table")
    check = doctor._tuning()
    assert check.state == "ok" and f"not read: {other} of CUDA driver 11080" in check.found
    assert f"not read: {old}, whose name has no CUDA driver" in check.found
    file.rename(file.with_suffix(".kept"))
    assert doctor._tuning().state == "missing"
    file.with_suffix(".kept").rename(file)
    for one in (other, old):
        one.unlink()
    mark = file.with_name(file.name + ".measuring")
    mark.write_text("process 7 began and did not end\n")
    check = doctor._tuning()
    assert check.state == "broken" and check.found.endswith("process 7 began and did not end")
    assert str(mark) in check.advice
    with mark.open() as held:  # a process that measures now
        fcntl.flock(held, fcntl.LOCK_EX)
        assert doctor._tuning().state == "ok"
    mark.unlink()
    file.write_text(json.dumps({"schema": "plait.tuning/9"}))
    assert doctor._tuning().state == "broken"
    monkeypatch.setenv("PLAIT_TUNING", "none")
    assert doctor._tuning().found == "none, as PLAIT_TUNING says"
    monkeypatch.setenv("PLAIT_TUNING", str(tmp_path / "absent.json"))
    check = doctor._tuning()
    assert check.state == "broken" and "absent.json" in check.found


def test_nics_are_listed_with_state_and_rate(tmp_path, monkeypatch):
    monkeypatch.setattr(between, "NICS", tmp_path)
    assert doctor._nics().state == "missing"
    for name, files in (
        ("mlx5_0", {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}),
        ("x", {}),
    ):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        for file, words in files.items():
            (port / file).write_text(words + "\n")
    found = doctor._nics()
    assert found.state == "ok"
    assert found.found.startswith("mlx5_0: 4: ACTIVE, 400 Gb/sec (4X NDR); x: ")


def test_the_environment_stands_above_files_of_nccls_settings(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "NCCL_CONF", tmp_path / "etc")
    assert doctor._nccl_settings().found == "none"
    own, everyones = tmp_path / "own", tmp_path / "etc"
    own.write_text("# a comment\nNCCL_ALGO=Ring\nNCCL_DEBUG=INFO\n")
    everyones.write_text("NCCL_ALGO=Tree\nNCCL_PROTO=LL\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(own))
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    check = doctor._nccl_settings()
    assert check.state == "ok" and check.found == (
        f"NCCL_ALGO=Ring ({own}), NCCL_DEBUG=WARN (environment), NCCL_PROTO=LL ({everyones})"
    )
    assert check.advice == (
        f"no effect: NCCL_DEBUG of {own} (that of environment counts), "
        f"NCCL_ALGO of {everyones} (that of {own} counts)"
    )
    monkeypatch.setenv("NCCL_CONF_FILE", f"{tmp_path}/none")
    assert doctor._nccl_settings().state == "broken"


def test_without_a_driver_each_call_of_nccl_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.nccl, "library_path", lambda: "libnccl.so.2")
    monkeypatch.setattr(run, "nccl_version", lambda path: 22302)
    monkeypatch.setattr(run, "find_nccl", lambda: None)
    monkeypatch.setattr(doctor, "DRIVER", "libcuda_that_is_nowhere.so.1")
    check = doctor._nccl()
    assert check.state == "missing" and "fails with ncclUnhandledCudaError" in check.advice
    monkeypatch.setattr(doctor, "DRIVER", "libc.so.6")
    assert doctor._nccl().state == "ok"


def test_a_wrong_variable_is_a_row_and_not_the_end(monkeypatch, capsys):
    monkeypatch.setenv("PLAIT_FOO", "1")
    with pytest.raises(typer.Exit):
        doctor.doctor(as_json=True)
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["PLAIT_* variables"]["state"] == "broken" and "processor" in rows


def test_a_module_that_the_programs_python_cannot_import_is_a_row(tmp_path):
    """Also where this Python has the module."""
    script = tmp_path / "train.py"
    script.write_text("import os\nimport torch\nfrom vllm import LLM\n")
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')  # no site-packages
    python.chmod(0o755)
    rows = {check.what: check for check in doctor.examine_command([str(python), str(script)])}
    assert rows["torch"] == doctor.Check(
        "torch",
        "missing",
        f"the program imports torch, and {python} cannot import it",
        f"{python} -m pip install torch",
    )
    assert rows["vllm"].state == "missing" and "os" not in rows
    (tmp_path / "torch.py").touch()  # beside the script, where a script finds modules
    rows = {check.what: check for check in doctor.examine_command([str(python), str(script)])}
    assert "torch" not in rows and "vllm" in rows
