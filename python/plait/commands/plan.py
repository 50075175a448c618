"""`plait plan`: the ranking of plans for a request, and one plan with its proof and bytes."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

import plait
from plait import outputs
from plait.bench import sizes
from plait.commands.console import (
    BytesOption,
    JsonOption,
    OpOption,
    RanksOption,
    TopologyOption,
    TypeOption,
    WithoutOption,
    out,
)
from plait.commands.console import (
    machine as asked_machine,
)


def request_of(
    topology: plait.Topology,
    collective: str,
    size: str,
    plait_type: str,
    op: str,
    ranks: int | None,
) -> plait.Request:
    ranks = ranks or len(topology.rank_devices())
    # A first request of no elements turns a bad name into plait's own error before any arithmetic.
    named = plait.Request(collective, 0, plait_type, op, ranks, 0, min(1, ranks - 1))
    bytes_wanted = sizes.parse_bytes(size)
    count = sizes.count_for(named.collective, bytes_wanted, named.type, ranks)
    return plait.Request(collective, count, plait_type, op, ranks, 0, min(1, ranks - 1))


def plan(
    collective: str,
    size: BytesOption = "64M",
    topology: TopologyOption = "",
    ranks: RanksOption = None,
    plait_type: TypeOption = "fp32",
    op: OpOption = "sum",
    strategy: Annotated[
        str, typer.Option("--strategy", "-s", help="name:param=value,...; default: plait's choice")
    ] = "",
    without: WithoutOption = None,
    ops: Annotated[bool, typer.Option("--ops", help="Print every op of the plan.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the ranking of plans for a request, and one plan: its proof and its bytes per path."""
    machine = asked_machine(topology, without)
    request = request_of(machine, collective, size, plait_type, op, ranks)
    plans, refusals = plait.ranked(machine, request)
    shown = plan_asked_for(machine, request, strategy, plans, refusals)
    if as_json:
        out.print(shown.to_json(), markup=False)
        return
    _print_ranking(plans, refusals)
    kernel = "" if strategy else _kernel_instead(machine, request)
    if kernel:
        out.print(
            f"on GPUs that plait has device code for, the engine {kernel} does it instead, as"
            " measured on HGX H200, where no `plait tune` table or sm_budget says otherwise",
            markup=False,
        )
    _print_plan(machine, shown, ops)


def _kernel_instead(machine: plait.Topology, request: plait.Request) -> str:
    """What GPUs with a link of their own to each other run instead of a plan; empty: nothing."""
    ends = request.checked(machine).devices
    linked = {(link.src, link.dst) for link in machine.links if link.kind == "nvlink"}
    everyone = all(a == b or (a, b) in linked for a in ends for b in ends)
    choice = plait.usual_choice(request) if everyone else None
    return choice.engine if choice else ""


def plan_asked_for(
    machine: plait.Topology,
    request: plait.Request,
    strategy: str,
    plans: list[plait.RankedPlan],
    refusals: list[tuple[str, str]],
) -> plait.Plan:
    """The strategy asked for, else the plan that ranks first."""
    if strategy:
        name, params = sizes.parse_strategy(
            strategy, "a strategy such as direct:pieces=2,throttle=1"
        )
        return plait.propose_one(machine, request, name, params)
    if plans:
        return plans[0].plan
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals)
    raise plait.UnsupportedError(f"no strategy takes this request: {reasons}")


def _print_ranking(plans: list[plait.RankedPlan], refusals: list[tuple[str, str]]) -> None:
    table = Table(title="plans, fastest by simulation first")
    for column in ("", "plan", "sum order", "ops", "simulated", "busbw GB/s", "bound by"):
        left = column in ("plan", "sum order", "bound by")
        table.add_column(column, justify="left" if left else "right")
    for number, candidate in enumerate(plans, 1):
        found, timeline = candidate.plan, candidate.timeline
        said = ("-", "-", "not simulated: budget spent")
        if timeline is not None:
            said = (
                f"{timeline.total_ns / 1e3:.1f} us",
                f"{timeline.busbw_gb_per_s:.1f}",
                timeline.bound_by,
            )
        table.add_row(str(number), found.label, found.sum_order, str(found.op_count()), *said)
    out.print(table)
    for name, reason in refusals:
        out.print(f"not {name}: {reason}", markup=False)


def _print_plan(machine: plait.Topology, shown: plait.Plan, ops: bool) -> None:
    report = plait.verify(shown)
    out.print(f"\nplan {shown.label} on {machine.name}", markup=False)
    out.print(str(shown) if ops else "", markup=False, end="")
    out.print(str(report), markup=False)
    table = Table(title="bytes per path")
    table.add_column("path")
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    carried = shown.bytes_per_path()
    total = sum(carried.values()) or 1
    for path, size in carried.items():
        table.add_row(path, outputs.human_bytes(size), f"{100 * size / total:.1f} %")
    out.print(table)
    if not report.proved:
        raise typer.Exit(1)
