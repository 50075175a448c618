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


def launcher_in(command: Sequence[str]) -> str:
    """Returns the launcher of MPI programs that the command begins with, or empty. srun starts any
    program."""
    name = Path(command[0]).name if command else ""
    return name if name != "srun" and is_launcher(name) else ""


def links_nccl(command: Sequence[str]) -> str:
    """Returns the program of a command, behind a launcher too, that links NCCL; empty = none."""
    for word in command:
        program = shutil.which(word)
        if program is None or not elf.is_elf(program):
            continue
        if any(name.startswith("libnccl.so") for name in elf.all_needed(program)):
            return Path(program).name
    return ""


def why(command: Sequence[str], imports: set[str]) -> str:
    """Returns the reason why a command is an MPI program; empty if not, or if it links NCCL too."""
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


def describe(environ: dict[str, str]) -> str:
    """Returns what the drop-in will serve in this environment."""
    if environ.get("PLAIT_MPI_HOST") == "1":
        return "before the MPI that it loads, for device memory and collectives on host memory"
    return "before the MPI that it loads, for device memory; for host memory, set PLAIT_MPI_HOST=1"
