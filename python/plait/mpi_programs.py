"""Recognises MPI programs in commands, for `plait run`.

Skips launchers (mpirun, srun) and looks at the started program. The drop-in finds the MPI that the
program loads by itself, and does nothing in a process without MPI.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from plait import elf

LIBRARY = "libplait_mpi.so"
LIBRARIES = ("libmpi.so", "libmpich.so", "libmpi_", "libmpifort", "libmpicxx")
LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun", "srun"}


def is_launcher(word: str) -> bool:
    """Returns whether a command's first word starts MPI ranks. Debian has mpirun.openmpi etc."""
    name = Path(word).name
    return name in LAUNCHERS or name.split(".")[0] in ("mpirun", "mpiexec")


def entry_point(command: Sequence[str], imports: set[str]) -> tuple[str, str] | None:
    """Returns (entry point, why) of a program of MPI, or of one behind a launcher that links NCCL;
    None for others. An unknown program counts as MPI's behind a launcher, but for srun."""
    if "mpi4py" in imports:
        return "mpi", "mpi4py calls MPI"
    for word in command:
        program = shutil.which(word)
        if program is None or is_launcher(word) or not elf.is_elf(program):
            continue
        needed, name = set(elf.all_needed(program)), Path(program).name
        if any(library.startswith("libnccl.so") for library in needed):
            return "preload", f"{name} links NCCL"
        if any(library.startswith(LIBRARIES) for library in needed):
            return "mpi", f"{name} links MPI"
    first = Path(command[0]).name if command else ""
    if first != "srun" and is_launcher(first):
        return "mpi", f"{first} starts MPI programs; --via preload serves the NCCL of others"
    return None


def describe(environ: dict[str, str]) -> str:
    """Returns what the drop-in will serve in this environment."""
    if environ.get("PLAIT_MPI_HOST") == "1":
        return "before the MPI that it loads, for device memory and collectives on host memory"
    return "before the MPI that it loads, for device memory; for host memory, set PLAIT_MPI_HOST=1"
