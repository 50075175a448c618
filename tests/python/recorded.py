"""Reads the tables of bench/results for tests, through bench/lib/rows.py."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench.lib.rows import RESULTS  # noqa: E402
from bench.lib.rows import read as rows  # noqa: E402

__all__ = ["RESULTS", "ROOT", "rows"]
