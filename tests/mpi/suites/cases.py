"""What a suite is to run.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class SuiteCase:
    name: str
    ranks: int = 1
    words: tuple[str, ...] = ()  # of its command
    settings: tuple[tuple[str, str], ...] = ()  # of its environment


@dataclass(frozen=True)
class SuiteOutcome:
    device_ptr: bool
    word: str  # "passed", "failed", "not built", "too many ranks"
    said: str = ""


class Suite(Protocol):
    name: str

    def why_not(self) -> str:
        """Why it cannot run at all; empty where it can."""

    def cases(self) -> list[SuiteCase]: ...

    def run(self, case: SuiteCase, drop_in: Path | None) -> SuiteOutcome: ...
