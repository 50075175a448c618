"""Lists every way of a request on a machine: engines and plans by lanes, with predicted times.

`plait plan` prints the list of one size. `plait simulate -e` and the report show it over sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import plait
from plait import _core, what_runs
from plait.bench import engines
from plait.bench.sizes import bandwidth

MAY, NAMED, SIMULATED, SHARED, REFUSED = "may run", "by name", "simulated", "plait.copy", "refused"
BY_WHOSE_WORD = {
    "caller": "as asked for",
    "environment": "as PLAIT_ALGO names it",
    "file": "as the file has it",
    "table": "as this machine's tuning table says",
    "built in": "as measured on HGX H200, where no tuning table or sm_budget says otherwise",
    "simulated": "fastest by simulation",
}


@dataclass(frozen=True)
class Way:
    """An engine or a plan. us: 0 = not simulated; may: whether a call takes it by itself."""

    name: str
    label: str
    us: float
    busbw: float
    ops: int
    sum_order: str
    bound_by: str
    may: str
    is_engine: bool = False
    runs: bool = False

    @property
    def kind(self) -> str:
        """Engines and strategies share some names."""
        return "engine" if self.is_engine else "strategy"

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "label": self.label,
            "predicted_us": self.us or None,
            "busbw_gb_per_s": self.busbw or None,
            "ops": self.ops,
            "sum_order": self.sum_order,
            "calls": self.may,
            "bound_by": self.bound_by or None,
            "runs": self.runs,
        }


@dataclass(frozen=True)
class Ways:
    """What runs, and all ways, fastest first; ways without a time come last. refusals: strategies
    with the reason; engines_refused: the same of engines, on GPUs with kernels."""

    runs: what_runs.Runs
    rows: list[Way]
    refusals: list[tuple[str, str]]
    engines_refused: list[tuple[str, str]]

    @property
    def running(self) -> Way:
        return next(way for way in self.rows if way.runs)

    @property
    def best(self) -> Way:
        """The fastest way that a call may take by itself."""
        return next((way for way in self.rows if way.us and way.may == MAY), self.running)


def _on_gpus(machine: plait.Topology) -> bool:
    return any(device.kind == "gpu" for device in machine.devices)


def nodes_of(machine: plait.Topology, request: plait.Request) -> int:
    """Returns the number of nodes that the request's ranks are on."""
    places = machine.rank_devices()[: request.ranks]
    return len({machine.devices[place].node for place in places})


def which_may(machine: plait.Topology, plan: plait.Plan) -> str:
    """Returns MAY if a call without a strategy may take the plan, else how it is had."""
    nodes = nodes_of(machine, plan.request)
    if plan.symmetric:
        return SHARED  # ranks do not see each other's buffers
    if what_runs.why_no_call(machine, plan):
        return REFUSED
    if nodes > 1:
        if any(path.startswith("net:") for path in plan.bytes_per_path()):
            return SIMULATED  # no executor copies between nodes
        if _on_gpus(machine):
            of_calls = ["library"]
            if plan.request.collective == "all_reduce":
                of_calls.append("multi_node")
            return MAY if plan.strategy in of_calls else NAMED
    if nodes <= 2 and plan.sum_order == "algorithm_order":
        return NAMED
    return MAY


def chosen(machine: plait.Topology, request: plait.Request) -> what_runs.Runs:
    """Returns what a call runs: an engine, else a plan by lanes."""
    if _on_gpus(machine):  # CPU ranks run plans only
        runs = what_runs.by_engine(machine, request)
        if runs is not None:
            return runs
    taken = what_runs.taken_by_calls(machine, request)
    if taken is None:
        raise plait.UnsupportedError(f"no strategy takes {request.collective} on {machine.name}")
    return what_runs.by_lanes(machine, taken, "simulated")


def _of_runs(machine: plait.Topology, runs: what_runs.Runs) -> Way:
    plan, is_engine = runs.plan, runs.engine != what_runs.LANES
    return Way(
        name=runs.engine if is_engine else plan.strategy,
        label=engines.variant_of(runs.engine, runs.tuning) if is_engine else plan.label,
        us=runs.predicted_us,
        busbw=bandwidth(plan.request, runs.predicted_us / 1e6)["busbw"],
        ops=plan.op_count(),
        sum_order=plan.sum_order,
        bound_by="" if is_engine else plait.simulate(plan, machine).bound_by,
        may=MAY if is_engine else which_may(machine, plan),
        is_engine=is_engine,
    )


def of_call(
    machine: plait.Topology,
    request: plait.Request,
    runs: what_runs.Runs | None = None,
    ranked: tuple[list[plait.RankedPlan], list[tuple[str, str]]] | None = None,
) -> Ways:
    """Returns all ways of a call. runs: None = as calls choose; ranked: of what_runs.ranked."""
    plans, refusals = ranked or what_runs.ranked(machine, request)
    runs = runs or chosen(machine, request)
    running = replace(_of_runs(machine, runs), runs=True)
    rows = [running]
    for one in plans:
        if not running.is_engine and one.plan.label == running.label:
            continue
        time = one.timeline
        rows.append(
            Way(
                name=one.plan.strategy,
                label=one.plan.label,
                us=time.total_ns / 1e3 if time else 0.0,
                busbw=time.busbw_gb_per_s if time else 0.0,
                ops=one.plan.op_count(),
                sum_order=one.plan.sum_order,
                bound_by=time.bound_by if time else "not simulated: budget spent",
                may=which_may(machine, one.plan),
            )
        )
    if _on_gpus(machine):
        rows += [
            _of_runs(machine, engine)
            for engine in what_runs.engines(machine, request)
            if engine.predicted_us and engine.engine != running.name
        ]
    rows.sort(key=lambda way: (not way.us, way.us))
    has_kernels = _on_gpus(machine) and not runs.why_not
    refused = plait.engine_refusals(request, machine) if has_kernels else []
    return Ways(runs, rows, refusals, refused)


def rule(machine: plait.Topology, runs: what_runs.Runs) -> str:
    """Returns the rule by which calls choose a plan by lanes."""
    request = runs.plan.request
    nodes = nodes_of(machine, request)
    if nodes > 1 and _on_gpus(machine):
        why = _core.why_library_runs(machine, request)
        return f"as calls choose over nodes: {why or 'NCCL on each rail, plait in the nodes'}"
    if _on_gpus(machine):
        return "as calls choose: fastest by simulation of those that may run"
    if request.collective == "all_reduce" and request.ranks == 2 and nodes == 1:
        return "as calls choose: as measured on two CPU ranks, not by simulation"
    return "as calls choose: on CPU ranks by the planner's estimate, not by simulation"


def why(runs: what_runs.Runs, rule: str) -> str:
    """Returns the reason of the choice."""
    is_ranked = (runs.engine, runs.by) == (what_runs.LANES, "simulated")
    return rule if is_ranked else BY_WHOSE_WORD[runs.by]
