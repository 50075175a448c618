"""The core's engines, as benches and the tuner ask for them."""

from __future__ import annotations

from collections.abc import Mapping

import plait


def names(collective: str = "") -> tuple[str, ...]:
    """Engines that may serve a collective, or any of them; all sum in rank order."""
    infos = plait.engines()
    return tuple(info.name for info in infos if not collective or collective in info.collectives)


def takers(request: plait.Request) -> tuple[str, ...]:
    """Engines that take a request, on ranks with as much memory for them as is usual."""
    refused = dict(plait.engine_refusals(request))
    return tuple(name for name in names() if name not in refused)


def parted(way: str) -> tuple[str, dict[str, int]]:
    """("tiled", {"fold": 1}) of "tiled:fold=1"."""
    name, _, said = way.partition(":")
    pairs = (one.split("=") for one in said.split(",") if one)
    return name, {key: int(value) for key, value in pairs}


def variant_of(name: str, params: Mapping[str, int]) -> str:
    """The other way round."""
    said = ",".join(f"{key}={value}" for key, value in params.items())
    return f"{name}:{said}" if said else name


def variant_counted(label: str) -> str:
    """As counters name it, "tiled(fold=1)" or a plan's "ring(lanes=1)", without a plan's params."""
    name, _, said = label.removesuffix(")").partition("(")
    return f"{name}:{said}" if said and name in names() else name


def by_copy_engines(name: str) -> bool:
    """Whether the GPU's copy engines move the data, so that blocks matter little."""
    return name.startswith("copy_")
