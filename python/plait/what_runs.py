"""What a request would run: an engine on GPUs, or a plan by lanes; by whose word, and how fast.

The request and the machine are values, so this is asked without a GPU. Communicators decide alike,
by the same core: as the caller says, else by this machine's tuning table, else by what was measured
on HGX H200.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plait
from plait import _core

LANES = "lanes"  # where no engine takes the request: CPU ranks, masks, links that are missing


@dataclass(frozen=True)
class Runs:
    """One call. plan: what all ranks do; one without lanes where an engine states none."""

    engine: str
    tuning: dict[str, int]
    by: str  # caller, table, built in; of plans by lanes simulation
    predicted_us: float | None  # in a graph, among others like it
    plan: plait.Plan

    @property
    def title(self) -> str:
        """'engine two_shot(bare=1,...)', or 'ring(lanes=2)'."""
        return self.plan.label if self.engine == LANES else f"engine {self.plan.label}"

    @property
    def reports(self) -> list[plait.Report]:
        """Of the call, and of an engine's two in a row; empty where the plan has no lanes."""
        if self.plan.op_count() == 0:
            return []
        alone = plait.verify(self.plan)
        if self.engine == LANES or not alone.proved:
            return [alone]
        return [alone, _core.verify_in_a_row([self.plan, self.plan])]

    def as_json(self) -> dict[str, Any]:
        """Keys as docs name them; proof and plan are null where the engine states none."""
        reports = self.reports
        said = [json.loads(report.to_json())["findings"] for report in reports]
        findings = [finding for one in said for finding in one]
        proof = {"proved": not findings, "findings": findings}
        return {
            "engine": self.engine,
            "tuning": self.tuning,
            "by": self.by,
            "predicted_us": self.predicted_us,
            "bytes_by_path": self.plan.bytes_per_path() if reports else None,
            "proof": proof if reports else None,
            "plan": json.loads(self.plan.to_json()) if reports else None,
        }


def are_linked(machine: plait.Topology, request: plait.Request) -> bool:
    """Whether the ranks' GPUs have a link to each other, as engines want."""
    ends = request.checked(machine).devices
    linked = {(link.src, link.dst) for link in machine.links if link.kind == "nvlink"}
    return len(ends) > 1 and all(a == b or (a, b) in linked for a in ends for b in ends)


def tuning_table(machine: plait.Topology, ranks: int) -> str:
    """The table that communicators on this machine read; empty where there is none."""
    file = _core.tuning_file(machine.fingerprint(), ranks)
    return Path(file).read_text() if file and Path(file).exists() else ""


def by_engine(
    machine: plait.Topology,
    request: plait.Request,
    engine: str = "",
    params: Mapping[str, int] | None = None,
) -> Runs | None:
    """The engine that would serve the request, or that the caller names; None where none would."""
    if not are_linked(machine, request) or request.count == 0:
        return None
    by, tuning = "caller", dict(params or {})
    if not engine:
        choice = plait.usual_choice(request, table=tuning_table(machine, request.ranks))
        if choice is None:
            return None
        engine, by, tuning = choice.engine, choice.by, choice.params
    plan = _core.engine_plan(machine, request, engine, tuning)
    return Runs(plan.strategy, tuning, by, _predicted_us(machine, plan), plan)


def engines(machine: plait.Topology, request: plait.Request) -> list[Runs]:
    """The request by each engine that takes it."""
    refused = dict(plait.engine_refusals(request))
    names = [info.name for info in plait.engines() if info.name not in refused]
    found = [by_engine(machine, request, name) for name in names]
    return [runs for runs in found if runs is not None]


def by_lanes(machine: plait.Topology, plan: plait.Plan, by: str) -> Runs:
    """A plan as it is."""
    return Runs(LANES, dict(plan.params), by, _predicted_us(machine, plan), plan)


def _predicted_us(machine: plait.Topology, plan: plait.Plan) -> float | None:
    try:
        return _core.predicted_ns(plan, machine) / 1e3
    except plait.UnsupportedError:
        return None
