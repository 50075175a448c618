"""Checks words that options name, with one form of error."""

from __future__ import annotations

from collections.abc import Iterable


def check(option: str, found: Iterable[object], known: Iterable[object]) -> None:
    """Ends the program if a word is not known."""
    wanted = [str(one) for one in known]
    if unknown := [str(one) for one in found if str(one) not in wanted]:
        raise SystemExit(f"{option}: wanted {', '.join(wanted)}, found {', '.join(unknown)}")
