"""What a suite is to run.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Case:
    name: str
    ranks: int = 1
    words: tuple[str, ...] = ()  # of its command
    settings: tuple[tuple[str, str], ...] = ()  # of its environment


@dataclass(frozen=True)
class Outcome:
    passed: bool
    word: str  # "passed", "failed", "not built", "too many ranks"
    said: str = ""


class Suite(Protocol):
    name: str

    def why_not(self) -> str:
        """Why it cannot run at all; empty where it can."""

    def cases(self) -> list[Case]: ...

    def run(self, case: Case, drop_in: Path | None) -> Outcome: ...
