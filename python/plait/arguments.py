"""Checks arguments of communicators and of their calls; an error names the argument. The arrays are
checked in arrays.py and blocks.py."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from plait._core import InvalidArgumentError

Params = Mapping[str, int]


class How(NamedTuple):
    """Keyword arguments of all calls (`how`). An unknown keyword raises TypeError."""

    strategy: str = ""
    params: Params | None = None
    scalar: float = 1.0
    scalars: Sequence[float] | None = None
    stream: Any = None


def how_of(given: Mapping[str, Any]) -> How:
    """Returns the keyword arguments of a call; raises TypeError for an unknown keyword."""
    if unknown := [name for name in given if name not in How._fields]:
        *most, last = How._fields
        raise TypeError(
            f"unknown keyword {', '.join(unknown)}: wanted {', '.join(most)} or {last} beside the "
            "call's own arguments"
        )
    return How(**given)


def way_of(strategy: Any, params: Any) -> tuple[str, dict[str, int]]:
    """Returns name and parameters of a strategy; "ring:segments=2" states both."""
    name, given = text_of(strategy, "strategy"), params_of(params)
    if ":" not in name:
        return name, given
    if given:
        raise InvalidArgumentError(
            f"wanted the parameters in strategy= or in params=, found {name!r:.60} and {given}"
        )
    from plait.bench import sizes  # imports plait

    name, given = sizes.parse_strategy(name, "a strategy such as ring:segments=2")
    return name, params_of(given)


def check_launched(wanted: tuple[int, int], launched: tuple[int, int], name: str) -> None:
    """Checks that a rank, or a number of ranks, given alone is the launcher's.

    wanted, launched: rank and ranks. name: the argument that the caller gave. Raises
    InvalidArgumentError.
    """
    if wanted == launched:
        return
    other = "ranks" if name == "rank" else "rank"
    value = dict(zip(("rank", "ranks"), wanted, strict=True))[name]
    found = (
        f"found rank {launched[0]} of {launched[1]} by the launcher's variables"
        if launched[1] > 1
        else f"found no launcher of several ranks that gives {other}"
    )
    raise InvalidArgumentError(
        f"{name}={value}: wanted {other}= beside {name}=, {found}; pass both"
    )


def scalar_of(scalar: Any) -> float:
    try:
        return float(scalar)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(f"wanted a number as scalar, found {scalar!r:.60}") from None


def scalars_of(how: How, ranks: int) -> list[float]:
    """Returns every rank's factor; peers' factors are used on GPUs only."""
    if how.scalars is None:
        return [scalar_of(how.scalar)] * ranks
    if not isinstance(how.scalars, Iterable):
        raise InvalidArgumentError(f"wanted {ranks} scalars, one a rank, found {how.scalars!r:.60}")
    found = [scalar_of(scalar) for scalar in how.scalars]
    if len(found) != ranks:
        raise InvalidArgumentError(f"wanted {ranks} scalars, one a rank, found {len(found)}")
    return found


def params_of(params: Any) -> dict[str, int]:
    """Returns params for the core: names and 64-bit integers."""
    if params is None:
        return {}
    try:
        given = {text_of(name, "params"): operator.index(value) for name, value in params.items()}
    except (TypeError, AttributeError):
        raise InvalidArgumentError(
            f"wanted params such as {{'pieces': 2}}, found {params!r:.60}"
        ) from None
    for name, value in given.items():
        if not -(1 << 63) <= value < 1 << 63:
            raise InvalidArgumentError(
                f"wanted 64 bits for params {name!r:.60}, found {value.bit_length()}"
            )
    return given


def text_of(word: Any, what: str) -> str:
    if not isinstance(word, str) or not (word.isascii() or _is_utf8(word)):
        raise InvalidArgumentError(f"wanted text as {what}, found {word!r:.60}")
    return word


def _is_utf8(word: str) -> bool:
    """Returns False for text with half a surrogate pair, which the core does not take."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def masks_of(given: Any, name: str) -> list[str]:
    """Returns masks of links as a list; raises InvalidArgumentError for a single text."""
    if not isinstance(given, str) and isinstance(given, Iterable):
        return [text_of(mask, name) for mask in given]
    raise InvalidArgumentError(
        f"{name}: wanted texts, found {given!r:.60}; take a list such as ['nvlink:0-1']"
    )


def id_of(given: Any) -> str:
    """Returns a unique id as text; raises InvalidArgumentError if empty or of another type."""
    found = given.decode("ascii", "replace") if isinstance(given, bytes) else given
    if not isinstance(found, str) or not found:
        raise InvalidArgumentError(
            f"unique_id: wanted the text that plait.unique_id() returns, found {given!r:.60}"
        )
    return found
