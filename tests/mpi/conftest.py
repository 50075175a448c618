"""Fixtures of the MPI tests; without an MPI the tests skip."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from mpi_programs import FOUND, PROGRAMS, ROOT, Mpi


@pytest.fixture(
    scope="session", params=FOUND or [None], ids=[mpi.name for mpi in FOUND] or ["none"]
)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    if request.param is None:
        pytest.skip("no MPI on this machine: make test-mpi fetches two, or install openmpi-bin")
    return request.param


@pytest.fixture(scope="session")
def drop_in() -> Path:
    """The newest libplait_mpi.so of a build without sanitizers; MPI_SHIM overrides the path."""
    if named := os.environ.get("MPI_SHIM"):
        return Path(named)
    built = ROOT.glob("build/*/shims/libplait_mpi.so")
    found = [path for path in built if "san" not in path.parent.parent.name]
    if not found:
        pytest.skip("libplait_mpi.so is not built: make test builds it")
    return max(found, key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mpi")


@pytest.fixture(scope="session")
def emulated_gpu(folder) -> str:
    """A CUDA driver with device memory that no other code can read or write."""
    made = folder / "libcuda.so.1"
    sources = [str(ROOT / name) for name in ("tests/fake_cuda/libcuda.cpp", "src/base/text.cpp")]
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    flags += [f"-I{ROOT / name}" for name in ("include", "src", "tests")]
    subprocess.run(["g++", *flags, "-o", str(made), *sources], check=True)
    return str(made)


@pytest.fixture(scope="session")
def call_audit(folder) -> str:
    """An LD_AUDIT library that names MPI calls in threads that must not make any."""
    if os.environ.get("SHIM_RUNTIME"):
        pytest.skip("a sanitizer allows no LD_AUDIT")
    made = folder / "call_audit.so"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fno-exceptions", "-nodefaultlibs"]
    source = str(PROGRAMS / "call_audit.cpp")
    subprocess.run(["g++", *flags, "-o", str(made), source, "-lc"], check=True)
    return str(made)
