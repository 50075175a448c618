"""Shared by tests of GPU entry points on machines without a GPU: an array that claims to lie on a
GPU, the command as a child process, and the mark of tests that want no GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from plait import gpu

without_gpu = pytest.mark.skipif(gpu.count() > 0, reason="this machine has a GPU")


class FakeGpuArray:
    """Array that reports GPU memory, as cupy arrays do."""

    def __init__(self, shape: tuple[int, ...] = (2, 3), **changes: Any) -> None:
        facts = {"shape": shape, "typestr": "<f4", "data": (1 << 40, False), "version": 3}
        self.__cuda_array_interface__ = facts | changes


def plait_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs `plait WORDS` in a child process."""
    return subprocess.run(
        [sys.executable, "-m", "plait.cli", *words], capture_output=True, text=True, timeout=120
    )
