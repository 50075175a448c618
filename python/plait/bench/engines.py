"""Names of the core's engines, for benchmarks and the tuner."""

from __future__ import annotations

from collections.abc import Mapping

import plait
from plait.bench.sizes import parse_strategy


def names(collective: str = "") -> tuple[str, ...]:
    """Returns engines for a collective, or all. All engines sum in rank order."""
    infos = plait.engines()
    return tuple(info.name for info in infos if not collective or collective in info.collectives)


def takers(request: plait.Request) -> tuple[str, ...]:
    """Returns the engines that take a request with the default device memory."""
    refused = dict(plait.engine_refusals(request))
    return tuple(name for name in names() if name not in refused)


def parted(way: str) -> tuple[str, dict[str, int]]:
    """Parses "tiled:shift=1" as ("tiled", {"shift": 1})."""
    return parse_strategy(way, "an engine such as tiled:shift=1")


def variant_of(name: str, params: Mapping[str, int]) -> str:
    """Returns the text that parted() parses."""
    said = ",".join(f"{key}={value}" for key, value in params.items())
    return f"{name}:{said}" if said else name


def variant_counted(label: str) -> str:
    """Converts a counter's label ("tiled(shift=1)", or a plan's "ring(lanes=1)") to a variant."""
    name, _, said = label.removesuffix(")").partition("(")
    return f"{name}:{said}" if said and name in names() else name


def by_copy_engines(name: str) -> bool:
    """Returns whether copy engines move the data, so that the number of blocks matters little."""
    return name.startswith("copy_") or name == "host_cores"
