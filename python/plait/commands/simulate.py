"""`plait simulate` and `plait report`: predictions, and a comparison with measurements."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

import plait
from plait import outputs, what_runs
from plait.bench import sizes
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
    progress_bar,
    refuse_beside_plan,
    refuse_idle,
    table,
)
from plait.commands.console import machine as asked_machine
from plait.commands.plan import plan_asked_for, proved_plan, request_of, usual_ranks
from plait.commands.report_html import figure, time_text
from plait.plan_files import is_plan_file, machine_of


def simulate(
    context: typer.Context,
    collective: WhatArgument = "",
    size: BytesOption = "64M",
    topology: TopologyOption = "",
    ranks: RanksOption = None,
    plait_type: TypeOption = "fp32",
    op: OpOption = "sum",
    counts: CountsOption = "",
    strategy: StrategyOption = "",
    without: WithoutOption = None,
    trace: Annotated[str, typer.Option(help="Write a Perfetto/Chrome trace here.")] = "",
    plot: Annotated[
        str, typer.Option(help="Write a picture here: of ranks and links, or (-e) over sizes.")
    ] = "",
    lanes: Annotated[
        bool, typer.Option("--lanes", help="With --plot: draw the ranks' lanes too.")
    ] = False,
    end: Annotated[
        str, typer.Option("--end", "-e", help="All ways at sizes from --bytes to this one.")
    ] = "",
    factor: Annotated[
        int | None,
        typer.Option("--factor", "-f", help="With -e: each size times this; default: 4.", min=2),
    ] = None,
    paper: Annotated[
        str,
        typer.Option(
            help="Rerun papers' experiments: micro, collaborative, wotir, direct, nodes, all"
        ),
    ] = "",
    loaded: LoadOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict when each op of a plan runs, and what bounds it; with -e all ways over sizes."""
    _refuse_idle(given(context), collective)
    if paper:
        _simulate_paper(paper, as_json)
        return
    outputs.check(trace, "--trace")
    outputs.check_picture(plot, "--plot")
    load(loaded)
    if end:
        if trace or strategy or counts or lanes or is_plan_file(collective):
            raise plait.InvalidArgumentError(
                "-e compares all ways of a collective: leave out --trace, --strategy, --counts, "
                "--lanes and plans' files"
            )
        task = (collective, plait_type, op, size, end, factor or 4)
        _over_sizes(asked_machine(topology, without), ranks, task, plot, as_json)
        return
    if is_plan_file(collective):
        shown = proved_plan(collective)
        machine = asked_machine(topology, without) if topology else machine_of(shown)
    else:
        machine = asked_machine(topology, without)
        request = request_of(machine, collective, size, plait_type, op, ranks, counts)
        shown = _plan_of_call(machine, request, strategy)
    timeline = plait.simulate(shown, machine)
    _write(timeline, shown, trace, plot, lanes)
    if as_json:
        out.print(timeline.to_json(), markup=False)
        return
    out.print(str(timeline), markup=False)
    if why_not := plait._core.why_no_plans(machine, shown.request):
        out.print(_no_kernels(why_not), markup=False)
    elif why_not := what_runs.why_no_call(machine, shown):
        out.print(f"No call runs this plan: it {why_not}.", markup=False)
    elif line := _engine_line(machine, shown.request, strategy or is_plan_file(collective)):
        out.print(line, markup=False)


def _plan_of_call(machine: plait.Topology, request: plait.Request, strategy: str) -> plait.Plan:
    return plan_asked_for(machine, request, strategy, lambda: what_runs.ranked(machine, request))


def _refuse_idle(named: list[str], collective: str) -> None:
    """Raises InvalidArgumentError for missing or idle options among the names of those given."""
    if "--paper" in named:
        idle = [name for name in named if name not in ("--paper", "--json")]
        refuse_idle("--paper", [*filter(None, [collective]), *idle])
        return
    if not collective:
        raise plait.InvalidArgumentError("wanted a collective or --paper, found neither")
    if "--lanes" in named and "--plot" not in named:
        raise plait.InvalidArgumentError("--lanes: wanted --plot FILE beside it, found none")
    if "--factor" in named and "--end" not in named:
        raise plait.InvalidArgumentError("--factor: wanted -e SIZE beside it, found none")
    if is_plan_file(collective) and "--end" not in named:
        refuse_beside_plan(named)


def _engine_line(machine: plait.Topology, request: plait.Request, is_named: bool | str) -> str:
    """Returns a line on the engine that serves calls in place of the plan by lanes; empty if a plan
    was named or no engine serves the request."""
    if is_named or all(device.kind != "gpu" for device in machine.devices):
        return ""
    runs = what_runs.by_engine(machine, request, "", {})
    if runs is None or runs.why_not:
        return ""
    took = time_text(runs.predicted_us)
    return (
        f"Calls run engine {runs.engine} here, predicted {took} in a graph (see plait plan). "
        "Above is the fastest plan by lanes."
    )


def _no_kernels(why_not: str) -> str:
    return f"plait does not run on these GPUs: {why_not}. Times are the simulator's alone."


def _write(timeline: plait.Timeline, shown: plait.Plan, trace: str, plot: str, lanes: bool) -> None:
    """Writes the trace and the picture where a file is named, and says so."""
    if trace:
        outputs.write_text(trace, timeline.to_trace_json(shown), "--trace")
        err.print(f"wrote {trace}", markup=False)
    if plot:
        from plait.timeline_plot import plot as plot_timeline

        plot_timeline(timeline, shown, plot, lanes)
        err.print(f"wrote {plot}", markup=False)


def _over_sizes(
    machine: plait.Topology,
    ranks: int | None,
    task: tuple[str, str, str, str, str, int],
    plot: str,
    as_json: bool,
) -> None:
    """Prints, and plots, all ways of a collective over sizes."""
    from plait import by_size

    collective, plait_type, op, first, last, factor = task
    ranks = ranks or usual_ranks(machine)
    named = plait.Request(collective, 0, plait_type, op, ranks, 0, min(1, ranks - 1))
    sizes.check_op(named)
    limits = (sizes.parse_bytes(first), sizes.parse_bytes(last))
    if limits[0] == 0:
        raise plait.InvalidArgumentError("--bytes: wanted a size above 0 beside -e, found 0")
    wanted = [*sizes.sizes(*limits, factor, 0, ("--bytes", "--end"))]
    with progress_bar(len(wanted), "sizes") as progress:
        found = by_size.predict(
            machine,
            named.collective,
            ranks,
            wanted,
            named.type,
            named.op,
            lambda: progress.advance(progress.task_ids[0]),
        )
    if plot:
        by_size.plot(found, plot)
        err.print(f"wrote {plot}", markup=False)
    if as_json:
        out.print(json.dumps(found.as_json()), markup=False)
        return
    out.print(f"{sizes.kind_of(named)}, {ranks} ranks of {machine.name}, predicted:", markup=False)
    why_not = next(iter(found.ways.values())).runs.why_not
    if why_not:
        out.print(_no_kernels(why_not), markup=False)
    runs_or_would = "would run" if why_not else "runs"
    shown = table("size", runs_or_would, ">time", ">busbw GB/s", "fastest of all", ">time")
    for size, of_size in found.ways.items():
        runs, best = of_size.running, by_size.fastest(of_size)
        names = (by_size.line_name(runs), by_size.line_name(best))
        more = ("", "") if best == runs else (f"{names[1]}, {best.may}", time_text(best.us))
        cells = (outputs.human_bytes(size), names[0], time_text(runs.us), figure(runs.busbw))
        shown.add_row(*cells, *more)
    out.print(shown)
    head, rows = by_size.table_rows(found)
    every = table(
        *head,
        title=f"engines and strategies, each at its best parameters, us; *: what {runs_or_would}",
    )
    every.box, every.pad_edge = None, False
    for column in every.columns:
        column.no_wrap = True
    for row in rows:
        every.add_row(*row)
    out.print(every, soft_wrap=False, crop=False, no_wrap=True, overflow="ignore")


def _simulate_paper(paper: str, as_json: bool) -> None:
    from plait.evidence import papers

    with progress_bar(len(papers.experiments(paper)), "papers' experiments") as progress:
        rows = papers.paper_rows(paper, lambda: progress.advance(progress.task_ids[0]))
    if as_json:
        said = [{**asdict(row), "deviation": row.deviation, "ok": row.ok} for row in rows]
        out.print(json.dumps(said, indent=1), markup=False)
        return
    columns = ("id", "kind", "experiment", "claim", "simulated", "deviation", "ok", "reason")
    shown = table(*columns, title="claims of the papers, simulated")
    for row in rows:
        deviation = "" if row.deviation is None else f"{100 * row.deviation:+.1f} %"
        simulated = "" if row.simulated is None else f"{row.simulated:.4g} {row.unit}"
        ok = "yes" if row.ok else "no"
        shown.add_row(row.id, row.kind, row.what, row.claim, simulated, deviation, ok, row.reason)
    out.print(shown)
    must = [row for row in rows if row.kind == "must"]
    out.print(f"{sum(row.ok for row in must)} of {len(must)} rows marked must hold")


def report(
    file: Annotated[str, typer.Argument(help="The HTML page to write: plait.html.")] = "",
    output: Annotated[str, typer.Option("--output", "-o", help="The same as FILE.")] = "",
    topology: TopologyOption = "",
    without: WithoutOption = None,
    evidence: Annotated[bool, typer.Option(help="Rerun the papers' experiments too.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Write one page: what calls run, beside NCCL, the links at work, what is left; evidence."""
    from plait.commands import report_page as page
    from plait.evidence import papers

    if file and output:
        raise plait.InvalidArgumentError(f"wanted one page to write, found {file} and {output}")
    file = file or output
    if as_json and file:
        raise plait.InvalidArgumentError(
            f"--json prints what the page shows, and writes none; leave {file} out"
        )
    file = "" if as_json else file or "plait.html"
    outputs.check(file, "report")
    machine = asked_machine(topology, without)
    total = len(page.SIZES) + (len(papers.experiments()) if evidence else 0)
    words = "sizes, papers' experiments (--no-evidence: none)" if evidence else "sizes"
    with progress_bar(total, words) as progress:
        found = page.of_machine(machine, evidence, lambda: progress.advance(progress.task_ids[0]))
    if as_json:
        out.print(json.dumps(found.as_json(), indent=1), markup=False)
        return
    outputs.write_text(file, page.html_of(found), "report")
    out.print(f"wrote {file}", markup=False)
