"""Paths and environments of the tests. Not in conftest.py: that name is ambiguous among folders."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def plain_env(extra: dict[str, str]) -> dict[str, str]:
    """Returns this environment without plait's variables, plus `extra`. The first start measures
    only if `extra` has PLAIT_AUTOTUNE=1."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PLAIT_")}
    return {**kept, "PLAIT_AUTOTUNE": "0", **extra}
