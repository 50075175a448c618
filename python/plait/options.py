"""Sets options of the core, with an error in words for a value of the wrong kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait._core import InvalidArgumentError

KINDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    list: "texts",
}
ADVICE = {
    "topology": "; take a shipped name, a file, or what Topology.to_json() writes to one",
}


def set_options(options: Any, given: Mapping[str, Any]) -> None:
    """Sets the given values; None = leaves the option as it is."""
    for name, value in given.items():
        if value is None:
            continue
        wanted = KINDS.get(type(getattr(options, name)), "another value")
        try:
            setattr(options, name, value)
        except TypeError:
            raise InvalidArgumentError(
                f"{name}: wanted {wanted}, found {value!r}{ADVICE.get(name, '')}"
            ) from None
