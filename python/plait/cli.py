"""The `plait` command. Data goes to standard output, progress to standard error.

Exit statuses follow errors.def: 0 ok, 1 failure, 2 usage, 3 no such device; 130 after Ctrl-C. run,
profile and launch return the program's status, 127 if the program is missing, 126 if not
executable.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

import plait
from plait import settings, standard_output
from plait.commands.bench import bench
from plait.commands.console import err, out
from plait.commands.doctor import doctor
from plait.commands.launch import launch
from plait.commands.plan import plan
from plait.commands.run import SETTINGS, profile, run, with_order
from plait.commands.simulate import report, simulate
from plait.commands.status import status
from plait.commands.topo import topo
from plait.commands.tune import tune
from plait.commands.verify import verify

app = typer.Typer(
    help="Moves and reduces data between the GPUs of a machine over every path at once.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="python -m plait --includes, --libdir, --cmakedir, --pkgconfigdir: for C and C++ builds",
)


# PLAIT_TUNING counts in these commands, or in the programs that they start. `plait tune` writes the
# file.
READ_TABLES: tuple[Callable[..., None], ...] = (
    *(plan, simulate, report, bench),
    *(run, profile, launch),
)


def _checked(command: Callable[..., None]) -> Callable[..., None]:
    """Wraps a command with a check of PLAIT_* variables, except doctor, which lists wrong ones."""
    if command is doctor:
        return command

    @functools.wraps(command)
    def checked(**options: Any) -> None:
        settings.check()
        if command in READ_TABLES:
            settings.check_tuning()
        try:
            command(**options)
        except plait.InvalidArgumentError as error:
            raise settings.named(error, options.get("strategy", "")) from None

    return checked


COMMANDS: tuple[Callable[..., None], ...] = (
    topo,
    plan,
    verify,
    simulate,
    report,
    bench,
    tune,
    status,
)
BEFORE_PROGRAMS: tuple[Callable[..., None], ...] = (run, profile, launch, doctor)
for command in COMMANDS:
    app.command()(_checked(command))
for command in BEFORE_PROGRAMS:  # options after the program's name belong to it
    app.command(context_settings=SETTINGS)(_checked(command))


def _version(show: bool) -> None:
    if show:
        out.print(plait.__version__)
        raise typer.Exit


@app.command(name="help")
def help_of(
    command: Annotated[str, typer.Argument(help="A command; default: list all commands.")] = "",
) -> None:
    """Say what a command does, and its options: plait help bench"""
    app([*filter(None, [command]), "--help"], prog_name="plait")


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def _is_interrupt(error: BaseException | None) -> bool:
    """Returns whether Ctrl-C caused the error. typer would use a different status."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def main() -> NoReturn:
    """Runs the command line. Turns plait's errors and Ctrl-C into a line and an exit status."""
    with standard_output.checked():
        _run()
    sys.exit(0)


def _run() -> None:
    try:
        app(with_order(sys.argv[1:]))
    except plait.Error as error:
        err.print(f"plait: {error}", markup=False)
        sys.exit(error.exit_code)
    except MemoryError as error:
        err.print(f"plait: out of memory ({error}): ask for a smaller --bytes", markup=False)
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as end:
        if not _is_interrupt(end):
            raise
        err.print("plait: interrupted", markup=False)
        sys.exit(130)


if __name__ == "__main__":
    main()
