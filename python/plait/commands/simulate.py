"""`plait simulate` and `plait report`: predictions, and a comparison with measurements."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

import plait
from plait import outputs
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
    load,
    out,
    progress_bar,
    table,
)
from plait.commands.console import machine as asked_machine
from plait.commands.plan import plan_asked_for, proved_plan, request_of
from plait.plan_files import is_plan_file, machine_of


def simulate(
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
    plot: Annotated[str, typer.Option(help="Write a picture of ranks and links here.")] = "",
    lanes: Annotated[
        bool, typer.Option("--lanes", help="With --plot: draw the ranks' lanes too.")
    ] = False,
    paper: Annotated[
        str,
        typer.Option(
            help="Rerun papers' experiments: micro, collaborative, wotir, direct, nodes, all"
        ),
    ] = "",
    loaded: LoadOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict when each op of a plan runs, and what bounds it."""
    if paper:
        _simulate_paper(paper, as_json)
        return
    if not collective:
        raise plait.InvalidArgumentError("wanted a collective or --paper, found neither")
    outputs.check(trace, "--trace")
    outputs.check_picture(plot, "--plot")
    load(loaded)
    if is_plan_file(collective):
        shown = proved_plan(collective)
        machine = asked_machine(topology, without) if topology else machine_of(shown)
    else:
        machine = asked_machine(topology, without)
        request = request_of(machine, collective, size, plait_type, op, ranks, counts)
        shown = plan_asked_for(machine, request, strategy, *plait.ranked(machine, request))
    timeline = plait.simulate(shown, machine)
    if trace:
        outputs.write_text(trace, timeline.to_trace_json(shown))
    if plot:
        from plait.timeline_plot import plot as plot_timeline

        plot_timeline(timeline, shown, plot, lanes)
    out.print(timeline.to_json() if as_json else str(timeline), markup=False)


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
    topology: TopologyOption = "",
    without: WithoutOption = None,
    evidence: Annotated[bool, typer.Option(help="Rerun the papers' experiments too.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Write one page: links, predictions, measurements, evidence."""
    from plait.commands import report_page as page
    from plait.evidence import papers

    if as_json and file:
        raise plait.InvalidArgumentError(
            f"--json prints what the page shows, and writes none; leave {file} out"
        )
    file = "" if as_json else file or "plait.html"
    outputs.check(file, "report")
    machine = asked_machine(topology, without)
    total = len(papers.experiments()) if evidence else 0
    with progress_bar(total, "papers' experiments (--no-evidence: none)") as progress:
        found = page.of_machine(machine, evidence, lambda: progress.advance(progress.task_ids[0]))
    if as_json:
        out.print(json.dumps(found.as_json(), indent=1), markup=False)
        return
    outputs.write_text(file, page.html_of(found))
    out.print(f"wrote {file}", markup=False)
