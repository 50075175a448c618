"""The `plait` command. Data goes to standard output, progress to standard error.

Exit statuses are those of errors.def: 0 ok, 1 failure, 2 usage, 3 no such device.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Table

import plait
from plait import bench as bench_module
from plait import doctor as doctor_module
from plait import outputs, prove, run_command
from plait import run as run_module
from plait.bench_command import bench
from plait.console import (
    BytesOption,
    JsonOption,
    OpOption,
    RanksOption,
    TopologyOption,
    TypeOption,
    WithoutOption,
    err,
    out,
    progress_bar,
)
from plait.console import machine as asked_machine
from plait.tune_command import tune

app = typer.Typer(
    help="Moves and reduces data between the GPUs of a machine over every path at once.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def _request(
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
    bytes_wanted = bench_module.parse_bytes(size)
    count = bench_module.count_for(named.collective, bytes_wanted, named.type, ranks)
    return plait.Request(collective, count, plait_type, op, ranks, 0, min(1, ranks - 1))


def human_bytes(size: float) -> str:
    """1048576 -> '1 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


@app.command()
def topo(
    topology: TopologyOption = "",
    without: WithoutOption = None,
    as_json: JsonOption = False,
    listed: Annotated[bool, typer.Option("--list", help="Name the shipped topologies.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time the links of this machine's GPUs.")
    ] = False,
    write: Annotated[str, typer.Option(help="Write the topology here, for -T.")] = "",
) -> None:
    """Show the machine: the matrix, every named path and its speed."""
    if listed:
        names = plait.shipped_topologies()
        out.print(json.dumps(names) if as_json else "\n".join(names))
        return
    outputs.check(write, "--write")
    if measure:
        if topology or without:
            raise plait.InvalidArgumentError(
                "--measure goes without --topology and --without: it times this machine as it is"
            )
        machine = _measured(plait.discover(), as_json)
    else:
        machine = asked_machine(topology, without)
        out.print(machine.to_json() if as_json else str(machine), markup=False)
    if write:
        outputs.write_text(write, machine.to_json() + "\n")


def _measured(machine: plait.Topology, as_json: bool) -> plait.Topology:
    """Times every link, prints the figures, and returns the topology made of them."""
    from plait import measure

    with progress_bar(1, "measuring") as progress:
        bar = progress.task_ids[0]
        rows = measure.measure(
            lambda done, of: progress.update(bar, completed=done, total=of),
        )
    if as_json:
        out.print(measure.as_json(machine, rows), markup=False)
    else:
        table = Table(title="measured, copy engines, in total")
        for column in ("path", "how", "GB/s"):
            table.add_column(column, justify="right" if column == "GB/s" else "left")
        for row in rows:
            table.add_row(row.path, row.how, f"{row.gb_per_s:.1f}")
        out.print(table)
    return measure.measured_topology(machine, rows)


@app.command()
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
    request = _request(machine, collective, size, plait_type, op, ranks)
    plans, refusals = plait.ranked(machine, request)
    shown = _chosen(machine, request, strategy, plans, refusals)
    if as_json:
        out.print(shown.to_json(), markup=False)
        return
    _print_ranking(plans, refusals)
    kernel = "" if strategy else _kernel_instead(machine, request)
    if kernel:
        out.print(
            f"on GPUs that plait has device code for, the kernel {kernel} does it instead, as"
            " measured on HGX H200, where no `plait tune` table or sm_budget says otherwise",
            markup=False,
        )
    _print_plan(machine, shown, ops)


def _kernel_instead(machine: plait.Topology, request: plait.Request) -> str:
    """What GPUs with a link of their own to each other run instead of a plan; empty: nothing."""
    ends = request.checked(machine).devices
    linked = {(link.src, link.dst) for link in machine.links if link.kind == "nvlink"}
    everyone = all(a == b or (a, b) in linked for a in ends for b in ends)
    return plait.usual_kernel(request) if everyone else ""


def _chosen(
    machine: plait.Topology,
    request: plait.Request,
    strategy: str,
    plans: list[plait.RankedPlan],
    refusals: list[tuple[str, str]],
) -> plait.Plan:
    """The strategy asked for, else the plan that ranks first."""
    if strategy:
        name, params = bench_module.parse_strategy(
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
        table.add_row(path, human_bytes(size), f"{100 * size / total:.1f} %")
    out.print(table)
    if not report.proved:
        raise typer.Exit(1)


@app.command()
def verify(
    plan_file: Annotated[str, typer.Argument(help="A plan as JSON; '-' = standard input.")] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Every strategy x topology x rank count x odd size.")
    ] = False,
    topology: TopologyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Prove a plan from a file, or every plan there is."""
    if everything:
        _verify_all([topology] if topology else None, as_json)
        return
    if not plan_file:
        raise plait.InvalidArgumentError("wanted a plan file or --all, found neither")
    report = plait.verify(plait.Plan.from_json(_read(plan_file)))
    out.print(report.to_json() if as_json else str(report), markup=False)
    if not report.proved:
        raise typer.Exit(1)


MAX_FILE_BYTES = 64 << 20


def _read(name: str) -> str:
    """A plan's text. Refuses what is no regular file (a pipe could wait for ever) or too long."""
    wanted = f"wanted a regular file of at most {MAX_FILE_BYTES >> 20} MiB"
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            # Opened once and then looked at; without waiting for the writer of a pipe.
            with os.fdopen(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise plait.FileError(f"{wanted}, found {name}, which is none")
                data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise plait.FileError(f"{wanted}, found more in {name}")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise plait.FileError(f"{wanted}, found {name}: {error}") from None


def _verify_all(topologies: list[str] | None, as_json: bool) -> None:
    cases = list(prove.all_cases(topologies))
    outcomes = []
    with progress_bar(len(cases), "proving") as progress:
        for outcome in prove.prove_all(cases):
            outcomes.append(outcome)
            progress.advance(progress.task_ids[0])
    result = prove.summary(outcomes)
    if as_json:
        out.print(prove.dump(result), markup=False)
    else:
        _print_proofs(result)
    if result["findings"]:
        raise typer.Exit(1)


def _print_proofs(result: dict[str, Any]) -> None:
    table = Table(title="proofs by strategy")
    table.add_column("strategy")
    for column in ("proved", "in rank order", "with findings", "refused"):
        table.add_column(column, justify="right")
    for name, row in sorted(result["strategies"].items()):
        table.add_row(
            name, str(row["proved"]), str(row["rank_order"]), str(row["found"]), str(row["refused"])
        )
    out.print(table)
    for failure in result["failures"][:20]:
        out.print(f"{failure['case']}: {failure['findings'][0]}", markup=False)
    out.print(
        f"{result['proved']} plans proved, {result['findings']} findings, "
        f"{result['refused']} cases refused by their strategy"
    )


@app.command()
def simulate(
    collective: Annotated[str, typer.Argument(help="all_reduce, ...")] = "",
    size: BytesOption = "64M",
    topology: TopologyOption = "",
    ranks: RanksOption = None,
    plait_type: TypeOption = "fp32",
    op: OpOption = "sum",
    strategy: Annotated[str, typer.Option("--strategy", "-s")] = "",
    without: WithoutOption = None,
    trace: Annotated[str, typer.Option(help="Write a Perfetto/Chrome trace here.")] = "",
    plot: Annotated[str, typer.Option(help="Write a picture of lanes and links here.")] = "",
    paper: Annotated[
        str,
        typer.Option(help="Rerun papers' experiments: micro, collaborative, wotir, direct, all"),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Predict when each op of a plan runs, how long all takes, and what bounds it."""
    if paper:
        _simulate_paper(paper, as_json)
        return
    if not collective:
        raise plait.InvalidArgumentError("wanted a collective or --paper, found neither")
    outputs.check(trace, "--trace")
    outputs.check_picture(plot, "--plot")
    machine = asked_machine(topology, without)
    request = _request(machine, collective, size, plait_type, op, ranks)
    shown = _chosen(machine, request, strategy, *plait.ranked(machine, request))
    timeline = plait.simulate(shown, machine)
    if trace:
        outputs.write_text(trace, timeline.to_trace_json(shown))
    if plot:
        from plait.timeline_plot import plot as plot_timeline

        plot_timeline(timeline, shown, plot)
    out.print(timeline.to_json() if as_json else str(timeline), markup=False)


def _simulate_paper(paper: str, as_json: bool) -> None:
    from dataclasses import asdict

    from plait import papers

    rows = papers.paper_rows(paper)
    if as_json:
        said = [{**asdict(row), "deviation": row.deviation, "ok": row.ok} for row in rows]
        out.print(json.dumps(said, indent=1), markup=False)
        return
    table = Table(title="claims of the papers, simulated", show_lines=False)
    for column in ("id", "kind", "experiment", "claim", "simulated", "deviation", "ok", "reason"):
        table.add_column(column)
    for row in rows:
        deviation = "" if row.deviation is None else f"{100 * row.deviation:+.1f} %"
        simulated = "" if row.simulated is None else f"{row.simulated:.4g} {row.unit}"
        ok = "yes" if row.ok else "no"
        table.add_row(row.id, row.kind, row.what, row.claim, simulated, deviation, ok, row.reason)
    out.print(table)
    must = [row for row in rows if row.kind == "must"]
    out.print(f"{sum(row.ok for row in must)} of {len(must)} rows marked must hold")


@app.command()
def report(
    file: Annotated[str, typer.Argument(help="The HTML page to write.")] = "plait.html",
    topology: TopologyOption = "",
    without: WithoutOption = None,
    evidence: Annotated[bool, typer.Option(help="Rerun the papers' experiments too.")] = True,
) -> None:
    """Write one self-contained page: links, predictions beside measurements, evidence."""
    from plait.report import write_report

    write_report(asked_machine(topology, without), file, evidence)
    out.print(f"wrote {file}", markup=False)


app.command()(bench)
app.command()(tune)
app.command(context_settings=run_command.SETTINGS)(run_command.run)
app.command(context_settings=run_command.SETTINGS)(run_command.profile)


@app.command(context_settings=run_command.SETTINGS)
def doctor(
    command: Annotated[
        list[str] | None, typer.Argument(help="A program: say how `plait run` would run it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is there, what is missing, and what to do."""
    checks = run_module.examine(command) if command else doctor_module.examine()
    if as_json:
        out.print(json.dumps([vars(check) for check in checks], indent=1), markup=False)
    else:
        table = Table()
        for column in ("what", "state", "found", "what to do"):
            table.add_column(column)
        for check in checks:
            table.add_row(check.what, check.state, check.found, check.advice)
        out.print(table)
    if any(check.state == "broken" for check in checks):
        raise typer.Exit(1)


def _version(show: bool) -> None:
    if show:
        out.print(plait.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def main() -> NoReturn:
    """Runs the command line; plait's errors become one line and their exit status."""
    try:
        app()
    except plait.Error as error:
        err.print(f"plait: {error}", markup=False)
        sys.exit(error.exit_code)
    sys.exit(0)


if __name__ == "__main__":
    main()
