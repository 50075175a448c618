"""The engines that serve requests on GPUs, as benches and the tuner name them."""

from __future__ import annotations

# By name, with the one collective that it serves; "" = every one.
_KNOWN = {
    "one_shot": "all_reduce",
    "two_shot": "all_reduce",
    "hop": "",
    "rotation": "",
    "tiled": "",
}


def names(collective: str = "") -> tuple[str, ...]:
    """Engines that may serve a collective, or any of them; all sum in rank order."""
    return tuple(
        name for name, only in _KNOWN.items() if only in ("", collective) or not collective
    )


def by_copy_engines(name: str) -> bool:
    """Whether the GPU's copy engines move the data, so that blocks matter little."""
    return name == "rotation"
