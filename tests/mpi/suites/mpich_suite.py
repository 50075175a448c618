"""MPICH's own tests, from Debian's source package, built for an MPI of this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from cases import SuiteCase, SuiteOutcome
from mpi_programs import ROOT, Mpi, environment, launched

FOLDERS = ("coll", "pt2pt", "comm", "attr", "topo", "threads/comm", "threads/pt2pt", "errhan")
WORK = ROOT / "build" / "mpi" / "suites"
# Functions that MPI 3.0 removed: Open MPI's header refuses the names.
REMOVED = ("hvector", "hindexed", "struct")


def fetched() -> Path:
    """The suite's sources from `apt-get source`; apt's own lists stay unchanged."""
    sources = WORK / "mpich" / "test" / "mpi"
    if sources.exists():
        return sources
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    found = Path("/etc/apt/sources.list.d/debian.sources")
    if shutil.which("apt-get") is None or not found.exists():
        raise SystemExit("MPICH's suite comes from Debian's source package: wanted apt-get there")
    (WORK / "sources.sources").write_text(
        re.sub(r"(?m)^Types:.*$", "Types: deb-src", found.read_text())
    )
    options = [
        f"-oDir::Etc::sourcelist={WORK}/sources.sources",
        "-oDir::Etc::sourceparts=-",
        f"-oDir::State::lists={WORK}/lists",
    ]
    subprocess.run(["apt-get", *options, "update", "-qq"], check=True, timeout=300)
    command = ["apt-get", *options, "source", "-qq", "--download-only", "mpich"]
    subprocess.run(command, check=True, cwd=WORK, timeout=600)
    (archive,) = WORK.glob("mpich_*.orig.tar.*")
    with tarfile.open(archive) as packed:
        inside = re.compile(r"^mpich-[^/]+/(test/mpi(/.*)?)$")
        for member in packed:
            if match := inside.match(member.name):
                member.name = "mpich/" + match[1]
                packed.extract(member, WORK, filter="data")
    return sources


def built(mpi: Mpi, folders: list[str]) -> Path:
    """The suite built for this MPI; tests that need a newer MPI are not built."""
    made = WORK / f"mpich-{mpi.name.replace(' ', '-')}"
    compiler = mpi.compiler.replace("mpicxx", "mpicc")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if not (made / "config.status").exists():
        shutil.copytree(fetched(), made, symlinks=True, dirs_exist_ok=True)
        for source in (made / "dtpools" / "src").glob("*.c"):
            words = source.read_text()
            for name in REMOVED:
                words = re.sub(rf"\bMPI_Type_{name}\b", f"MPI_Type_create_{name}", words)
            source.write_text(words)
        options = ["fortran", "cxx", "spawn", "ft-tests", "perftest"]
        command = ["./configure", *(f"--disable-{option}" for option in options)]
        # This runner launches by itself; the compiler is named, since Debian may have two MPIs.
        command += [f"MPICC={compiler}", f"CC={compiler}", f"MPIEXEC={mpi.launcher}"]
        done = subprocess.run(command, cwd=made, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{mpi.name}: configure of MPICH's suite: {done.stdout[-2000:]}")
    for folder in ("util", "dtpools", *folders):
        subprocess.run(["make", "-C", str(made / folder), "-k", "-j2"], **quiet)
    return made


class MpichSuite:
    """The testlist of a folder, a case a line."""

    def __init__(self, mpi: Mpi, folder: Path, most_ranks: int, only: str, limit_s: float):
        self.mpi, self.folder, self.most_ranks = mpi, folder, most_ranks
        self.only, self.limit_s = re.compile(only), limit_s
        self.name = f"mpich/{folder.parent.name + '/' if 'threads' in str(folder) else ''}"
        self.name += folder.name

    def why_not(self) -> str:
        return "" if (self.folder / "testlist").exists() else f"no testlist in {self.folder}"

    def cases(self) -> list[SuiteCase]:
        found = []
        for line in (self.folder / "testlist").read_text().splitlines():
            words = line.split("#")[0].split()
            if not words or not self.only.search(line):
                continue
            ranks, settings, arguments, known = 2, [], [words[0]], True
            for word in words[1:]:
                key, _, value = word.partition("=")
                if word.isdigit():
                    ranks = int(word)
                elif key == "arg":
                    arguments.append(value)
                elif key == "env":
                    settings.append(tuple(value.split("=", 1)))
                elif key == "resultTest":  # judged by a script of the suite's
                    known = False
            if known:
                name = " ".join([*arguments, str(ranks), *(word for word, _ in settings)])
                found.append(SuiteCase(name, ranks, tuple(arguments), tuple(settings)))
        return found

    def run(self, case: SuiteCase, drop_in: Path | None) -> SuiteOutcome:
        program = self.folder / case.words[0]
        if not program.exists():
            return SuiteOutcome(True, "not built")
        if case.ranks > self.most_ranks:
            return SuiteOutcome(True, "too many ranks")
        env = environment(drop_in, **dict(case.settings))
        command = [str(program), *case.words[1:]]
        try:
            done = launched(self.mpi, case.ranks, command, env, self.limit_s)
        except subprocess.TimeoutExpired:
            return SuiteOutcome(False, "late", f"not done after {self.limit_s:.0f} s")
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        well = [re.match(r"(No [Ee]rrors|Test [Pp]assed)", line) for line in lines]
        if done.returncode == 0 and lines and all(well):
            return SuiteOutcome(True, "passed")
        others = [line for line, good in zip(lines, well, strict=True) if not good]
        said = (others + done.stderr.splitlines() + [""])[0]
        return SuiteOutcome(False, "failed", f"status {done.returncode}: {said[:150]}")
