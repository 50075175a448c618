"""Rows as programs here show and keep them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def show(rows: Iterable[Row]) -> None:
    """A line a row: name=value."""
    for row in rows:
        print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)


def keep(file: str | Path, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """A new CSV file with these columns, or the first row's."""
    with open(file, "w", newline="") as stream:
        writer = csv.DictWriter(stream, columns or list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
