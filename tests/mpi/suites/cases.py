"""Interface of a test suite that run.py drives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class SuiteCase:
    name: str
    ranks: int = 1
    words: tuple[str, ...] = ()  # program and arguments
    settings: tuple[tuple[str, str], ...] = ()  # environment variables


@dataclass(frozen=True)
class SuiteOutcome:
    passed: bool  # also true for a case that cannot run
    word: str  # "passed", "failed", "not built", "too many ranks"
    detail: str = ""


class Suite(Protocol):
    name: str

    def why_not(self) -> str:
        """The reason why the suite cannot run; empty if the suite can."""

    def cases(self) -> list[SuiteCase]: ...

    def run(self, case: SuiteCase, drop_in: Path | None) -> SuiteOutcome: ...
