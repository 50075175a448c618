"""Measured times of NCCL's calls on a machine: by its tuning table beside NCCL, or recorded on such
GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plait
from plait import entry_points, settings
from plait.bench.sizes import parse_bytes
from plait.evidence.beside_nccl import Beside, recorded

HERE, ALIKE = "measured here", "measured on such GPUs"


@dataclass(frozen=True)
class Measured:
    """An all_reduce of fp32 by NCCL and by plait. kind: HERE or ALIKE."""

    kind: str
    times: Beside

    def as_json(self) -> dict[str, Any]:
        return {
            "us": self.times.nccl_us,
            "plait_us": self.times.plait_us,
            "kind": self.kind,
            "source": self.times.source,
        }


def tuned(machine: plait.Topology, request: plait.Request) -> dict[int, Beside]:
    """Returns the figures of this machine's table beside NCCL, at the largest message of each
    row."""
    file = entry_points.table_beside_nccl(machine, request)
    content = json.loads(settings.read_table(file) or "{}")
    source = f"{file} (NCCL {content.get('nccl', '')}, {content.get('date', '')[:10]})"
    found: dict[int, Beside] = {}
    for row in content.get("rows", []):
        if _is_compared(row, request.ranks):
            size = 1 << (parse_bytes(row.get("upto_bytes", "1G")).bit_length() - 1)
            found.setdefault(size, Beside(row["us"], row["nccl_us"], row["engine"], source))
    return dict(sorted(found.items()))


def _is_compared(row: Mapping[str, Any], ranks: int) -> bool:
    fits = row.get("from_ranks", 2) <= ranks <= row.get("upto_ranks", 0)
    timed = row.get("nccl_us", 0) > 0 and row.get("us", 0) > 0
    return fits and timed and (row.get("collective"), row.get("type")) == ("all_reduce", "fp32")


def of_call(machine: plait.Topology, request: plait.Request) -> Measured | None:
    """Returns NCCL's measured time of a call; None if a call of this size was not measured."""
    asked = (request.collective, request.type, request.op)
    if asked != ("all_reduce", "fp32", "sum") or request.ranks < 2:
        return None
    size = request.message_bytes()
    if here := tuned(machine, request).get(size):
        return Measured(HERE, here)
    if alike := recorded(machine, request.ranks).get(size):
        return Measured(ALIKE, alike)
    return None
