"""Rows of results: reads the CSV files of bench/results, prints rows, writes them.

Standard library only. Programs of bench/, the generators of docs/performance.md and bench/notes,
and tests read results through this module.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

Row = Mapping[str, Any]
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
KIND = "kind: "  # begins the comment that names the GPUs, spelled as plait.gpu.kind() does


def read(file: str | Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file. A relative name is a file of bench/results."""
    lines = (RESULTS / file).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if line and not line.startswith("#")))


def comments(file: str | Path) -> list[str]:
    """Returns the comment lines of a CSV file (machine, date, commit, command), without `# `."""
    lines = (RESULTS / file).read_text().splitlines()
    return [line.removeprefix("#").strip() for line in lines if line.startswith("#")]


def kind_of(file: str | Path) -> str:
    """Returns the kind of GPUs that a file's rows were measured on; empty if it names none."""
    kinds = [line.removeprefix(KIND) for line in comments(file) if line.startswith(KIND)]
    return kinds[0] if kinds else ""


def of_files(folder: Path, pattern: str) -> Iterator[dict[str, str]]:
    """Yields the rows of all files of a run that match."""
    for file in sorted(folder.glob(pattern)):
        yield from read(file)


def show(rows: Iterable[Row]) -> None:
    """Prints one line a row: name=value."""
    for row in rows:
        print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)


def keep(file: str | Path | None, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """Writes a new CSV file with `columns`, or with the columns of the first row; None = none."""
    if file is None or not (rows or columns):
        return
    with open(file, "w", newline="") as stream:
        writer = csv.DictWriter(stream, columns or list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def add(file: Path, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """Appends rows to a CSV file; a new file gets its head first."""
    with file.open("a", newline="") as stream:
        names = columns or list(rows[0])
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        if stream.tell() == 0:
            writer.writeheader()
        writer.writerows(rows)


class CsvFile:
    """A CSV file that gets each row as soon as it is measured; no file if `file` is None."""

    def __init__(
        self, file: Path | None, columns: Iterable[str], comments: Iterable[str] = ()
    ) -> None:
        self.columns = list(columns)
        self.stream: IO[str] = open(file or os.devnull, "w", newline="")  # noqa: SIM115
        for line in comments:
            self.stream.write(f"# {line}\n")
        self.writer = csv.writer(self.stream, lineterminator="\n")
        self.writer.writerow(self.columns)
        self.stream.flush()

    def write(self, row: Row) -> None:
        values = [row.get(name, "") for name in self.columns]
        self.writer.writerow([f"{one:.3f}" if isinstance(one, float) else one for one in values])
        self.stream.flush()


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


UNKNOWN = "unknown"  # commit of a build that names none


def commit() -> str:
    """Returns the commit of the package plait that runs: the one in the file beside a staged
    package, or this checkout's for a package installed below the checkout; else UNKNOWN."""
    spec = importlib.util.find_spec("plait")
    if spec is None or spec.origin is None:
        return UNKNOWN
    folder = Path(spec.origin).resolve().parents[1]
    if (folder / "commit").exists():
        return (folder / "commit").read_text().strip()
    return checkout_commit() if folder.is_relative_to(ROOT) else UNKNOWN


def checkout_commit() -> str:
    """Returns this checkout's commit, with "-dirty" if tracked files differ; UNKNOWN without git.
    git is not asked in a folder inside another checkout."""
    if not (ROOT / ".git").exists():
        return UNKNOWN
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or UNKNOWN


def provenance(command: str, formula: str) -> dict[str, str]:
    """Returns the columns that say where, when and how a row of CPU ranks was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    machine = f"{models[0] if models else 'unknown'}, {os.cpu_count()} cores"
    facts = {"machine": machine, "commit": commit(), "date": today()}
    return facts | {"command": f"python -m bench {command}", "formula": formula}
