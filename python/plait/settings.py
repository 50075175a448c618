"""Checks values of PLAIT_* variables that the core reads at a later call alone, and puts name and
unit of the variable into errors of the core. Commands call check() before they do anything."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from plait import _core
from plait._core import Error, InvalidArgumentError

LEVELS = ("NONE", "VERSION", "WARN", "INFO", "EXPLAIN")


def _text(error: Error) -> str:
    return str(error).removeprefix("invalid argument: ")


@contextmanager
def of_variable(name: str) -> Iterator[None]:
    """Puts the name of a set variable before the text of an error; empty = no variable."""
    try:
        yield
    except Error as error:
        if not os.environ.get(name):
            raise
        raise type(error)(f"{name}: {_text(error)}") from None


def check() -> None:
    """Raises InvalidArgumentError for a variable that no program can use."""
    try:
        _core.check_environment()
    except InvalidArgumentError as error:
        in_seconds = r"(PLAIT_\w+_S: wanted a number) from"
        text = re.sub(in_seconds, r"\1 of seconds from", _text(error))
        raise InvalidArgumentError(text) from None
    level = os.environ.get("PLAIT_DEBUG", "")
    if level and level.upper() not in LEVELS:
        raise InvalidArgumentError(
            f"PLAIT_DEBUG: wanted {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, found '{level}'"
        )
    for name in filter(None, os.environ.get("PLAIT_OPS", "").split(",")):
        try:
            _core.Request(name, 0, "fp32", "sum", 1)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"PLAIT_OPS: {_text(error)}") from None


def check_tuning() -> None:
    """Raises InvalidArgumentError if PLAIT_TUNING names no tuning table."""
    named = os.environ.get("PLAIT_TUNING", "")
    if named in ("", "none"):
        return
    wanted, advice = "PLAIT_TUNING: wanted a tuning table", "unset it or run plait tune"
    if not Path(named).exists():
        found = f"no file {named}"
    elif Path(named).is_dir():
        found = f"{named}: Is a directory"
    else:
        try:
            _core.read_tuning(named)
        except Error as error:
            found = f"{named}: {_text(error)}"
        else:
            return
    raise InvalidArgumentError(f"{wanted}, found {found}; {advice}")


@cache
def read_table(file: str) -> str:
    """Returns the text of a tuning table; empty = none.

    Communicators go without a table of the cache folder that they cannot read, and warn. So this
    does too.
    """
    try:
        return str(_core.read_tuning(file)) if file else ""
    except Error as error:
        if os.environ.get("PLAIT_TUNING"):
            raise
        print(f"plait: {error}; calls go without the table", file=sys.stderr, flush=True)
        return ""


def algo() -> str:
    """Returns the name of the engine or strategy in PLAIT_ALGO; empty = none."""
    return os.environ.get("PLAIT_ALGO", "").partition(":")[0]


def check_algo() -> None:
    """Raises InvalidArgumentError if PLAIT_ALGO names no engine or strategy of plait."""
    engines, strategies = _core.engines(), _core.strategies()
    known = [info.name for info in (*engines, *strategies)]
    if algo() not in ("", "rotation", *_core.former_names(), *known):
        raise InvalidArgumentError(
            f"PLAIT_ALGO: wanted an engine or a strategy (one of {', '.join(dict.fromkeys(known))}"
            f"), or one that the program defines, found '{algo()}'"
        )


def named(error: InvalidArgumentError, strategy: str = "") -> InvalidArgumentError:
    """Returns the error, with PLAIT_ALGO before the text where the variable holds the name that
    the core did not find. strategy: of the call, which stands above the variable."""
    wanted = (f'found "{algo()}"', f"wanted a parameter of {algo()} ")
    if strategy or not algo() or not any(text in str(error) for text in wanted):
        return error
    return InvalidArgumentError(f"PLAIT_ALGO: {_text(error)}")
