"""Fixture of the Python tests that runs a function on several ranks and collects the ranks'
rows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait import launch

RunRanks = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run_ranks() -> RunRanks:
    """Returns run_ranks("module:function", ranks, task) -> rows by rank; every rank must exit 0."""

    def run(
        entry: str,
        ranks: int,
        task: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        job = launch.start(entry, ranks, task or {}, env, folder=str(Path(__file__).parent))
        rows = list(job.lines())
        statuses = job.wait()
        assert statuses == [0] * ranks, (statuses, rows)
        return sorted(rows, key=lambda row: row["rank"])

    return run


sys.path.insert(0, str(Path(__file__).parent))
