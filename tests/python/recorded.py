"""Tables of bench/results, as tests read them."""

from __future__ import annotations

import csv
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "bench" / "results"


def rows(name: str) -> list[dict[str, str]]:
    """A file's rows, without the lines that say where they are from."""
    lines = (RESULTS / name).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))
