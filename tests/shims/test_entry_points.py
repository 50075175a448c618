"""Each entry point under programs that link libnccl, or open the library by name or path."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from shim_env import ROOT, plain_env

NAMES = ROOT / "shims" / "nccl" / "names.def"


def _run(built: Path, way: str, env: dict[str, str], library: str = "") -> list[dict]:
    program = built / ("nccl_linked" if way == "linked" else "nccl_opened")
    command = [str(program), "groups", "2", "processes", *([library] if library else [])]
    done = subprocess.run(command, env=plain_env(env), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _entry(built: Path, via: str) -> dict[str, str]:
    real = built / "standin"
    env = {"LD_LIBRARY_PATH": str(real), "LD_PRELOAD": str(built / "libplait_nccl.so")}
    if via == "audit":
        env["LD_AUDIT"] = str(built / "libplait_audit.so")
    if via == "library":
        env["LD_PRELOAD"] = str(built / "nccl" / "libnccl.so.2")
        env["LD_LIBRARY_PATH"] = f"{built / 'nccl'}:{real}"
        env["PLAIT_NCCL_LIB"] = str(real / "libnccl.so.2")
    return env


@pytest.mark.parametrize(
    ("via", "way", "served"),
    [
        ("preload", "linked", True),
        ("preload", "name", False),  # looked up by handle: the other entry points are for these
        ("preload", "path", False),
        ("audit", "linked", True),
        ("audit", "name", True),
        ("audit", "path", True),
        ("library", "linked", True),
        ("library", "name", True),
        ("library", "path", True),  # the program is told plait's path
    ],
)
def test_entry_point(built, via, way, served):
    folder = built / "nccl" if via == "library" else built / "standin"
    if via == "library" and not (built / "nccl").exists():
        pytest.skip("no forwarding library on this processor")
    library = str(folder / "libnccl.so.2") if way == "path" else ""
    for row in _run(built, way, _entry(built, via), library):
        assert row["wrong"] == 0
        assert (row["served"] == 2 and row["nccl"] == 0) if served else row["nccl"] == 3


def _exported(library: Path) -> set[str]:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True
    )
    return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}


def test_exports_are_the_table(built):
    table = re.findall(r"^PLAIT_NCCL_(SERVED|FORWARDED)\((\w+)\)", NAMES.read_text(), re.M)
    served = {name for kind, name in table if kind == "SERVED"}
    everything = {name for _, name in table}
    ours = {name for name in _exported(built / "libplait_nccl.so") if name.startswith("nccl")}
    assert ours == served
    if (built / "nccl").exists():
        forwarded = _exported(built / "nccl" / "libnccl.so.2")
        assert {name for name in forwarded if name.startswith("nccl")} == everything
        assert {name for name in forwarded if name.startswith("pnccl")} == {
            f"p{name}" for name in everything
        }


def test_the_drop_in_shows_nothing_else(built):
    strange = {
        name
        for name in _exported(built / "libplait_nccl.so")
        if not name.startswith(("nccl", "plait_nccl_"))
    }
    assert not strange


def test_a_name_that_the_real_library_lacks_is_refused(built):
    if not (built / "nccl").exists():
        pytest.skip("no forwarding library on this processor")
    code = (
        "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]);"
        "print(library.ncclCommQueryProperties(None, None), library.pncclGetVersion(ctypes.byref("
        "ctypes.c_int())))"
    )
    done = subprocess.run(
        ["python3", "-c", code, str(built / "nccl" / "libnccl.so.2")],
        env=plain_env({"PLAIT_NCCL_LIB": str(built / "standin" / "libnccl.so.2")}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["5", "5"], done  # ncclInvalidUsage; the stand-in has no pNAMEs
