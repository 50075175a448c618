"""The examples under MPI, bare and with the drop-in, compared with a single process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mpi_programs import ROOT, Mpi, environment, launched

EXAMPLES = {
    "mpi_fft.py": ["--edge", "24", "--rounds", "2"],
    "mpi_stencil.py": ["--edge", "10", "--steps", "5"],
    "mpi_sums.py": [],
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_example(mpi: Mpi, drop_in: Path, name: str, ranks: int) -> None:
    pytest.importorskip("mpi4py")
    if mpi.name != "mpich of Python":
        pytest.skip("mpi4py here is made for the MPICH of this Python")
    command = [sys.executable, str(ROOT / "examples" / name), *EXAMPLES[name]]
    for preloaded in (None, drop_in):
        done = launched(mpi, ranks, command, environment(preloaded), 60)
        assert done.returncode == 0, done.stderr[-2000:]
        assert f"{ranks} ranks" in done.stdout
