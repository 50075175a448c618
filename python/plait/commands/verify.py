"""`plait verify`: one plan from a file, or every plan there is."""

from __future__ import annotations

import json
import os
import stat
import sys
from typing import Annotated, Any

import typer
from rich.table import Table

import plait
from plait import prove
from plait.commands.console import JsonOption, TopologyOption, out, progress_bar


def verify(
    plan_file: Annotated[str, typer.Argument(help="A plan as JSON; '-' = standard input.")] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Every strategy x topology x ranks x odd size; engines.")
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
    report = plait.verify(_plan_of(_read(plan_file)))
    out.print(report.to_json() if as_json else str(report), markup=False)
    if not report.proved:
        raise typer.Exit(1)


def _plan_of(text: str) -> plait.Plan:
    """A plan's own JSON, or what `plait plan --json` prints around it."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None  # the plan's reader says where
    if isinstance(found, dict) and "plan" in found:
        text = json.dumps(found["plan"])
    return plait.Plan.from_json(text)


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
    cases: list[prove.Case | prove.EngineCase] = list(prove.all_cases(topologies))
    cases += prove.engine_cases()
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
    engines = Table(title="proofs by engine")
    engines.add_column("engine")
    for column in ("proved", "with findings", "refused"):
        engines.add_column(column, justify="right")
    for name, row in sorted(result["engines"].items()):
        engines.add_row(name, str(row["proved"]), str(row["found"]), str(row["refused"]))
    out.print(engines)
    for failure in result["failures"][:20]:
        out.print(f"{failure['case']}: {failure['findings'][0]}", markup=False)
    out.print(
        f"{result['proved']} cases proved, {result['findings']} findings, "
        f"{result['refused']} refused by their strategy or engine"
    )
