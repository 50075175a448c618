"""Reads the tables of bench/results for tests, through bench/result_rows.py."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from result_rows import RESULTS  # noqa: E402
from result_rows import read as rows  # noqa: E402

__all__ = ["BENCH", "RESULTS", "rows"]
