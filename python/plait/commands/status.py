"""`plait status`: what running programs do: communicators, last calls, who waits for whom."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
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
    for members in _by_communicator(states):
        _print_communicator(members, calls)
    for state in states:
        for one in state["now"]:
            out.print(_now_text(state["pid"], one), markup=False)


def _now_text(pid: int, one: dict[str, Any]) -> str:
    """Returns which call of another library a thread is in."""
    by = _SERVED_BY.get(one["door"], one["door"])
    return (
        f"process {pid}: rank {one['rank']} of {one['ranks']} ({by}), thread {one['thread']}\n"
        f"  is {one['seconds']:.1f} s in {one['in']}"
    )


# Who serves a communicator's calls, by its entry point.
_SERVED_BY = {"native": "plait", "nccl": "under NCCL", "mpi": "the MPI"}

# What a rank says of its communicator, with the rank's process.
_Member = tuple[int, dict[str, Any]]


def _by_communicator(states: list[running.Status]) -> list[list[_Member]]:
    """Returns the answers of each communicator's ranks, by rank."""
    found: dict[tuple[str, str, str], list[_Member]] = {}
    for state in states:
        for one in state["communicators"]:
            key = (one["door"], one["id"], one["memory"])
            found.setdefault(key, []).append((state["pid"], one))
    return [sorted(members, key=lambda member: member[1]["rank"]) for members in found.values()]


def _print_communicator(members: list[_Member], calls: bool) -> None:
    """Prints what one rank says, or what all ranks that answer say, in one table."""
    pid, one = members[0]
    names = {each["name"] or each["id"] for _, each in members}
    name = names.pop() if len(names) == 1 else one["id"]
    by = _SERVED_BY.get(one["door"], one["door"])
    if len(members) == 1:
        whose = f"process {pid}: rank {one['rank']} of {one['ranks']}, communicator {name}"
        memory = f"{one['memory']} memory, {one['number']} calls"
    else:
        whose = f"communicator {name}: {len(members)} of {one['ranks']} ranks answer"
        memory = f"{one['memory']} memory"
    out.print(f"{whose} ({by}), {memory}", markup=False)
    _print_of_each(members, _wait_text, "waits ")
    last_of = {rank["rank"]: rank for _, each in members for rank in each["here"]}
    for _, each in members:  # a rank knows its own calls best
        last_of |= {rank["rank"]: rank for rank in each["here"] if rank["rank"] == each["rank"]}
    rows = table(">rank", ">pid", "state", ">call", "last call", ">s ago")
    for _, rank in sorted(last_of.items()):
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
    _print_of_each(members, _held_text, "holds ")
    if calls:
        _print_of_each(members, _calls_text, "called\n  ")


def _print_of_each(
    members: list[_Member], text_of: Callable[[dict[str, Any]], str], verb: str
) -> None:
    """Prints a text about each rank, with the rank before it if several ranks answer."""
    for _, one in members:
        rank = f"rank {one['rank']} " if len(members) > 1 else ""
        if text := text_of(one):
            out.print(f"  {rank}{verb}{text}", markup=False)


def _wait_text(one: dict[str, Any]) -> str:
    waits = one["waits"]
    return f"{waits['seconds']:.1f} s in {waits['in']}; {waits['reason']}" if waits else ""


def _held_text(one: dict[str, Any]) -> str:
    return ", ".join(f"{part} {size / 2**20:.1f} MiB" for part, size in one["bytes"].items())


def _calls_text(one: dict[str, Any]) -> str:
    """Returns lines with the last calls."""
    lines = []
    for call in one["calls"]:
        number = call["number"] or "-"
        why = f", by the MPI: {call['why']}" if "why" in call else ""
        lines.append(f"{number:>8}  {call['seconds_ago']:8.1f} s ago  {call['call']}{why}")
    return "\n  ".join(lines)
