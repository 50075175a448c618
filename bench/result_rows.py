"""Rows of results: reads the CSV files of bench/results, prints rows, writes them.

Standard library only. Programs of bench/, the generators of docs/performance.md and bench/notes,
and tests read results through this module.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
RESULTS = Path(__file__).resolve().parent / "results"
KIND = "kind: "  # begins the comment that names the GPUs, spelled as in PLAIT_MEASURED_ON


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


def show(rows: Iterable[Row]) -> None:
    """Prints one line a row: name=value."""
    for row in rows:
        print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)


def keep(file: str | Path, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """Writes a new CSV file with `columns`, or with the columns of the first row."""
    with open(file, "w", newline="") as stream:
        writer = csv.DictWriter(stream, columns or list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
