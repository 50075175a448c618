"""Former names of engines, which recorded rows and tuning tables still have."""

from plait._core import former_names

FORMER = former_names()  # up to version 0.1; the core takes both


def engine_name(name: str) -> str:
    """Returns the engine's name, from the present or a former name."""
    return FORMER.get(name, name)
