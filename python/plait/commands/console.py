"""Shared parts of all commands: consoles, common options, the machine, progress bars.

Data goes to standard output, progress to standard error.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

import plait
from plait import machines, planning, settings

# In a pipe or file, tables have their natural width.
PIPE_COLUMNS = 220
IS_TERMINAL = sys.stdout is not None and sys.stdout.isatty()
out = Console(soft_wrap=True, highlight=False, width=None if IS_TERMINAL else PIPE_COLUMNS)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def at_least(low: int) -> Callable[[typer.CallbackParam, int | None], int | None]:
    """Returns a callback that refuses numbers below `low`."""

    def checked(param: typer.CallbackParam, value: int | None) -> int | None:
        if value is not None and value < low:
            option = next(name for name in param.opts if name.startswith("--"))
            raise plait.InvalidArgumentError(f"{option}: wanted {low} or more, found {value}")
        return value

    return checked


def given(context: typer.Context) -> list[str]:
    """Returns the long names of options on the command line, in the order of --help."""
    return [
        next(name for name in option.opts if name.startswith("--"))
        for option in context.command.params
        if option.param_type_name == "option" and option.name is not None
        if getattr(context.get_parameter_source(option.name), "name", "") == "COMMANDLINE"
    ]


def refuse_idle(what: str, idle: Iterable[str], why: str = "") -> None:
    """Raises InvalidArgumentError if there are options without an effect beside `what`."""
    if names := ", ".join(idle):
        raise plait.InvalidArgumentError(f"{what} goes without {names}{why}")


OF_REQUESTS = ("--bytes", "--ranks", "--type", "--op", "--counts", "--strategy")


def refuse_beside_plan(named: list[str]) -> None:
    """Raises InvalidArgumentError for options that a plan's file states itself."""
    refuse_idle("a plan's file", [name for name in named if name in OF_REQUESTS])


def _names_from(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Returns a completion of names, and of file names where no name begins so."""

    def complete(incomplete: str) -> list[str]:
        found = [name for name in names() if name.startswith(incomplete)]
        return found or glob.glob(glob.escape(incomplete) + "*")

    return complete


COMPLETES_STRATEGIES = _names_from(
    lambda: [info.name for info in (*plait.strategies(), *plait.engines())]
)
TopologyOption = Annotated[
    str,
    typer.Option(
        "--topology",
        "-T",
        help="Shipped name or JSON file; default: this machine.",
        autocompletion=_names_from(plait.shipped_topologies),
    ),
]
StrategyOption = Annotated[
    str,
    typer.Option(
        "--strategy",
        "-s",
        help="name:param=value,...; default: plait's choice",
        autocompletion=COMPLETES_STRATEGIES,
    ),
]


def _split_masks(masks: list[str] | None) -> list[str]:
    """Callback that takes several masks in a value, as PLAIT_WITHOUT does. Typer up to 0.19.0 takes
    the length of the result."""
    return [mask for value in masks or [] for mask in value.split(",") if mask]


WithoutOption = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        help="Leave links out: nvlink:0-1, host:0, relay:2; also nvlink:0-1,host:0.",
        callback=_split_masks,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")]
RanksOption = Annotated[
    int | None, typer.Option("--ranks", "-g", "-n", help="How many ranks.", callback=at_least(1))
]
TypeOption = Annotated[
    str, typer.Option("--type", "-d", help="Element type: fp32, bf16, int8, ...")
]
OpOption = Annotated[
    str, typer.Option("--op", "-o", help="Reduction: sum, prod, min, max, avg, ...")
]
CountsOption = Annotated[
    str,
    typer.Option(
        "--counts",
        help="Sizes of blocks, with the same total: uniform, linear or one-heavy.",
    ),
]
BytesOption = Annotated[str, typer.Option("--bytes", "-b", help="Message size: 8, 64K, 1G.")]


WhatArgument = Annotated[
    str,
    typer.Argument(
        metavar="COLLECTIVE|FILE",
        help="all_reduce, ...; or a plan's file.",
        autocompletion=_names_from(lambda: planning.COLLECTIVES),
    ),
]
LoadOption = Annotated[
    list[str] | None,
    typer.Option("--load", help="A Python file that defines strategies (@plait.strategy)."),
]


def load(files: list[str] | None) -> None:
    """Loads files with strategies (--load)."""
    for file in files or []:
        planning.load(file)


def progress_bar(total: int, what: str, is_shown: bool = True) -> Progress:
    """Returns a progress bar on standard error; hidden without a terminal or a total."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=err,
        disable=not (is_shown and total > 0 and sys.stderr is not None and sys.stderr.isatty()),
        transient=True,
    )
    progress.add_task(what, total=total)
    return progress


def table(*columns: str, title: str | None = None) -> Table:
    """Returns an empty table. Columns whose names begin with '>' are right-aligned."""
    made = Table(title=title)
    for column in columns:
        made.add_column(column.removeprefix(">"), justify="right" if column[:1] == ">" else "left")
    return made


def machine(name: str = "", masks: list[str] | None = None) -> plait.Topology:
    """Returns the named topology; PLAIT_TOPOLOGY and PLAIT_WITHOUT give the defaults."""
    variable = os.environ.get("PLAIT_TOPOLOGY", "")
    with settings.of_variable("" if name else "PLAIT_TOPOLOGY"):
        topology = _loaded(name or variable) if name or variable else plait.discover()
    if masks:
        return topology.without(masks)
    masks = [word for word in os.environ.get("PLAIT_WITHOUT", "").split(",") if word]
    with settings.of_variable("PLAIT_WITHOUT"):
        return topology.without(masks) if masks else topology


def _loaded(name: str) -> plait.Topology:
    """Returns a shipped machine, or that of a file; an error names `plait topo --from` where the
    file is another tool's."""
    try:
        return plait.load_topology(name)
    except plait.ParseError:
        try:
            machines.read(name)
        except plait.Error:
            pass
        else:
            raise plait.ParseError(
                f"--topology {name}: wanted plait's JSON, found another tool's description of a "
                f"machine; plait topo --from {name} --write box.json makes the JSON"
            ) from None
        raise
