"""The core's engines, as benches and the tuner ask for them."""

from __future__ import annotations

import plait


def names(collective: str = "") -> tuple[str, ...]:
    """Engines that may serve a collective, or any of them; all sum in rank order."""
    infos = plait.engines()
    return tuple(info.name for info in infos if not collective or collective in info.collectives)


def takers(request: plait.Request) -> tuple[str, ...]:
    """Engines that take a request, on ranks with as much memory for them as is usual."""
    refused = dict(plait.engine_refusals(request))
    return tuple(name for name in names() if name not in refused)


def by_copy_engines(name: str) -> bool:
    """Whether the GPU's copy engines move the data, so that blocks matter little."""
    return name.startswith("copy_")
