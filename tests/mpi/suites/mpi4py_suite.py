"""mpi4py's own tests, of the version installed here, under an MPI of this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from cases import SuiteCase, SuiteOutcome
from mpi_programs import ROOT, Mpi, environment, launched

WORK = ROOT / "build" / "mpi" / "suites"
LEFT_OUT = ("spawn", "dynproc", "util_pool")  # these start processes, which launchers may refuse
LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12"}
LIMIT_S = 1200


def fetched() -> Path:
    """The folder of tests of the sdist."""
    version = importlib.metadata.version("mpi4py")
    sources = WORK / f"mpi4py-{version}"
    if not (sources / "test" / "main.py").exists():
        WORK.mkdir(parents=True, exist_ok=True)
        # Not `:all:`, which compiles the build dependencies of the metadata for minutes.
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary"]
        command += ["mpi4py", f"mpi4py=={version}", "-d", str(WORK)]
        subprocess.run(command, check=True, timeout=600)
        with tarfile.open(WORK / f"mpi4py-{version}.tar.gz") as packed:
            packed.extractall(WORK, filter="data")
    return sources / "test"


def library_of(mpi: Mpi) -> str:
    """The MPI library for mpi4py: the wheel looks for names that Debian's MPICH lacks."""
    if mpi.name in LIBRARIES:
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"):
            if (Path(folder) / LIBRARIES[mpi.name]).exists():
                return str(Path(folder) / LIBRARIES[mpi.name])
        return ""
    folder = Path(mpi.launcher).parent.parent / "lib"
    names = [folder / name for name in ("libmpi.so.40", "libmpi.so.12", "libmpi.so")]
    return str(next((name for name in names if name.exists()), ""))


class Mpi4pySuite:
    """A case per test module: a module that ends the process does not end the others."""

    def __init__(self, mpi: Mpi, ranks: int):
        self.mpi, self.ranks = mpi, ranks
        self.name = f"mpi4py on {ranks}"

    def why_not(self) -> str:
        if importlib.util.find_spec("mpi4py") is None:
            return "mpi4py is not installed"
        if self.mpi.name == "mpich":
            return "mpi4py's wheel wants an MPICH whose library is named libmpi.so.12"
        return "" if library_of(self.mpi) else "its library was not found"

    def cases(self) -> list[SuiteCase]:
        modules = sorted(path.stem.removeprefix("test_") for path in fetched().glob("test_*.py"))
        return [SuiteCase(name, self.ranks) for name in modules if name not in LEFT_OUT]

    def run(self, case: SuiteCase, drop_in: Path | None) -> SuiteOutcome:
        only = f"^test_{case.name}\\.py$"
        command = [sys.executable, str(fetched() / "main.py"), "-q", "-i", only]
        env = environment(drop_in, MPI4PY_LIBMPI=library_of(self.mpi))
        try:
            done = launched(self.mpi, self.ranks, command, env, LIMIT_S)
        except subprocess.TimeoutExpired:
            return SuiteOutcome(False, "late", f"not done after {LIMIT_S} s")
        ran = re.findall(r"Ran (\d+) tests?", done.stdout + done.stderr)
        if done.returncode == 0 and len(ran) == self.ranks and int(ran[0]) == 0:
            return SuiteOutcome(False, "ran none", "it has no test of this name")
        if done.returncode == 0 and len(ran) == self.ranks:
            return SuiteOutcome(True, "passed", f"{ran[0]} tests")
        said = re.findall(r"(?m)^(?:FAIL|ERROR): .*$", done.stdout + done.stderr)
        last = (done.stderr.splitlines() or [""])[-1]
        return SuiteOutcome(
            False, "failed", f"status {done.returncode}: {(said or [last])[0][:150]}"
        )
