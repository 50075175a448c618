"""Files of tuning tables: sizes as text, kinds of GPUs, and one row a line (docs/tune.md).

Tables of GPU kinds are tuning/*.json; `plait tune` writes a machine's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import plait
from plait.bench.sizes import parse_bytes

Row = dict[str, Any]
Table = dict[str, Any]


def size_text(size: int) -> str:
    """Returns a size as rows have sizes: 251658240 -> '240M', 8191 -> '8191'."""
    for unit, suffix in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)


def from_bytes(row: Mapping[str, Any]) -> int:
    """Returns the least size of a row."""
    return parse_bytes(row.get("from_bytes", "0"))


def upto_bytes(row: Mapping[str, Any]) -> float:
    """Returns the largest size of a row; infinite without one."""
    return parse_bytes(row["upto_bytes"]) if "upto_bytes" in row else float("inf")


def covers(row: Mapping[str, Any], collective: str, ranks: int, size: int) -> bool:
    """True if a row is about a call of these ranks and bytes."""
    return (
        row["collective"] == collective
        and row.get("from_ranks", 2) <= ranks <= row["upto_ranks"]
        and from_bytes(row) <= size <= upto_bytes(row)
    )


def kinds_of(table: Table) -> list[str]:
    """Returns the kinds of GPUs that a table was measured on."""
    gpus = table["gpu"]
    name = f"{gpus['model']}, {gpus['multiprocessors']} multiprocessors"
    return [f"{name}, {links}" for links in gpus["links"]]


def text_of(table: Table) -> str:
    """Returns the file's text, a line for each row."""
    text: str = plait._core.tuning_text(json.dumps(table))
    return text
