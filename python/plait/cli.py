"""The `plait` command. Data goes to standard output, progress to standard error.

Exit statuses are those of errors.def: 0 ok, 1 failure, 2 usage, 3 no such device.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import plait
from plait import bench as bench_module
from plait import doctor as doctor_module
from plait import launch, prove

app = typer.Typer(
    help="Moves and reduces data between the GPUs of a machine over every path at once.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
# Into a pipe or file, tables are as wide as they need to be.
PIPE_COLUMNS = 220
out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
err = Console(stderr=True, soft_wrap=True, highlight=False)

TopologyOption = Annotated[
    str, typer.Option("--topology", "-T", help="Shipped name or JSON file; default: this machine.")
]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option("--without", help="Leave links out: nvlink:0-1, host:0, relay:2."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")]
RanksOption = Annotated[int | None, typer.Option("--ranks", "-g", help="How many ranks.")]
TypeOption = Annotated[
    str, typer.Option("--type", "-d", help="Element type: fp32, bf16, int8, ...")
]
OpOption = Annotated[
    str, typer.Option("--op", "-o", help="Reduction: sum, prod, min, max, avg, ...")
]
BytesOption = Annotated[str, typer.Option("--bytes", "-b", help="Message size: 8, 64K, 1G.")]


def _machine(name: str, masks: list[str] | None) -> plait.Topology:
    topology = plait.load_topology(name) if name else plait.discover()
    return topology.without(masks) if masks else topology


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


def _params(text: str) -> tuple[str, dict[str, int]]:
    """'direct:pieces=2,throttle=1' -> ('direct', {...})."""
    name, _, rest = text.partition(":")
    try:
        pairs = [part.split("=") for part in rest.split(",") if part]
        return name, {key: int(value) for key, value in pairs}
    except ValueError:
        raise plait.InvalidArgumentError(
            f"wanted a strategy such as direct:pieces=2,throttle=1, found {text!r}"
        ) from None


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
) -> None:
    """Show the machine: the matrix, every named path and its speed."""
    if listed:
        names = plait.shipped_topologies()
        out.print(json.dumps(names) if as_json else "\n".join(names))
        return
    machine = _machine(topology, without)
    out.print(machine.to_json() if as_json else str(machine), markup=False)


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
    machine = _machine(topology, without)
    request = _request(machine, collective, size, plait_type, op, ranks)
    plans, refusals = plait.ranked(machine, request)
    shown = _chosen(machine, request, strategy, plans, refusals)
    if as_json:
        out.print(shown.to_json(), markup=False)
        return
    _print_ranking(plans, refusals)
    _print_plan(machine, shown, ops)


def _chosen(
    machine: plait.Topology,
    request: plait.Request,
    strategy: str,
    plans: list[plait.RankedPlan],
    refusals: list[tuple[str, str]],
) -> plait.Plan:
    """The strategy asked for, else the plan that ranks first."""
    if strategy:
        name, params = _params(strategy)
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


def _progress(total: int, what: str) -> Progress:
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        disable=not sys.stderr.isatty(),
    )
    progress.add_task(what, total=total)
    return progress


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


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise plait.FileError(f"wanted a readable file, found {name}: {error}") from None


def _verify_all(topologies: list[str] | None, as_json: bool) -> None:
    cases = list(prove.all_cases(topologies))
    outcomes = []
    with _progress(len(cases), "proving") as progress:
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
    machine = _machine(topology, without)
    request = _request(machine, collective, size, plait_type, op, ranks)
    shown = _chosen(machine, request, strategy, *plait.ranked(machine, request))
    timeline = plait.simulate(shown, machine)
    if trace:
        Path(trace).write_text(timeline.to_trace_json(shown))
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

    write_report(_machine(topology, without), file, evidence)
    out.print(f"wrote {file}", markup=False)


@app.command()
def bench(
    collective: str,
    ranks: Annotated[int, typer.Option("--ranks", "-g", help="How many ranks.")] = 2,
    first: Annotated[str, typer.Option("--min-bytes", "-b")] = "1K",
    last: Annotated[str, typer.Option("--max-bytes", "-e")] = "64M",
    step: Annotated[str, typer.Option("--step-bytes", "-i", help="Add this instead of -f.")] = "0",
    factor: Annotated[int, typer.Option("--factor", "-f")] = 2,
    iters: Annotated[int, typer.Option("--iters", "-n")] = 20,
    warmup: Annotated[int, typer.Option("--warmup", "-w")] = 1,
    op: OpOption = "sum",
    types: Annotated[str, typer.Option("--type", "-d", help="One or several: fp32,bf16")] = "fp32",
    root: Annotated[int, typer.Option("--root", "-r")] = 0,
    check: Annotated[int, typer.Option("--check", "-c", help="0: don't check results.")] = 1,
    strategies: Annotated[str, typer.Option(help="all, or names; default: plait's choice")] = "",
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 1,
    topology: TopologyOption = "",
    without: WithoutOption = None,
    plot: Annotated[str, typer.Option(help="Write a picture of busbw over size here.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Time and check a collective over sizes and strategies; nccl-tests' letters and columns."""
    wanted = list(
        bench_module.sizes(
            bench_module.parse_bytes(first),
            bench_module.parse_bytes(last),
            factor,
            bench_module.parse_bytes(step),
        )
    )
    type_list = types.split(",")
    for name in type_list:  # bad names are refused here, before any rank starts
        named = plait.Request(collective, 0, name, op, ranks, root, min(1, ranks - 1))
    task = {
        "topology": topology,
        "masks": without or [],
        "collective": named.collective,
        "types": [plait.Request(collective, 0, name).type for name in type_list],
        "sizes": wanted,
        "op": named.op,
        "root": root,
        "peer": (root + 1) % ranks,
        "iters": iters,
        "warmup": warmup,
        "check": bool(check),
        "seed": seed,
        "in_place": True,
        "strategies": [name for name in strategies.split(",") if name],
    }
    known = {info.name for info in plait.strategies()} | {"all"}
    if unknown := [name for name in strategies.split(",") if name and name not in known]:
        raise plait.InvalidArgumentError(
            f"wanted strategies out of {', '.join(sorted(known))}, found {', '.join(unknown)}"
        )
    rows = _run_bench(task, ranks, as_json)
    if not rows:
        raise plait.UnsupportedError(f"no strategy of {strategies!r} takes this request")
    if as_json:
        out.print(json.dumps(bench_json(task, rows), indent=1), markup=False)
    if plot:
        from plait.plots import plot_bench

        plot_bench(rows, plot)
    wrong = sum(row["wrong"] + (row["in_place_wrong"] or 0) for row in rows)
    if wrong or not bench_module.bitwise_equal(rows):
        raise typer.Exit(1)


def bench_json(task: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows in nccl-tests' JSON shape (config, results, out_of_bounds, ...), and more."""
    return {
        "version": plait.__version__,
        "config": task,
        "results": rows,
        "out_of_bounds": sum(row["wrong"] for row in rows),
        "average_bus_bandwidth": sum(row["busbw"] for row in rows) / max(len(rows), 1),
        "bitwise_equal": bench_module.bitwise_equal(rows),
    }


HEADER = (
    f"#{'size':>11} {'count':>12} {'type':>6} {'redop':>6} {'root':>4} {'time':>10} {'algbw':>8} "
    f"{'busbw':>8} {'#wrong':>6} {'in place':>10} {'#wrong':>6}  strategy\n"
    f"#{'(B)':>11} {'(elements)':>12} {'':>6} {'':>6} {'':>4} {'(us)':>10} {'(GB/s)':>8} "
    f"{'(GB/s)':>8} {'':>6} {'(us)':>10}"
)


def _run_bench(task: dict[str, Any], ranks: int, as_json: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    if not as_json:
        out.print(
            f"# plait {plait.__version__}, {task['collective']}, {ranks} ranks, times are the "
            f"slowest rank's mean\n{HEADER}",
            markup=False,
        )
    job = launch.start("plait.bench:rank_main", ranks, task)
    failure: dict[str, Any] | None = None
    for row in job.lines():
        if "error" in row:
            failure = failure or row
            continue
        rows.append(row)
        if not as_json:
            out.print(_bench_line(row), markup=False)
    statuses = job.wait()
    if failure is not None:
        err.print(f"rank {failure['rank']}: {failure['error']}", markup=False)
        raise typer.Exit(failure["exit_code"])
    if any(statuses):
        err.print(f"ranks ended with {statuses}")
        raise typer.Exit(1)
    if not as_json:
        _print_bench_end(rows)
    return rows


def _bench_line(row: dict[str, Any]) -> str:
    in_place = "-" if row["in_place_us"] is None else f"{row['in_place_us']:.1f}"
    wrong_in_place = "-" if row["in_place_wrong"] is None else row["in_place_wrong"]
    root = row["root"] if row["op"] == "none" else -1
    return (
        f"{row['size']:>12} {row['count']:>12} {row['type']:>6} {row['op']:>6} {root:>4} "
        f"{row['time_us']:>10.1f} {row['algbw']:>8.2f} {row['busbw']:>8.2f} {row['wrong']:>6} "
        f"{in_place:>10} {wrong_in_place:>6}  {row['strategy']}"
    )


def _print_bench_end(rows: list[dict[str, Any]]) -> None:
    wrong = sum(row["wrong"] + (row["in_place_wrong"] or 0) for row in rows)
    average = sum(row["busbw"] for row in rows) / max(len(rows), 1)
    groups = bench_module.bitwise_groups(rows)
    compared = sum(len(group) for group in groups.values())
    equal = "bitwise equal" if bench_module.bitwise_equal(rows) else "NOT BITWISE EQUAL"
    equal = equal if compared else "not compared"
    out.print(
        f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}\n"
        f"# Rank-order strategies: {equal} ({compared} results of {len(groups)} requests)\n"
        f"# Avg bus bandwidth    : {average:.3f}",
        markup=False,
    )


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Say what is there, what is missing, and what to do."""
    checks = doctor_module.examine()
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
