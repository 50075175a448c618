"""`plait plan`: shows what runs for a request, in each entry point, and all other ways."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated

import typer

import plait
from plait import engine_names, entry_points, nccl_times, outputs, what_runs
from plait import ways as all_ways
from plait.bench import engines, sizes
from plait.commands import ranking
from plait.commands.console import (
    BytesOption,
    CountsOption,
    JsonOption,
    LoadOption,
    OpOption,
    RanksOption,
    StrategyOption,
    TopologyOption,
    TypeOption,
    WhatArgument,
    WithoutOption,
    err,
    given,
    load,
    out,
    refuse_beside_plan,
    table,
)
from plait.commands.console import machine as asked_machine
from plait.plan_files import is_plan_file, load_plan, machine_of
from plait.plan_size import require_memory

Ranked = tuple[list[plait.RankedPlan], list[tuple[str, str]]]  # as what_runs.ranked returns
WAY = "an engine or a strategy such as direct:pieces=2,throttle=1"


def usual_ranks(topology: plait.Topology) -> int:
    """Returns the topology's GPUs, or as many CPU ranks as this machine has cores."""
    devices = [topology.devices[index] for index in topology.rank_devices()]
    if any(device.kind == "gpu" for device in devices):
        return len(devices)
    return max(1, min(len(devices), len(os.sched_getaffinity(0))))


def request_of(
    topology: plait.Topology,
    collective: str,
    size: str,
    plait_type: str,
    op: str,
    ranks: int | None,
    counts: str = "",
) -> plait.Request:
    ranks = ranks or usual_ranks(topology)
    if ranks > entry_points.MOST_RANKS:
        raise plait.UnsupportedError(
            f"{topology.name}: wanted 1 to {entry_points.MOST_RANKS} ranks, found {ranks}; name "
            "fewer nodes, or --ranks"
        )
    # A request of 0 elements turns a bad name into plait's error before any arithmetic.
    named = plait.Request(collective, 0, plait_type, op, ranks, 0, min(1, ranks - 1))
    sizes.check_op(named)
    bytes_wanted = sizes.parse_bytes(size)
    request = sizes.request_for(
        *(named.collective, bytes_wanted, named.type, named.op, ranks, 0, min(1, ranks - 1)),
        shape=counts,
    )
    if bytes_wanted > 0 and request.count == 0:
        least = sizes.least_bytes(named.collective, named.type, ranks)
        raise plait.InvalidArgumentError(
            f"--bytes: wanted {least} or more, one element of {named.type} in each block, or 0; "
            f"found {size}"
        )
    require_memory(topology, request)
    return request


def plan(
    context: typer.Context,
    collective: WhatArgument,
    size: BytesOption = "64M",
    topology: TopologyOption = "",
    ranks: RanksOption = None,
    plait_type: TypeOption = "fp32",
    op: OpOption = "sum",
    counts: CountsOption = "",
    strategy: StrategyOption = "",
    without: WithoutOption = None,
    ops: Annotated[bool, typer.Option("--ops", help="Print every op of the plan.")] = False,
    loaded: LoadOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what would run, how fast and why; then all ways.

    Prints engine, source of the choice, time, proof, what calls of NCCL and MPI run, bytes by path.
    """
    load(loaded)
    if is_plan_file(collective):
        refuse_beside_plan(given(context))
        _plan_in_file(collective, topology, without, ops, as_json)
        return
    machine = asked_machine(topology, without)
    request = request_of(machine, collective, size, plait_type, op, ranks, counts)
    ranked = cache(lambda: what_runs.ranked(machine, request))  # large: not beside the choice
    asked = strategy or os.environ.get("PLAIT_ALGO", "")
    runs = _what_runs(machine, request, asked, ranked)
    if asked and not strategy:
        runs = replace(runs, by="environment")
    rule = all_ways.rule(machine, runs)
    ways = all_ways.of_call(machine, request, runs, ranked())
    if as_json:
        out.print(json.dumps(ranking.as_json(machine, request, ways, rule)), markup=False)
        return
    proved = _print_runs(machine, request, runs, ops, rule)
    ranking.show(ways, rule)
    if not proved:
        raise typer.Exit(1)


def proved_plan(file: str) -> plait.Plan:
    """Returns the plan in a file. Prints the findings of a wrong plan and exits."""
    found = load_plan(file)
    report = plait.verify(found)
    if not report.proved:
        err.print(str(report), markup=False)
        raise typer.Exit(1)
    return found


def _plan_in_file(
    file: str, topology: str, without: list[str] | None, ops: bool, as_json: bool
) -> None:
    shown = proved_plan(file)
    machine = asked_machine(topology, without) if topology else machine_of(shown)
    runs = what_runs.by_lanes(machine, shown, "file")
    if as_json:
        out.print(json.dumps(runs.as_json()), markup=False)
    else:
        _print_runs(machine, shown.request, runs, ops)


def _what_runs(
    machine: plait.Topology,
    request: plait.Request,
    strategy: str,
    ranked: Callable[[], Ranked],
) -> what_runs.Runs:
    """Returns the named engine or strategy, else the chosen engine, else the first plan."""
    name, params = sizes.parse_strategy(strategy, WAY)
    has_gpus = any(device.kind == "gpu" for device in machine.devices)  # CPU ranks run plans only
    names = ("", "rotation", *engine_names.FORMER, *engines.names())
    is_engine = has_gpus and name in names
    if is_engine or name not in {info.name for info in plait.strategies()}:
        found = what_runs.by_engine(machine, request, name, params) if is_engine else None
        if found is not None:
            return found
    named = plan_asked_for(machine, request, strategy, ranked)
    return what_runs.by_lanes(machine, named, "caller" if strategy else "simulated")


def plan_asked_for(
    machine: plait.Topology,
    request: plait.Request,
    strategy: str,
    ranked: Callable[[], Ranked],
) -> plait.Plan:
    """Returns the named strategy, with the fastest parameters by default; else a call's plan."""
    if strategy:
        name, params = sizes.parse_strategy(strategy, WAY)
        fit = (one.plan for one in ranked()[0] if one.plan.strategy == name and not params)
        return next(fit, None) or what_runs.named(machine, request, name, params)
    if taken := what_runs.taken_by_calls(machine, request):
        return taken
    raise plait.UnsupportedError(
        f"no strategy takes this request on {machine.name}\n{_listed_by_reason(ranked()[1])}"
    )


def _listed_by_reason(refusals: list[tuple[str, str]]) -> str:
    """Returns a line for each reason, with the strategies."""
    names: dict[str, list[str]] = {}
    for name, reason in refusals:
        names.setdefault(reason.removeprefix("unsupported: "), []).append(name)
    return "\n".join(f"  {', '.join(of)}: {reason}" for reason, of in names.items())


def _proof_text(runs: what_runs.Runs) -> str:
    report, twice = runs.proof, "" if runs.engine == what_runs.LANES else ", two calls in a row"
    if not report.proved:
        return str(report)
    sums = f", sums {' or '.join(report.orders)}" if report.orders else ""
    return f"proved, {report.ops} ops{twice}{sums}"


MOST_ALIKE = 4  # rows of the same kind and size that are shown separately


def folded(carried: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns (path, bytes); many paths of the same kind and size share a row: '56 of nvlink,
    each'."""
    alike: dict[tuple[str, int], list[str]] = defaultdict(list)
    for path, each in carried.items():
        alike[path.partition(":")[0], each].append(path)
    rows: list[tuple[str, int]] = []
    for (kind, each), paths in alike.items():
        if len(paths) > MOST_ALIKE:
            rows.append((f"{len(paths)} of {kind} ({paths[0]}, ...), each", each))
        else:
            rows += [(path, each) for path in paths]
    return rows


def _print_runs(
    machine: plait.Topology,
    request: plait.Request,
    runs: what_runs.Runs,
    ops: bool,
    rule: str = "",
) -> bool:
    """Prints what would run; returns False if the plan is wrong. rule: how calls choose plans."""
    plan = runs.plan
    size = outputs.human_bytes(request.message_bytes())
    ranks = f"{request.ranks} rank{'s' if request.ranks > 1 else ''} of {machine.name}"
    out.print(f"{sizes.kind_of(request)} of {size} {request.type} on {ranks}:", markup=False)
    what = f"engine {runs.engine}" if runs.engine != what_runs.LANES else "by lanes"
    what = f"{what}, {all_ways.why(runs, rule)}"
    in_graph = ", in a graph" if any(one.kind == "gpu" for one in machine.devices) else ""
    busbw = sizes.bandwidth(request, runs.predicted_us / 1e6)["busbw"]
    lines = {
        "runs": what,
        "as": f"{plan.label}",
        "predicted": f"{outputs.time_text(runs.predicted_us)}, {busbw:.1f} GB/s busbw{in_graph}",
        "proof": _proof_text(runs),
    }
    if runs.why_not:
        lines["runs"] = f"nothing of plait, since {runs.why_not}; simulated: {what}"
    elif runs.why_no_call:
        lines["runs"] = f"in no call, since it {runs.why_no_call}; simulated: {what}"
    if runs.eagerly:
        way = engines.variant_of(runs.eagerly["engine"], runs.eagerly["tuning"])
        lines["eagerly"] = f"engine {way}: a call outside graphs goes another way"
    doors = entry_points.of_call(machine, request, runs)
    lines |= doors
    if entry_points.served_by(doors.get("plait run", "")) == "library" and not runs.why_not:
        lines["plait run"] += "; the lines above are of plait's own calls (plait.init(), torch, C)"
    if doors and (measured := nccl_times.of_call(machine, request)):
        times = measured.times
        lines["NCCL"] = (
            f"{outputs.time_text(times.nccl_us)}, {measured.kind}, where plait took "
            f"{outputs.time_text(times.plait_us)} ({times.engine}; {times.source})"
        )
    for name, said in lines.items():
        out.print(f"  {name:<10} {said}", markup=False)
    out.print(str(plan) if ops else "", markup=False, end="")
    if carried := plan.bytes_per_path():
        paths = table("path", ">bytes", ">share", title="bytes per path")
        total = sum(carried.values()) or 1
        for path, each in folded(carried):
            paths.add_row(path, outputs.human_bytes(each), f"{100 * each / total:.1f} %")
        out.print(paths)
    return runs.proof.proved
