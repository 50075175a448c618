"""Commands that run MPI programs, and the environment in which their MPI calls reach plait.

A launcher is no MPI program: what counts is the program behind it. The drop-in finds the MPI that
the program loads by itself, and does nothing in a process that calls none.
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
    """Whether a command's first word starts MPI ranks; Debian adds the MPI's name behind a dot."""
    name = Path(word).name
    return name in LAUNCHERS or name.split(".")[0] in ("mpirun", "mpiexec")


def why(command: Sequence[str], imports: set[str]) -> str:
    """What makes a command an MPI program; empty where it is none, or one of NCCL too."""
    if "mpi4py" in imports:
        return "mpi4py calls MPI"
    for word in command:
        program = shutil.which(word)
        if program is None or is_launcher(word) or not elf.is_elf(program):
            continue
        needed = set(elf.all_needed(program))
        if any(name.startswith("libnccl.so") for name in needed):
            return ""
        if any(name.startswith(LIBRARIES) for name in needed):
            return f"{Path(program).name} links MPI"
    return ""


def said(environ: dict[str, str]) -> str:
    """What the drop-in will do in such an environment."""
    if environ.get("PLAIT_MPI_HOST") == "1":
        return "before the MPI that it loads, for device memory and collectives on host memory"
    return "before the MPI that it loads, for device memory; for host memory, set PLAIT_MPI_HOST=1"
