"""`plait status`: what running programs do: communicators, last calls, who waits for whom."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

import plait
from plait import running
from plait.commands.console import JsonOption, err, out, table


def status(
    pid: Annotated[
        int | None, typer.Argument(help="A process; default: all of this user's programs.")
    ] = None,
    calls: Annotated[
        bool, typer.Option("--calls", help="Print the last 64 calls of each communicator.")
    ] = False,
    watch: Annotated[
        float, typer.Option(min=0, help="Ask again every so many seconds, until Ctrl-C.")
    ] = 0,
    prom: Annotated[
        bool, typer.Option("--prom", help="Print metrics in Prometheus' text format.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what running programs do: communicators, calls, and who waits for whom.

    Programs with GPUs and programs under NCCL answer at any time. Programs of CPU ranks alone
    answer while a rank has waited for a second, and always with PLAIT_WARN_S set.
    """
    if as_json and prom:
        raise plait.InvalidArgumentError("wanted --json or --prom, found both")
    while True:
        states, silent = running.ask(pid)
        _require(pid, states, silent)
        if as_json:
            out.print(json.dumps(states), markup=False)
        elif prom:
            out.print(running.prometheus(states), markup=False, end="")
        else:
            if watch:
                out.print(f"at {time.strftime('%H:%M:%S')}:", markup=False)
            _print(states, silent, calls)
        if not watch:
            return
        time.sleep(watch)


def _why_silent(pid: int) -> str:
    """Returns why a process that listens does not answer."""
    if running.state_of(pid) == "stopped":
        return f"process {pid} is stopped: ask another rank's process, which reads its last calls"
    return f"process {pid} does not answer: its ranks are between calls"


def _require(pid: int | None, states: list[running.Status], silent: list[int]) -> None:
    if states or pid is None:
        return
    if silent:
        raise plait.DeadlineError(_why_silent(pid))
    raise plait.InvalidArgumentError(running.why_none(pid))


def _print(states: list[running.Status], silent: list[int], calls: bool) -> None:
    for pid in silent:
        err.print(_why_silent(pid), markup=False)
    if not states:
        out.print(
            "no program of this user answers; programs of CPU ranks alone answer while a rank has "
            "waited for 1 s in a call, or always if started with PLAIT_WARN_S set",
            markup=False,
        )
    for state in states:
        for one in state["communicators"]:
            _print_communicator(state["pid"], one, calls)


# Who serves a communicator's calls, by its entry point.
_SERVED_BY = {"native": "plait", "nccl": "under NCCL", "mpi": "the MPI"}


def _print_communicator(pid: int, one: dict[str, Any], calls: bool) -> None:
    name, by = one["name"] or one["id"], _SERVED_BY.get(one["door"], one["door"])
    out.print(
        f"process {pid}: rank {one['rank']} of {one['ranks']}, communicator {name} "
        f"({by}), {one['memory']} memory, {one['number']} calls",
        markup=False,
    )
    if one["waits"]:
        waits = one["waits"]
        out.print(
            f"  waits {waits['seconds']:.1f} s in {waits['in']}; {waits['reason']}", markup=False
        )
    rows = table(">rank", ">pid", "state", ">call", "last call", ">s ago")
    for rank in one["here"]:
        last = rank["last"]
        rows.add_row(
            str(rank["rank"]),
            str(rank["pid"]),
            rank["state"],
            str(rank["number"]),
            last["call"] if last else "-",
            f"{last['seconds_ago']:.1f}" if last else "-",
        )
    out.print(rows)
    if one["bytes"]:
        held = ", ".join(f"{part} {size / 2**20:.1f} MiB" for part, size in one["bytes"].items())
        out.print(f"  holds {held}", markup=False)
    if calls:
        for call in one["calls"]:
            number = call["number"] or "-"
            why = f", by the MPI: {call['why']}" if "why" in call else ""
            out.print(
                f"  {number:>8}  {call['seconds_ago']:8.1f} s ago  {call['call']}{why}",
                markup=False,
            )
