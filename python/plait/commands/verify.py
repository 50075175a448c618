"""`plait verify`: a plan from a file, or every known plan."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import plait
from plait import prove
from plait.commands.console import (
    COMPLETES_STRATEGIES,
    JsonOption,
    LoadOption,
    TopologyOption,
    load,
    out,
    progress_bar,
    table,
)
from plait.commands.console import machine as asked_machine
from plait.plan_files import load_plan

MOST_GROUPS = 20


def verify(
    plan_file: Annotated[str, typer.Argument(help="A plan as JSON; '-' = standard input.")] = "",
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Every strategy x topology x ranks x odd size; engines, if no "
            "-T and no -s narrow the proof.",
        ),
    ] = False,
    engines: Annotated[
        bool, typer.Option("--engines", help="Every engine's calls; they need no topology.")
    ] = False,
    topology: TopologyOption = "",
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            "-s",
            help="With --all: this strategy's plans alone.",
            autocompletion=COMPLETES_STRATEGIES,
        ),
    ] = "",
    loaded: LoadOption = None,
    as_json: JsonOption = False,
) -> None:
    """Prove a plan from a file, every plan of a machine, or every plan there is.

    With FILE, -T also checks that the machine has the plan's ranks and paths.
    """
    load(loaded)
    if strategy and not everything:
        raise plait.InvalidArgumentError("--strategy goes with --all")
    if topology and engines and not everything:
        raise plait.InvalidArgumentError(
            "--engines goes without --topology: engines are proved for all machines"
        )
    if everything or engines:
        if plan_file:
            raise plait.InvalidArgumentError(
                f"wanted a plan file, --all or --engines, found {plan_file} too"
            )
        cases: list[prove.ProofCase | prove.EngineCallCase] = []
        if everything:
            cases += _strategy_cases([topology] if topology else None, strategy)
        if engines or (everything and not topology and not strategy):
            cases += prove.engine_cases()
        _verify_all(cases, loaded or [], as_json)
        return
    if not plan_file:
        raise plait.InvalidArgumentError("wanted a plan file, --all or --engines, found none")
    shown = load_plan(plan_file)
    machine = asked_machine(topology) if topology else None
    report = plait.verify(shown)
    if machine and report.proved:
        _check_paths(shown, machine)
    out.print(report.to_json() if as_json else str(report), markup=False)
    if not report.proved:
        raise typer.Exit(1)


def _check_paths(shown: plait.Plan, machine: plait.Topology) -> None:
    """Raises an error for a plan whose ranks or paths the machine lacks, as the simulator does."""
    try:
        plait.simulate(shown, machine)
    except plait.Error as error:
        text, _, _ = str(error).partition("; verify() lists")
        text = text.removeprefix("invalid argument: ").removeprefix("cannot simulate ")
        where = f"--topology {machine.name}: the plan is proved for {shown.topology}"
        raise type(error)(f"{where}, but not for this machine: {text}") from None


def _strategy_cases(topologies: list[str] | None, strategy: str) -> list[prove.ProofCase]:
    known = [info.name for info in plait.strategies()]
    if strategy and strategy not in known:
        raise plait.InvalidArgumentError(
            f"--strategy: wanted one of {', '.join(known)}, found {strategy!r}"
        )
    by_strategy = prove.all_cases(topologies)
    return [case for case in by_strategy if strategy in ("", case.strategy)]


def _verify_all(
    cases: list[prove.ProofCase | prove.EngineCallCase], loaded: list[str], as_json: bool
) -> None:
    outcomes = []
    with progress_bar(len(cases), "proving") as progress:
        for outcome in prove.prove_all(cases, loaded=loaded):
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
    counts = (">proved", ">in rank order", ">with findings", ">refused")
    shown = table("strategy", *counts, title="proofs by strategy")
    for name, row in sorted(result["strategies"].items()):
        found = (row["proved"], row["rank_order"], row["found"], row["refused"])
        shown.add_row(name, *map(str, found))
    if result["strategies"]:
        out.print(shown)
    shown = table("engine", ">proved", ">with findings", ">refused", title="proofs by engine")
    for name, row in sorted(result["engines"].items()):
        shown.add_row(name, str(row["proved"]), str(row["found"]), str(row["refused"]))
    if result["engines"]:
        out.print(shown)
    else:
        out.print("engines are proved for all machines at once: plait verify --engines")
    _print_groups(result)
    out.print(
        f"{result['proved']} cases proved, {result['findings']} findings, "
        f"{result['refused']} refused: outside what their strategy or engine takes, not a failure"
    )


def _print_groups(result: dict[str, Any]) -> None:
    """Prints each kind of finding once, with its smallest case."""
    groups = result["groups"]
    for group in groups[:MOST_GROUPS]:
        where = f": {group['where']}" if group["where"] else ""
        cases = f"{group['cases']:,} case{'s' if group['cases'] > 1 else ''}"
        out.print(f"{group['what']}{where} ({cases})", markup=False)
        out.print(f"  {group['example']}: {group['finding']}", markup=False)
    if groups:
        shown = sum(group["cases"] for group in groups[:MOST_GROUPS])
        out.print(
            f"{min(len(groups), MOST_GROUPS)} of {len(groups):,} kinds of findings shown, of "
            f"{shown:,} of {len(result['failures']):,} cases; --json has all"
        )
