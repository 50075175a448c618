"""Turns the counts of uneven collectives (all_gather_v etc.) into requests of the core.

Counts are rows along the first dimension, as torch's split sizes are; in one-dimensional arrays a
row is an element.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from plait._core import InvalidArgumentError, Request
from plait.arrays import Buffer


class BlocksKind(NamedTuple):
    """An uneven collective: the core's request, and rows and elements of this rank's output.

    sends, gets: elements by rank, if each rank knows only the rank's own counts; else empty.
    """

    request: Request
    elements: int
    has_output: bool
    rows: int
    sends: tuple[int, ...] = ()
    gets: tuple[int, ...] = ()


class Ranks(NamedTuple):
    """Rank and number of ranks of the caller."""

    rank: int
    ranks: int


_NOT_KNOWN = (1 << 64) - 1
_MOST = 1 << 62


def counts_of(given: Any, ranks: int, what: str) -> list[int]:
    """Returns an integer >= 0 per rank, from a list, tuple, numpy array or tensor."""
    if given is None:
        raise InvalidArgumentError(f"{what}: wanted {ranks} counts, one a rank, found none")
    try:
        listed = [operator.index(count) for count in _listed(given)]
    except TypeError:
        raise InvalidArgumentError(
            f"{what}: wanted {ranks} whole numbers, one a rank, found {given!r:.60}"
        ) from None
    if len(listed) != ranks:
        raise InvalidArgumentError(
            f"{what}: wanted {ranks} counts, one a rank, found {len(listed)}"
        )
    for rank, count in enumerate(listed):
        if not 0 <= count <= _MOST:
            raise InvalidArgumentError(
                f"{what}: wanted a count in 0..2^62 for rank {rank}, found {count}"
            )
    return listed


def _listed(given: Any) -> Any:
    return given.tolist() if hasattr(given, "tolist") else given


def _check_rows(source: Buffer, wanted: int, what: str) -> int:
    """Returns the elements of a row; raises if the first dimension is not `wanted`."""
    if not source.shape:
        raise InvalidArgumentError(f"{what}: wanted an array of blocks, found a single number")
    if source.shape[0] != wanted:
        raise InvalidArgumentError(
            f"{what}: wanted an array whose first dimension is {wanted}, as the counts say, "
            f"found {source.shape[0]}"
        )
    return math.prod(source.shape[1:])


def _by_all(
    who: Ranks, collective: str, source: Buffer, op: str, counts: list[int], row: int, rows: int
) -> BlocksKind:
    elements = [count * row for count in counts]
    request = Request(collective, 0, source.type, op, who.ranks, counts=elements)
    return BlocksKind(request, rows * row, True, rows)


def gathered_by_all(who: Ranks, source: Buffer, given: Any) -> BlocksKind:
    """all_gather_v: all ranks pass the same counts."""
    counts = counts_of(given, who.ranks, "counts")
    row = _check_rows(source, counts[who.rank], "all_gather_v")
    return _by_all(who, "all_gather", source, "sum", counts, row, sum(counts))


def reduced(who: Ranks, source: Buffer, given: Any, op: str) -> BlocksKind:
    """reduce_scatter_v: all ranks pass the same counts."""
    counts = counts_of(given, who.ranks, "counts")
    row = _check_rows(source, sum(counts), "reduce_scatter_v")
    return _by_all(who, "reduce_scatter", source, op, counts, row, counts[who.rank])


def exchanged(who: Ranks, source: Buffer, sends: Any, gets: Any) -> BlocksKind:
    """all_to_all_v: each rank passes its own counts."""
    sent = counts_of(sends, who.ranks, "send_counts")
    got = counts_of(gets, who.ranks, "recv_counts")
    row = _check_rows(source, sum(sent), "all_to_all_v")
    return _by_own(who, "all_to_all", source, 0, sent, got, row, sum(got), True)


def gathered(who: Ranks, source: Buffer, given: Any, root: int) -> BlocksKind:
    """gather_v: the root passes all counts, other ranks know their own."""
    _check_root(who, root)
    is_root = who.rank == root
    if not source.shape:
        raise InvalidArgumentError("gather_v: wanted an array of rows, found a single number")
    sent = _only(who, root, source.shape[0])
    got = counts_of(given, who.ranks, "counts") if is_root else _none(who)
    row = _check_rows(source, got[who.rank] if is_root else source.shape[0], "gather_v")
    return _by_own(who, "gather", source, root, sent, got, row, sum(got) if is_root else 0, is_root)


def scattered(who: Ranks, source: Buffer, given: Any, root: int) -> BlocksKind:
    """scatter_v: the root passes all counts. source: the root's array, or another rank's output."""
    _check_root(who, root)
    if who.rank != root:
        row = _check_rows(source, source.shape[0] if source.shape else 0, "scatter_v")
        rows = source.shape[0]
        got = _only(who, root, rows)
        return _by_own(who, "scatter", source, root, _none(who), got, row, rows, True)
    sent = counts_of(given, who.ranks, "counts")
    row = _check_rows(source, sum(sent), "scatter_v")
    got = _only(who, root, sent[who.rank])
    return _by_own(who, "scatter", source, root, sent, got, row, sent[who.rank], True)


def rank_number(given: Any, what: str) -> int:
    """Returns a rank of the caller's as a number; what: the argument, for errors."""
    try:
        number = operator.index(given)
    except TypeError:
        raise InvalidArgumentError(f"wanted a rank as {what}, found {given!r:.60}") from None
    if abs(number) >= 1 << 31:
        raise InvalidArgumentError(f"wanted a rank as {what}, found {given!r:.60}")
    return number


def _check_root(who: Ranks, root: int) -> None:
    if not 0 <= rank_number(root, "root") < who.ranks:
        raise InvalidArgumentError(f"wanted a root in 0..{who.ranks - 1}, found {root}")


def _none(who: Ranks) -> list[int]:
    return [_NOT_KNOWN] * who.ranks


def _only(who: Ranks, peer: int, count: int) -> list[int]:
    return [count if rank == peer else _NOT_KNOWN for rank in range(who.ranks)]


def _by_own(
    who: Ranks,
    collective: str,
    source: Buffer,
    root: int,
    sent: list[int],
    got: list[int],
    row: int,
    rows: int,
    has_output: bool,
) -> BlocksKind:
    def elements(counts: list[int]) -> tuple[int, ...]:
        return tuple(count if count == _NOT_KNOWN else count * row for count in counts)

    request = Request(collective, 0, source.type, "sum", who.ranks, root)
    return BlocksKind(request, rows * row, has_output, rows, elements(sent), elements(got))
