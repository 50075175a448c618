"""Test suites of other projects: a case that passes bare must pass with the drop-in.

    python tests/mpi/suites/run.py mpich --mpi openmpi --folders coll attr --most-ranks 4
    python tests/mpi/suites/run.py mpi4py --ranks 1 2

`mpich` is MPICH's suite from Debian's source package (apt-get), built for any MPI. `mpi4py` is the
tests of the mpi4py package, from PyPI. The repository holds neither: both lie below
build/mpi/suites. The drop-in serves host memory of all sizes.

Prints the cases that fail bare, and the cases that fail with the drop-in alone; the exit status is
1 if a case fails with the drop-in alone. fails_bare.csv lists known failures by suite, MPI and
case.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mpi4py_suite
import mpich_suite
from cases import Suite, SuiteCase
from mpi_programs import FOUND, ROOT, Mpi

TABLE = Path(__file__).with_name("fails_bare.csv")


def known_failures(suite: str, mpi: str) -> set[str]:
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["case"] for row in rows if (row["suite"], row["mpi"]) == (suite, mpi)}


def is_worse(suite: Suite, case: SuiteCase, drop_in: Path) -> bool:
    """Runs a case again that passed bare and failed with the drop-in; returns whether both repeat.
    On a busy machine some cases time out at random."""
    for _ in range(2):
        if suite.run(case, drop_in).passed:
            print(f"  by turns: {case.name} passed with the drop-in at a second try")
            return False
        if not suite.run(case, None).passed:
            print(f"  by turns: {case.name} failed bare at a second try")
            return False
    return True


def compare(suite: Suite, mpi: str, drop_in: Path) -> bool:
    """Runs all cases bare and with the drop-in; returns whether the drop-in breaks none."""
    known = known_failures(suite.name, mpi)
    counts: dict[str, Counter[str]] = {"bare": Counter(), "with the drop-in": Counter()}
    worse = []
    for case in suite.cases():
        bare, preloaded = suite.run(case, None), suite.run(case, drop_in)
        counts["bare"][bare.word] += 1
        counts["with the drop-in"][preloaded.word] += 1
        if not bare.passed:
            new = "" if case.name in known else " (not in fails_bare.csv)"
            print(f"  fails bare{new}: {case.name}: {bare.detail}", flush=True)
        elif not preloaded.passed and is_worse(suite, case, drop_in):
            worse.append(case)
            print(f"  fails with the drop-in alone: {case.name}: {preloaded.detail}", flush=True)
    for way, found in counts.items():
        said = ", ".join(f"{count} {word}" for word, count in sorted(found.items()))
        print(f"{suite.name}, {mpi}, {way}: {said}", flush=True)
    return not worse


def chosen(name: str) -> list[Mpi]:
    found = [mpi for mpi in FOUND if name in ("", mpi.name)]
    if not found:
        raise SystemExit(f"no MPI named {name!r}; found {[mpi.name for mpi in FOUND]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=["mpich", "mpi4py"])
    parser.add_argument("--mpi", default="", help="one of those that tests/mpi finds; default: all")
    parser.add_argument("--folders", nargs="+", default=list(mpich_suite.FOLDERS))
    parser.add_argument("--most-ranks", type=int, default=4, help="cases with more are left out")
    parser.add_argument("--only", default="", help="for lines of MPICH's lists, an expression")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], help="of mpi4py's tests")
    parser.add_argument("--limit", type=float, default=60, help="seconds for a case of MPICH's")
    asked = parser.parse_args()
    drop_in = Path(os.environ.get("MPI_SHIM", ROOT / "build/dev/shims/libplait_mpi.so"))
    if not drop_in.exists():
        raise SystemExit(f"no {drop_in}: make install builds it")
    well = True
    for mpi in chosen(asked.mpi):
        suites: list[Suite] = []
        if asked.suite == "mpich":
            built_for = mpich_suite.built(mpi, asked.folders)
            suites = [
                mpich_suite.MpichSuite(
                    mpi, built_for / folder, asked.most_ranks, asked.only, asked.limit
                )
                for folder in asked.folders
            ]
        else:
            suites = [mpi4py_suite.Mpi4pySuite(mpi, ranks) for ranks in asked.ranks]
        for suite in suites:
            if why := suite.why_not():
                print(f"{suite.name}, {mpi.name}: left out: {why}", flush=True)
                continue
            well = compare(suite, mpi.name, drop_in) and well
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
