"""Measures variants in turn, so that a disturbance of the machine hits all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def in_turn(variants: Iterable[K], rounds: int) -> Iterator[tuple[int, K]]:
    """Yields (round, variant): all variants in each round, in the other order in every second."""
    order = list(variants)
    for number in range(rounds):
        for variant in order[:: -1 if number % 2 else 1]:
            yield number, variant


def taken(variants: Mapping[K, Callable[[], V]], rounds: int, warm_up: int = 0) -> dict[K, list[V]]:
    """Returns what each variant returned in `rounds` rounds, after `warm_up` rounds."""
    found: dict[K, list[V]] = {variant: [] for variant in variants}
    for number, variant in in_turn(variants, warm_up + rounds):
        one = variants[variant]()
        if number >= warm_up:
            found[variant].append(one)
    return found


def medians(found: Mapping[K, Iterable[float]]) -> dict[K, float]:
    return {variant: statistics.median(values) for variant, values in found.items()}
