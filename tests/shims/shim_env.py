"""Where things are, and what programs of the tests are told. Not in conftest.py, of which there are
several: the name would mean whichever was loaded last."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def plain_env(extra: dict[str, str]) -> dict[str, str]:
    """This process's environment without anything that steers plait, and with `extra`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PLAIT_")}
    return {**kept, **extra}
