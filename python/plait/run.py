"""`plait run -- cmd`: the environment that leads a program's NCCL or MPI calls to plait.

`plait run` has four entry points (--via): `preload` for programs that link libnccl (PyTorch, CuPy,
nccl-tests), `audit` for programs that open libnccl and look functions up by handle (JAX, vLLM,
ctypes), `library` for programs that take a path to NCCL, and `mpi` for MPI programs
(mpi_programs.py). The drop-in itself decides, the same on all ranks, whether it serves a
communicator.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from plait import elf, gpu, mpi_programs

ENTRY_POINTS = ("preload", "audit", "library", "mpi")
# Modules that open libnccl by name or path instead of linking it.
OPENS_BY_HANDLE = {
    "jax": "JAX looks NCCL up by handle",
    "jaxlib": "JAX looks NCCL up by handle",
    "flax": "JAX looks NCCL up by handle",
    "vllm": "vLLM opens NCCL with ctypes",
    "sglang": "SGLang opens NCCL with ctypes",
    "xgboost": "XGBoost opens NCCL by name",
    "tensorflow": "TensorFlow looks NCCL up by handle",
}
LINKS = {"torch": "PyTorch links NCCL", "cupy": "CuPy links NCCL"}
# Of a program that imports mpi4py too: what shows calls of NCCL by these modules.
CALLS_NCCL = re.compile(
    r"torch\.distributed|torch import distributed|DistributedDataParallel|torchrun"
    r"|cupyx\.distributed|cupy\.cuda\.nccl|cuda import nccl"
)
NAME = "libnccl.so.2"


@dataclass(frozen=True)
class RunPlan:
    """How to run a command. via: the entry point, empty = run unchanged; said: the reason."""

    via: str
    env: dict[str, str]
    said: str


def drop_in_folder() -> Path:
    """Returns the folder of plait's libraries, that of this module."""
    return Path(__file__).absolute().parent


def has_kernels(library: Path) -> bool:
    """Returns whether a drop-in was built with device code; without device code a drop-in serves
    nothing."""
    try:
        return bool(ctypes.CDLL(str(library)).plait_nccl_has_kernels())
    except (OSError, AttributeError):
        return False


def find_nccl(command: Sequence[str] = ()) -> Path | None:
    """Returns the libnccl that the command most likely uses; None if none is found."""
    if named := os.environ.get("PLAIT_NCCL_LIB"):
        return Path(named)
    for packages in package_folders(command):
        found = packages / "nvidia" / "nccl" / "lib" / NAME
        if found.exists():
            return found
    for folder in [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_system_folders()]:
        if folder and (Path(folder) / NAME).exists():
            return Path(folder) / NAME
    return None


def _system_folders() -> list[str]:
    return [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/local/cuda/lib64",
    ]


def package_folders(command: Sequence[str]) -> list[Path]:
    """Returns the site-packages of the command's interpreter, else of this interpreter."""
    interpreter = interpreter_of(command)
    prefixes = [interpreter.parent.parent] if interpreter else []
    found = [path for prefix in prefixes for path in prefix.glob("lib/python3*/site-packages")]
    return found or [Path(entry) for entry in sys.path if entry.endswith("-packages")]


def interpreter_of(command: Sequence[str]) -> Path | None:
    """Returns the Python that runs a command: the command itself or the interpreter in the
    command's #! line."""
    program = shutil.which(command[0]) if command else None
    if program is None:
        return None
    if re.match(r"python3?(\.\d+)?$", Path(program).name):
        return Path(program)
    with open(program, "rb") as file:
        first = file.readline(512)
    match = re.match(rb"#!\s*(\S*python[\d.]*)", first)
    return Path(match.group(1).decode()) if match else None


def _sources(command: Sequence[str]) -> list[str]:
    """Returns the texts of a Python command: of scripts, of `-c`, and of `-m` in this folder."""
    files, texts = [Path(word) for word in command if word.endswith(".py")], []
    for option, word in pairwise(command):
        if option == "-m" and re.fullmatch(r"\w{1,99}(\.\w{1,99})*", word):
            place = Path(*word.split("."))
            files += [place.with_suffix(".py"), place / "__main__.py"]
        if option == "-c":
            texts.append(word)
    return texts + [file.read_text(errors="replace") for file in files if file.is_file()]


def imported(command: Sequence[str]) -> set[str]:
    """Returns top-level modules of a Python command: the program's imports and `-m` modules."""
    names = {word.split(".")[0] for option, word in pairwise(command) if option == "-m"}
    for source in _sources(command):
        names |= set(re.findall(r"(?:^|;)\s*(?:import|from)\s+(\w+)", source, re.M))
    if command:
        names.add(Path(command[0]).name)
    return names


def entry_point_for(command: Sequence[str]) -> tuple[str, str]:
    """Returns (entry point, why): the lightest entry point that reaches the command's NCCL or MPI
    calls."""
    names = imported(command)
    for name in sorted(names & OPENS_BY_HANDLE.keys()):
        return "audit", OPENS_BY_HANDLE[name]
    # Programs with MPI have torch or cupy for arrays alone, mostly.
    if "mpi4py" not in names or CALLS_NCCL.search("\n".join([*_sources(command), *command])):
        for name in sorted(names & LINKS.keys()):
            return "preload", LINKS[name]
    program = shutil.which(command[0]) if command else None
    if program is not None and elf.is_elf(program) and interpreter_of(command) is None:
        if any(needed.startswith("libnccl.so") for needed in elf.all_needed(program)):
            return "preload", f"{Path(program).name} links NCCL"
        if b"libnccl.so" in Path(program).read_bytes():
            return "audit", f"{Path(program).name} opens NCCL by name"
    if found := mpi_programs.entry_point(command, names):
        return found
    return "preload", "the default; --via audit serves programs that open NCCL by handle"


def plan(
    command: Sequence[str],
    via: str = "",
    drop_in: str = "",
    environ: Mapping[str, str] = os.environ,
) -> RunPlan:
    """Returns how `plait run` runs a command. drop_in: a library in place of plait's own."""
    env = dict(environ)
    why = "as asked"
    if not via:
        via, why = entry_point_for(command)
    name = mpi_programs.LIBRARY if via == "mpi" else "libplait_nccl.so"
    library = Path(drop_in) if drop_in else drop_in_folder() / name
    if not library.exists():
        built_by = "" if drop_in else " (`make install` or `pip install .` builds it)"
        return RunPlan("", env, f"no drop-in at {library}{built_by}: running without it")
    if " " in str(library) or ":" in str(library):  # the loader would take it for two paths
        return RunPlan(
            "",
            env,
            "LD_PRELOAD wants a path without spaces and colons, and the drop-in is at "
            f"'{library}'; install plait in another folder: running without it",
        )
    if via == "mpi":
        env["LD_PRELOAD"] = _behind_tools(library, env.get("LD_PRELOAD"))
        return RunPlan(via, env, f"via {via} ({why}), {mpi_programs.describe(env)}")
    if not has_kernels(library):
        return RunPlan("", env, f"{library} was built without nvcc: running without it")
    if not drop_in and (reason := gpu.why_none()):
        return RunPlan("", env, f"{reason}: running without the drop-in")
    nccl = find_nccl(command)
    if via == "library" and nccl is None:
        return RunPlan("", env, f"no {NAME} found (name it in PLAIT_NCCL_LIB): running without it")
    env.setdefault("PLAIT_DEBUG", "WARN")
    first = library
    if via == "audit":
        env["LD_AUDIT"] = _before(library.parent / "libplait_audit.so", env.get("LD_AUDIT"))
    if via == "library":
        first = library.parent / "nccl" / NAME
        env["LD_LIBRARY_PATH"] = _before(first.parent, env.get("LD_LIBRARY_PATH"))
        env["PLAIT_NCCL_LIB"] = str(nccl)
        env["VLLM_NCCL_SO_PATH"] = str(first)
    missing = [path for path in (first, _audit_of(env, via)) if path and not path.exists()]
    if missing:
        return RunPlan("", dict(environ), f"no {missing[0]} in this build: running without it")
    env["LD_PRELOAD"] = _before(first, env.get("LD_PRELOAD"))
    below = f"NCCL at {nccl}" if nccl else "the program's own NCCL"
    return RunPlan(via, env, f"via {via} ({why}), before {below}")


def _audit_of(env: Mapping[str, str], via: str) -> Path | None:
    return Path(env["LD_AUDIT"].split(":")[0]) if via == "audit" else None


def _before(path: Path, rest: str | None) -> str:
    return f"{path}:{rest}" if rest else str(path)


# Beginnings of the names of MPI libraries.
OF_MPI = ("libmpi.", "libmpi_", "libmpich", "libmpifort", "libpmpi.")


def _behind_tools(drop_in: Path, rest: str | None) -> str:
    """Returns LD_PRELOAD with the drop-in behind tools of MPI's profiling interface, whose PMPI
    calls the drop-in serves, and before an MPI library."""
    libraries = (rest or "").replace(":", " ").split()
    names = [Path(one).name for one in libraries]
    of_mpi = (at for at, name in enumerate(names) if name.startswith(OF_MPI))
    libraries.insert(next(of_mpi, len(libraries)), str(drop_in))
    return ":".join(libraries)


def run(command: Sequence[str], via: str = "", drop_in: str = "") -> None:
    """Prints a line and executes the command in this process (execvp). Raises OSError."""
    chosen = plan(command, via, drop_in)
    print(f"plait: {chosen.said}", file=sys.stderr, flush=True)
    os.execvpe(command[0], list(command), chosen.env)


def nccl_version(library: Path) -> int:
    """Returns the version of a libnccl; 0 if the file cannot be loaded."""
    try:
        number = ctypes.c_int()
        if ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(number)) == 0:
            return number.value
    except (OSError, AttributeError):
        pass
    return 0
