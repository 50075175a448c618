"""Tests what MPICH, Open MPI and mpi4py do to the bits of a sum: the rows of docs/same_bits.md.

Skips a library that is not installed here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPEN_MPI = ROOT / "build" / "mpi" / "openmpi"
PROGRAM = """
import json
import mpi4py
mpi4py.rc.thread_level = "single"
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
mine = np.full(37, 2.0**24 if comm.rank == 0 else 1.0, np.float32)
buffers = []
for _ in range(8):
    total = np.zeros_like(mine)
    comm.Allreduce(mine, total)
    buffers.append(sorted({int(one) for one in total - 2.0**24}))
objects = comm.allreduce(str(comm.rank), op=lambda a, b: f"({a}+{b})")
if comm.rank == 0:
    print(json.dumps([MPI.Get_library_version(), buffers, objects]))
"""


def told(mpiexec: Path, env: dict[str, str], *options: str) -> tuple[str, list[list[int]], str]:
    """Returns the library, what eight sums of 2^24 + 1 + 1 + 1 exceed 2^24 by, and the order of a
    sum of Python objects."""
    pytest.importorskip("mpi4py")
    if not mpiexec.exists():
        pytest.skip(f"no {mpiexec}: make test-mpi fetches Open MPI, pip install '.[test]' MPICH")
    command = [str(mpiexec), *options, "-n", "4", sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env=os.environ | env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    version, buffers, objects = json.loads(done.stdout.splitlines()[-1])
    return version, buffers, objects


def test_mpich_changes_its_order_at_the_fifth_call():
    version, buffers, objects = told(Path(sys.executable).with_name("mpiexec"), {})
    if "MPICH Version:      5.0.2" not in version:
        pytest.skip(f"another MPI: {version}")
    assert buffers == [[2]] * 4 + [[0]] * 4
    assert objects == "((0+1)+(2+3))"  # mpi4py's own tree of ranks


def test_open_mpi_keeps_its_order():
    env = {
        "OPAL_PREFIX": str(OPEN_MPI),
        "LD_LIBRARY_PATH": str(OPEN_MPI / "lib"),
        "MPI4PY_LIBMPI": str(OPEN_MPI / "lib" / "libmpi.so.40"),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    version, buffers, objects = told(OPEN_MPI / "bin" / "mpirun", env, "--oversubscribe")
    assert "Open MPI" in version
    assert buffers == [[2]] * 8  # (2^24 + 1) + (1 + 1): a tree
    assert objects == "((0+1)+(2+3))"
