"""Finds the engine on GPUs or the plan by lanes that a request would run, the reason, and the time.

Request and machine are values: no GPU is needed. Communicators choose by the same core, in this
order: caller, tuning table of the machine, table of the GPU kind, simulation. An engine is
considered if GPUs of the machine's model run its kernels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import plait
from plait import _core, gpu, settings

OF_COPIES = ("copy", "send_recv")  # collectives of plait.copy's strategy
LANES = "lanes"  # if no engine takes the request: CPU ranks, masks, missing links


@dataclass(frozen=True)
class Runs:
    """One call. plan: of all ranks; proof: of the plan, for engines of two calls in a row."""

    engine: str
    tuning: dict[str, int]
    by: str  # caller, table, built in, simulated
    predicted_us: float  # time in a graph of equal calls
    plan: plait.Plan
    proof: plait.Report
    eagerly: dict[str, Any] | None = None  # engine and tuning of an eager call, if different
    why_not: str = ""  # why the GPUs run no kernel of plait; empty = they run kernels
    why_no_call: str = ""  # why calls refuse the plan, as for its memory; empty = they run it

    @property
    def title(self) -> str:
        """Text such as 'engine two_shot(...)' or 'ring(lanes=2)'."""
        return self.plan.label if self.engine == LANES else f"engine {self.plan.label}"

    def as_json(self) -> dict[str, Any]:
        """Returns a dict with the keys of docs/devices_reference.md."""
        findings = json.loads(self.proof.to_json())["findings"]
        eagerly = {} if self.eagerly is None else {"eagerly": self.eagerly}
        why_not = {"why_not": self.why_not} if self.why_not else {}
        why_no_call = {"why_no_call": self.why_no_call} if self.why_no_call else {}
        return (
            eagerly
            | why_not
            | why_no_call
            | {
                "engine": self.engine,
                "tuning": self.tuning,
                "by": self.by,
                "predicted_us": self.predicted_us,
                "bytes_by_path": self.plan.bytes_per_path(),
                "proof": {"proved": not findings, "findings": findings},
                "plan": json.loads(self.plan.to_json()),
            }
        )


def _leaves_links_out(machine: plait.Topology) -> bool:
    """True if new communicators on the machine's GPUs leave links out for host memory."""
    setting = os.environ.get("PLAIT_THROUGH_HOST", "")
    if setting in ("0", "1"):
        return setting == "1"
    is_here = gpu.count() > 1 and machine.fingerprint() == plait.discover().fingerprint()
    return is_here and bool(gpu.why_no_direct_access())


def as_used(machine: plait.Topology) -> plait.Topology:
    """Returns the machine without the links that communicators leave out."""
    if not _leaves_links_out(machine):
        return machine
    said = json.loads(machine.to_json())
    kept = [link for link in said["links"] if link["kind"] != "nvlink"]
    stated = {
        name: value
        for name, value in said["parameters"].items()
        if not name.startswith("no_link.")  # masks leave no way to choose
    }
    return plait.Topology.from_json(json.dumps(said | {"links": kept, "parameters": stated}))


def tuning_table(machine: plait.Topology, ranks: int) -> str:
    """Returns the tuning table that communicators on this machine read; empty = none."""
    request = plait.Request("all_reduce", 1, "fp32", ranks=ranks)
    is_in_host = _leaves_links_out(machine) or _core.goes_through_host(machine, request)
    where = _core.tuning_machine(machine, ranks, is_in_host)
    return settings.read_table(_core.tuning_file(where, ranks))


def _runs(found: _core.WhatRuns) -> Runs:
    choice = found.choice
    facts = (choice.engine, choice.params, choice.by, found.predicted_us)
    eager = found.otherwise
    eagerly = {"engine": eager.engine, "tuning": eager.params} if eager else None
    return Runs(*facts, found.plan, found.proof, eagerly)


def by_engine(
    machine: plait.Topology,
    request: plait.Request,
    engine: str = "",
    params: Mapping[str, int] | None = None,
) -> Runs | None:
    """Returns the engine that would serve the request, or the named engine; None if none would."""
    table = "" if engine else tuning_table(machine, request.ranks)
    used = as_used(machine)
    found = plait.what_would_run(used, request, engine, dict(params or {}), table=table)
    return None if found is None else _runs(found)


def engines(machine: plait.Topology, request: plait.Request) -> list[Runs]:
    """Returns the request by each engine that takes it."""
    refused = dict(plait.engine_refusals(request, machine))
    found = []
    for name in (info.name for info in plait.engines() if info.name not in refused):
        with suppress(plait.UnsupportedError):  # its time through host memory is not known
            found.append(by_engine(machine, request, name))
    return [runs for runs in found if runs is not None]


def by_lanes(machine: plait.Topology, plan: plait.Plan, by: str) -> Runs:
    """Returns the run of a given plan."""
    predicted_us = _core.predicted_ns(plan, machine) / 1e3
    facts = (LANES, dict(plan.params), by, predicted_us, plan, plait.verify(plan))
    why_not = _core.why_no_plans(machine, plan.request)
    return Runs(*facts, why_not=why_not, why_no_call=why_no_call(machine, plan))


def why_no_call(machine: plait.Topology, plan: plait.Plan) -> str:
    """Returns why neither calls nor plait.copy run a plan there; empty = some do."""
    return "" if plan.symmetric else _core.why_no_call(machine, plan)


def taken_by_calls(machine: plait.Topology, request: plait.Request) -> plait.Plan | None:
    """Returns the plan by lanes that a call without a strategy runs.

    If communicators would run none, returns the cheapest proposal, or None.
    """
    try:
        return _core.taken_by_calls(machine, request)
    except plait.UnsupportedError:
        return next(iter(plait.propose(plait.for_calls(machine, request), request)[0]), None)


def ranked(
    machine: plait.Topology, request: plait.Request
) -> tuple[list[plait.RankedPlan], list[tuple[str, str]]]:
    """Returns plait.ranked() of the plans that calls have memory for, and plans of plait.copy.

    plait.copy has its process's GPUs, and memory of its own.
    """
    plans, refusals = plait.ranked(plait.for_calls(machine, request), request)
    if request.collective in OF_COPIES:
        others = [one for one in plait.ranked(machine, request)[0] if one.plan.symmetric]
        plans = [*(one for one in plans if not one.plan.symmetric), *others]
    return plans, refusals


def named(
    machine: plait.Topology, request: plait.Request, strategy: str, params: Mapping[str, int]
) -> plait.Plan:
    """Returns the strategy's plan that calls have memory for, else its plan on the machine."""
    try:
        return plait.propose_one(plait.for_calls(machine, request), request, strategy, params)
    except plait.UnsupportedError:
        return plait.propose_one(machine, request, strategy, params)


BUDGETS_MIB = (48, 64, 96, 128, 183, 244, 640)
# Calls with a name of their own are between two of the ranks.
LARGE_CALLS = (
    ("", "all_reduce", 64 << 20),
    ("", "all_reduce", 1 << 30),
    ("", "all_gather", 1 << 30),
    ("send", "copy", 1 << 30),
    ("exchange_with", "send_recv", 1 << 30),
)


def large_calls() -> list[str]:
    """Returns LARGE_CALLS as text: 'all_reduce 64 MiB', ..."""
    return [f"{alone or collective} {size >> 20} MiB" for alone, collective, size in LARGE_CALLS]


def by_memory(machine: plait.Topology, ranks: int) -> list[tuple[int, list[Runs]]]:
    """Returns (PLAIT_DEVICE_MEMORY in MiB, engines of LARGE_CALLS in graphs, fp32).

    Leaves out budgets that change nothing, and budgets with which no engine takes all calls.
    """
    found: list[tuple[int, list[Runs]]] = []
    before: list[int] = []
    for mib in BUDGETS_MIB:
        runs = []
        for alone, collective, size in LARGE_CALLS:
            count = (size // ranks if collective == "all_gather" else size) // 4
            of, peer, pair_of = (2, 1, ranks) if alone else (ranks, 0, 0)
            request = plait.Request(collective, count, "fp32", ranks=of, peer=peer)
            call = plait.what_would_run(machine, request, memory=mib << 20, pair_of=pair_of)
            if call is not None:
                runs.append(_runs(call))
        times = [round(one.predicted_us) for one in runs]
        if len(runs) == len(LARGE_CALLS) and times != before:
            found.append((mib, runs))
            before = times
    return found
