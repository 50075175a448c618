"""`plait verify`: a plan from a file, or every known plan."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import plait
from plait import prove
from plait.commands.console import (
    JsonOption,
    LoadOption,
    TopologyOption,
    load,
    out,
    progress_bar,
    table,
)
from plait.plan_files import load_plan


def verify(
    plan_file: Annotated[str, typer.Argument(help="A plan as JSON; '-' = standard input.")] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Every strategy x topology x ranks x odd size; engines.")
    ] = False,
    topology: TopologyOption = "",
    strategy: Annotated[
        str, typer.Option("--strategy", "-s", help="With --all: this strategy's plans alone.")
    ] = "",
    loaded: LoadOption = None,
    as_json: JsonOption = False,
) -> None:
    """Prove a plan from a file, or every plan there is."""
    load(loaded)
    if everything:
        _verify_all([topology] if topology else None, strategy, loaded or [], as_json)
        return
    if strategy:
        raise plait.InvalidArgumentError("--strategy goes with --all")
    if not plan_file:
        raise plait.InvalidArgumentError("wanted a plan file or --all, found neither")
    report = plait.verify(load_plan(plan_file))
    out.print(report.to_json() if as_json else str(report), markup=False)
    if not report.proved:
        raise typer.Exit(1)


def _verify_all(
    topologies: list[str] | None, strategy: str, loaded: list[str], as_json: bool
) -> None:
    by_strategy = list(prove.all_cases(topologies))
    cases: list[prove.ProofCase | prove.EngineCallCase] = []
    if strategy:
        known = [info.name for info in plait.strategies()]
        if strategy not in known:
            raise plait.InvalidArgumentError(
                f"--strategy: wanted one of {', '.join(known)}, found {strategy!r}"
            )
        cases += [case for case in by_strategy if case.strategy == strategy]
    else:
        cases += [*by_strategy, *prove.engine_cases()]
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
    out.print(shown)
    shown = table("engine", ">proved", ">with findings", ">refused", title="proofs by engine")
    for name, row in sorted(result["engines"].items()):
        shown.add_row(name, str(row["proved"]), str(row["found"]), str(row["refused"]))
    out.print(shown)
    for failure in result["failures"][:20]:
        out.print(f"{failure['case']}: {failure['findings'][0]}", markup=False)
    out.print(
        f"{result['proved']} cases proved, {result['findings']} findings, "
        f"{result['refused']} refused by their strategy or engine"
    )
