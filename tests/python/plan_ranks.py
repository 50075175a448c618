"""Ranks that report the chosen plans; for test_plan_command.py."""

from __future__ import annotations

from typing import Any

import plait
from plait.launch import Emit


def chosen(task: dict[str, Any], emit: Emit) -> None:
    comm = plait.init(topology=task["topology"])
    requests = [plait.Request("all_reduce", count, ranks=comm.ranks) for count in task["counts"]]
    labels = [comm.plan_for(request).label for request in requests]
    emit({"rank": comm.rank, "labels": labels, "machine": comm.topology.to_json()})
