"""The MPIs of this machine, the drop-in, and the test programs compiled with each MPI.

An MPI is the MPI of this Python's environment (MPICH), a folder of make's (build/mpi/NAME), one of
Debian's two, or the mpicxx on PATH.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAMS = ROOT / "tests" / "mpi" / "programs"
EVERYTHING = (
    "all_reduce,reduce,reduce_scatter,broadcast,all_gather,all_to_all,gather,scatter,send_recv"
)
# Allows root, and more ranks than cores; keeps MPICH's ranks from spinning.
QUIET = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
}


@dataclass(frozen=True)
class Mpi:
    """How an MPI compiles and runs programs."""

    name: str
    compiler: str
    launcher: str
    fortran: str = ""


def _found() -> list[Mpi]:
    found = []
    for folder in [Path(sys.prefix) / "bin", *sorted((ROOT / "build" / "mpi").glob("*/bin"))]:
        launcher = folder / "mpiexec"
        if (folder / "mpicxx").exists() and launcher.exists():
            name = f"{folder.parent.name} of make"
            if folder.parent == Path(sys.prefix):
                name = "mpich of Python"
            found.append(Mpi(name, str(folder / "mpicxx"), str(launcher)))
            if (folder / "mpicxx_abi").exists():  # programs of MPI 5's standard ABI
                abi = str(folder / "mpicxx_abi")
                found.append(Mpi(name.replace("mpich", "mpich abi"), abi, str(launcher)))
    for name in ("openmpi", "mpich"):
        compiler, launcher = shutil.which(f"mpicxx.{name}"), shutil.which(f"mpiexec.{name}")
        if compiler and launcher:
            found.append(Mpi(name, compiler, launcher, shutil.which(f"mpif90.{name}") or ""))
    compiler, launcher = shutil.which("mpicxx"), shutil.which("mpiexec")
    if not found and compiler and launcher:
        found.append(Mpi("on PATH", compiler, launcher, shutil.which("mpif90") or ""))
    return found


FOUND = _found()


def compiled(mpi: Mpi, folder: Path, name: str, sources: list[str], *flags: str) -> Path:
    """A program of tests/mpi/programs, compiled once for each MPI."""
    made = folder / f"{name}-{mpi.name.replace(' ', '-').replace('/', '-')}"
    if not made.exists():
        paths = [str(PROGRAMS / source) for source in sources]
        command = [mpi.compiler, "-std=c++17", "-O1", *flags, "-o", str(made), *paths]
        command += ["-ldl", "-pthread"]
        # A compiler of another MPI may stand behind the same wrapper's environment.
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    return made


def environment(drop_in: Path | None, **settings: str) -> dict[str, str]:
    """An environment in which the drop-in serves host memory of every size."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PLAIT_")}
    env = {**kept, **QUIET}
    if drop_in is not None:
        runtime = os.environ.get("SHIM_RUNTIME", "")  # a sanitizer's (tools/sanitize.sh)
        env["LD_PRELOAD"] = f"{runtime} {drop_in}".strip()
        env |= {"PLAIT_MPI_HOST": "1", "PLAIT_MIN_BYTES": "0", "PLAIT_OPS": EVERYTHING}
    return {**env, **settings}


def launched(
    mpi: Mpi,
    ranks: int,
    command: list[str],
    env: dict[str, str],
    limit_s: float = 60,
    options: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [mpi.launcher, *options, "-n", str(ranks), *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=limit_s,
        errors="replace",
    )


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Each rank's line, by rank; every rank must have succeeded."""
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return rows_of(done)


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The same if some ranks may have failed."""
    found = [json.loads(row) for row in re.findall(r'\{"rank"[^{}]*\}', done.stdout)]
    return sorted(found, key=lambda row: int(row["rank"]))


def moves_messages(mpi: Mpi) -> bool:
    """Whether the MPI has a progress hook for rendezvous: not MPICH 4.0, not the standard ABI."""
    return mpi.name != "mpich" and not mpi.name.startswith("mpich abi")


def plait_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "plait.cli", *words]
