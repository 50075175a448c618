"""`plait topo`: shows the machine as found, given or measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import plait
from plait import machine_template, outputs
from plait.commands.console import (
    JsonOption,
    TopologyOption,
    WithoutOption,
    out,
    progress_bar,
    table,
)
from plait.commands.console import machine as asked_machine


def topo(
    topology: TopologyOption = "",
    without: WithoutOption = None,
    as_json: JsonOption = False,
    listed: Annotated[bool, typer.Option("--list", help="Name the shipped topologies.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time the links of this machine's GPUs.")
    ] = False,
    parameters: Annotated[
        bool,
        typer.Option("--parameters", help="Show the topology's other parameters, with defaults."),
    ] = False,
    new: Annotated[
        str, typer.Option(help="Write a topology template to this file: two sockets of PCIe GPUs.")
    ] = "",
    write: Annotated[str, typer.Option(help="Write the topology here, for -T.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="With --new and --write: overwrite an existing file.")
    ] = False,
) -> None:
    """Show the machine: the matrix, every named path and its speed."""
    if listed:
        names = plait.shipped_topologies()
        out.print(json.dumps(names) if as_json else "\n".join(names))
        return
    outputs.check_new(write, "--write", force)
    if new:
        outputs.check_new(new, "--new", force)
        said = machine_template.template(Path(new).stem)
        outputs.write_text(new, json.dumps(said, indent=1) + "\n")
        out.print(f"{new}: give it your machine's figures, then: plait plan all_reduce -T {new}")
        return
    if measure:
        if topology or without:
            raise plait.InvalidArgumentError(
                "--measure goes without --topology and --without: it times this machine as it is"
            )
        machine = _measured(plait.discover(), as_json)
    else:
        machine = asked_machine(topology, without)
        if parameters:
            _show_parameters(machine, as_json)
        else:
            out.print(machine.to_json() if as_json else str(machine), markup=False)
    if write:
        outputs.write_text(write, machine.to_json() + "\n")


def _show_parameters(machine: plait.Topology, as_json: bool) -> None:
    """Prints parameters that the topology states, then defaults of the rest."""
    stated = machine.parameters
    rows: list[tuple[str, float | str, str]]
    rows = [(key, value.value, value.source) for key, value in stated.items()]
    rows += [
        (key, otherwise, "default: not stated")
        for key, otherwise in plait.topology_parameters()
        if key not in stated
    ]
    if as_json:
        keys = ("name", "value", "source")
        out.print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows]), markup=False)
        return
    shown = table("parameter", ">value", "source")
    for key, value, source in rows:
        shown.add_row(key, value if isinstance(value, str) else f"{value:.12g}", source)
    out.print(shown, markup=False)


def _measured(machine: plait.Topology, as_json: bool) -> plait.Topology:
    """Times every link, prints the figures, and returns the topology made of them."""
    from plait.bench import links

    with progress_bar(1, "measuring") as progress:
        bar = progress.task_ids[0]
        rows = links.measure(
            lambda done, of: progress.update(bar, completed=done, total=of),
        )
    if as_json:
        out.print(links.as_json(machine, rows), markup=False)
    else:
        shown = table("path", "how", ">GB/s", title="measured, copy engines, in total")
        for row in rows:
            shown.add_row(row.path, row.how, f"{row.gb_per_s:.1f}")
        out.print(shown)
    return links.measured_topology(machine, rows)
