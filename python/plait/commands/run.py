"""Commands `plait run` and `plait profile`: parse options and print results."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import plait
from plait import run as run_module
from plait import same_bits
from plait.commands.console import JsonOption, err, out, table
from plait.outputs import human_bytes, why

# Options after the program's name belong to the program.
SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def program(words: list[str] | None) -> list[str] | None:
    """Callback that refuses an unknown option in place of the program."""
    if words and words[0].startswith("-"):
        raise plait.InvalidArgumentError(
            f"wanted a program, found {words[0]}, which is no option of this command; see --help"
        )
    return words


CommandArgument = Annotated[
    list[str], typer.Argument(help="The program and its arguments.", callback=program)
]
ViaOption = Annotated[
    str, typer.Option(help="preload, audit, library or mpi; default: what the program needs.")
]
DoorOption = Annotated[str, typer.Option("--door", hidden=True, help="The old name of --via.")]


def _drop_in(file: str) -> str:
    """Callback that refuses a drop-in that is not there."""
    if file and not Path(file).is_file():
        raise plait.InvalidArgumentError(f"--drop-in: wanted a library, found no file {file}")
    return file


DropInOption = Annotated[
    str, typer.Option(help="Another drop-in than plait's own.", callback=_drop_in)
]


def _entry_point(via: str, door: str) -> str:
    """The name given by --via, or by --door, the old name; empty = let `plait run` choose."""
    name = via or door
    if name and name not in run_module.ENTRY_POINTS:
        raise plait.InvalidArgumentError(
            f"--via: wanted one of {', '.join(run_module.ENTRY_POINTS)}, found {name!r}"
        )
    return name


def cannot_run(command: list[str], error: OSError) -> NoReturn:
    """Exits as a shell does: 127 if the program is missing, 126 if not executable."""
    err.print(f"plait: cannot run {command[0]}: {error.strerror or error}", markup=False)
    raise typer.Exit(127 if isinstance(error, FileNotFoundError) else 126) from None


def run(
    command: CommandArgument,
    via: ViaOption = "",
    door: DoorOption = "",
    drop_in: DropInOption = "",
    bitwise: Annotated[
        bool, typer.Option("--bitwise", help="Sum in rank order or fail; report what plait served.")
    ] = False,
    sum_order: Annotated[
        str,
        typer.Option(
            help="rank_order, tree or tree_rounded: as --bitwise, in this order; also written "
            "--bitwise=tree."
        ),
    ] = "",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print as JSON how the program would be run; run nothing."),
    ] = False,
) -> None:
    """Run a program with its NCCL or MPI calls served.

    plait run -- torchrun --nproc-per-node 2 train.py
    """
    via = _entry_point(via, door)
    order = same_bits.order_of("--sum-order", sum_order) or ("rank_order" if bitwise else "")
    if as_json:
        out.print(json.dumps(_how(command, via, drop_in, order), indent=1), markup=False)
        return
    try:
        if order:
            raise typer.Exit(same_bits.execute(command, via, drop_in, order))
        run_module.run(command, via, drop_in)
    except OSError as error:
        cannot_run(command, error)


# Options whose next word is their value.
_TAKE_A_VALUE = {"--via", "--door", "--drop-in", "--sum-order"}


def with_order(words: list[str]) -> list[str]:
    """Returns the words of a command line with --bitwise=ORDER of `plait run` as --sum-order."""
    if words[:1] != ["run"]:
        return words
    of_program = 1
    while of_program < len(words) and words[of_program].startswith("-"):
        if words[of_program] == "--":
            break
        of_program += 2 if words[of_program] in _TAKE_A_VALUE else 1
    own = [word.replace("--bitwise=", "--sum-order=", 1) for word in words[:of_program]]
    return [*own, *words[of_program:]]


def _how(command: list[str], via: str, drop_in: str, order: str) -> dict[str, Any]:
    """Returns how `plait run` runs a command, as JSON. via: empty if the program runs unchanged;
    env: the variables that differ from this environment."""
    if order:
        chosen, more = same_bits.plan(command, via, drop_in, order=order)
    else:
        chosen, more = run_module.plan(command, via, drop_in), []
    env = {name: text for name, text in chosen.env.items() if os.environ.get(name) != text}
    said = [chosen.said, *more]
    # "door" is the old name of "via".
    return {"command": command, "via": chosen.via, "door": chosen.via, "said": said, "env": env}


def profile(
    command: CommandArgument,
    via: ViaOption = "",
    door: DoorOption = "",
    drop_in: DropInOption = "",
    folder: Annotated[str, typer.Option(help="For table, plot and trace.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Run a program and say what its collectives of NCCL or MPI cost.

    By size and path: calls, time, share of the run. Calls of plait's own communicators
    (plait.init) are not counted. With --json, what the program prints goes to standard error.
    """
    from plait import profile as profile_module

    try:
        status, where, rows = profile_module.profile(
            command, folder, _entry_point(via, door), drop_in, apart=as_json
        )
    except OSError as error:
        if error.filename == command[0]:
            cannot_run(command, error)
        what = (
            f"--folder: wanted to write in {folder}" if folder else f"cannot profile {command[0]}"
        )
        raise plait.FileError(f"{what}: {why(error)}") from None
    if not folder and (as_json or not rows):  # no line below names the folder
        shutil.rmtree(where, ignore_errors=True)
    if as_json:
        out.print(json.dumps([vars(row) for row in rows], indent=1), markup=False)
        raise typer.Exit(status)
    if not rows:
        out.print(
            "no process made a collective call of NCCL or MPI, all that plait profile counts; "
            "calls of plait's own communicators (plait.init) are in comm.counters()",
            markup=False,
        )
        raise typer.Exit(status)
    of_all = (">calls, all ranks", ">bytes, all ranks")
    figures = (">size from", *of_all, ">us a call", "timed by", ">share of the run")
    shown = table("collective", "path", *figures, title="collectives, most costly first")
    for row in rows:
        sizes = (human_bytes(row.size_below // 2), str(row.calls), human_bytes(row.bytes))
        times = (f"{row.us_a_call:.1f}", row.timed_by, f"{100 * row.share:.1f} %")
        shown.add_row(row.collective, row.path, *sizes, *times)
    out.print(shown)
    paths = profile_module.bytes_of_path(profile_module.load(where))
    if paths:
        sent = table("path", ">bytes", title="bytes of plait's calls, by path")
        for path, count in sorted(paths.items()):
            sent.add_row(path, human_bytes(count))
        out.print(sent)
    parts = profile_module.memory(profile_module.load(where))
    if parts:
        held = table("part", "where", ">most a process", title="plait's memory, by part")
        for part, (on_gpu, count) in parts.items():
            held.add_row(part, "GPU" if on_gpu else "host", human_bytes(count))
        out.print(held)
    names = [name for name in ("profile.csv", "sizes.png", "trace.json") if (where / name).exists()]
    out.print(f"{', '.join(names)}: in {where}", markup=False)
    raise typer.Exit(status)
