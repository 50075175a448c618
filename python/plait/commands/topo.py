"""`plait topo`: shows the machine as found, given or measured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

import plait
from plait import _core, gpu, machines, outputs
from plait.commands.console import (
    JsonOption,
    TopologyOption,
    WithoutOption,
    given,
    out,
    progress_bar,
    refuse_idle,
    table,
)
from plait.commands.console import machine as asked_machine

OF_TEMPLATES = ("--gpus", "--sockets", "--pcie", "--nvlink-pairs", "--switches")
# The options that each of these takes beside it.
BESIDE = {
    "--list": ("--json",),
    "--new": (*OF_TEMPLATES, "--model", "--force"),
    "--from": ("--model", "--without", "--json", "--write", "--force"),
    "--measure": ("--json", "--write", "--force"),
}
# What options want beside them; each counts only with one of the options named.
WANTED = {
    **dict.fromkeys(OF_TEMPLATES, ("--new",)),
    "--model": ("--new", "--from"),
    "--force": ("--new", "--write"),
}

FromOption = Annotated[
    str,
    typer.Option(
        "--from",
        help="Read another tool's file ('-' = standard input): nvidia-smi topo -m, NCCL's XML, "
        "hwloc's XML.",
    ),
]


def topo(
    context: typer.Context,
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
    source: FromOption = "",
    new: Annotated[str, typer.Option(help="Write a topology template of PCIe GPUs here.")] = "",
    gpus: Annotated[int, typer.Option(help="With --new: GPUs.")] = 4,
    sockets: Annotated[
        int | None,
        typer.Option(
            help="With --new: sockets, equal parts; default: 2, of odd numbers of GPUs 1."
        ),
    ] = None,
    pcie: Annotated[int, typer.Option(help="With --new: PCIe generation, 16 lanes a GPU.")] = 4,
    nvlink_pairs: Annotated[int, typer.Option(help="With --new: NVLinks a pair of GPUs.")] = 0,
    switches: Annotated[int, typer.Option(help="With --new: PCIe switches.")] = 0,
    model: Annotated[
        str, typer.Option(help='With --from and --new: model of the GPUs, as in "NVIDIA L40S".')
    ] = "",
    write: Annotated[str, typer.Option(help="Write the topology here, for -T.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="With --new and --write: overwrite an existing file.")
    ] = False,
) -> None:
    """Show the machine: the matrix, every named path and its speed."""
    _refuse_idle(given(context))
    if listed:
        names = plait.shipped_topologies()
        out.print(json.dumps(names) if as_json else "\n".join(names))
        return
    outputs.check_new(write, "--write", force)
    if new:
        outputs.check_new(new, "--new", force)
        sockets = 2 - gpus % 2 if sockets is None else sockets
        said = machines.template(Path(new).stem, gpus, sockets, pcie, nvlink_pairs, switches, model)
        outputs.write_text(new, json.dumps(said, indent=1) + "\n", "--new")
        out.print(f"{new}: give it your machine's figures, then: plait plan all_reduce -T {new}")
        return
    if source:
        _show_read(source, model, without, as_json, write)
        return
    if measure:
        machine = _measured(plait.discover(), as_json)
    else:
        machine = asked_machine(topology, without)
        if parameters:
            _show_parameters(machine, as_json)
        elif as_json or not write:
            out.print(machine.to_json() if as_json else str(machine), markup=False)
            if not as_json and not topology:
                _print_direct_access()
    if write:
        own = "" if measure or without else _own_text(topology)
        outputs.write_text(write, own or machine.to_json() + "\n", "--write")
        if not measure and not as_json:
            out.print(f"wrote {write}: plait plan all_reduce -T {write}", markup=False)


def _refuse_idle(named: list[str]) -> None:
    """Raises InvalidArgumentError if an option would have no effect beside the others."""
    if "--from" in named and "--topology" in named:
        raise plait.InvalidArgumentError("wanted one machine, found --from and --topology")
    for option, beside in BESIDE.items():
        if option in named:
            why = ": it times this machine itself" if option == "--measure" else ""
            refuse_idle(option, [one for one in named if one not in (option, *beside)], why)
    for option, wanted in WANTED.items():
        if option in named and not any(one in named for one in wanted):
            files = " or ".join(f"{one} FILE" for one in wanted)
            raise plait.InvalidArgumentError(f"{option}: wanted {files} beside it, found none")


def _own_text(name: str) -> str:
    """Returns the file of a named machine, which may have `switches` and a `network`; empty for
    machines without a file: this machine, several nodes, links left out."""
    name = name or os.environ.get("PLAIT_TOPOLOGY", "")
    if os.environ.get("PLAIT_WITHOUT"):
        return ""
    if name and Path(name).is_file():
        return Path(name).read_text()
    return "" if os.environ.get("PLAIT_DATA_DIR") else _core.shipped_topology_text(name)


def _print_direct_access() -> None:
    """Prints why calls of this machine's GPUs go through host memory, if they do."""
    if gpu.count() > 1 and (why := gpu.why_no_direct_access()):
        out.print(f"{why}: calls go through host memory (docs/pcie.md)", markup=False)


def _show_read(
    source: str, model: str, without: list[str] | None, as_json: bool, write: str
) -> None:
    """Prints the machine of another tool's file; writes the topology with its `network`."""
    name = write or (source if source != "-" else "machine")
    said = machines.as_json(machines.read(source, model), Path(name).stem)
    machine = plait.Topology.from_json(json.dumps(said))
    if without:
        machine = machine.without(without)
    out.print(machine.to_json() if as_json else str(machine), markup=False)
    if not as_json:
        out.print(f"source: {machine.source}", markup=False)
    if write:
        said = json.loads(machine.to_json()) if without else said
        outputs.write_text(write, json.dumps(said, indent=1) + "\n", "--write")
    elif not as_json:
        out.print(f"for plans: plait topo --from {source} --write box.json, then -T box.json")


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
