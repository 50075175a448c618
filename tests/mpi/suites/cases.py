"""The interface of a suite to run.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class SuiteCase:
    name: str
    ranks: int = 1
    words: tuple[str, ...] = ()  # of the command
    settings: tuple[tuple[str, str], ...] = ()  # of the environment


@dataclass(frozen=True)
class SuiteOutcome:
    device_ptr: bool
    word: str  # "passed", "failed", "not built", "too many ranks"
    said: str = ""


class Suite(Protocol):
    name: str

    def why_not(self) -> str:
        """The reason why the suite cannot run; empty if it can."""

    def cases(self) -> list[SuiteCase]: ...

    def run(self, case: SuiteCase, drop_in: Path | None) -> SuiteOutcome: ...
