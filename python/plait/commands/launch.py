"""`plait launch -n 4 python x.py`: starts ranks on this machine, without another launcher.

Ranks end with the launcher, also if it is killed or its terminal hangs up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Annotated

import typer

import plait
from plait.commands.console import at_least, err
from plait.commands.run import CommandArgument, cannot_run
from plait.launch import Keeper

GRACE_S = 5.0  # s after a failed rank, time for the rest to report errors


def environment(rank: int, ranks: int, job: str) -> dict[str, str]:
    """Returns torchrun's variables and the rendezvous address."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "PLAIT_RENDEZVOUS": job,
    }


def launch(
    command: CommandArgument,
    ranks: Annotated[int, typer.Option("--ranks", "-n", "-g", callback=at_least(1))] = 2,
) -> None:
    """Start ranks of a program that calls plait.init().

    plait launch -n 4 python x.py
    """
    most = plait._core.MOST_RANKS
    if ranks > most:
        raise plait.UnsupportedError(f"--ranks: wanted 1 to {most}, found {ranks}")
    job = f"launch-{os.getpid()}-{time.time_ns():x}"
    started: list[subprocess.Popen[bytes]] = []
    keeper = Keeper()
    try:
        for rank in range(ranks):
            started.append(subprocess.Popen(command, env=environment(rank, ranks, job)))
            keeper.add(started[-1])
    except OSError as error:
        keeper.close()
        cannot_run(command, error)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal signals the ranks too
    signal.signal(signal.SIGTERM, lambda number, _: _end(started, number))
    status = _wait(started)
    keeper.close()
    raise typer.Exit(status)


def _end(started: list[subprocess.Popen[bytes]], number: int) -> None:
    for process in started:
        if process.poll() is None:
            process.send_signal(number)


def _wait(started: list[subprocess.Popen[bytes]]) -> int:
    """Returns 0, or the status of the first failed rank; kills the rest GRACE_S later."""
    failed: dict[int, int] = {}  # status by rank, of ranks that failed by themselves
    deadline = float("inf")
    while True:
        runs = [process.poll() for process in started].count(None)
        for rank, process in enumerate(started):
            if status := process.returncode:
                failed.setdefault(rank, status if status > 0 else 128 - status)
        if failed:
            deadline = min(deadline, time.monotonic() + GRACE_S)
        if runs == 0 or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    _end(started, signal.SIGKILL)
    for process in started:
        process.wait()
    if failed:
        err.print(f"plait: {_failure_text(failed)}", markup=False)
    return next(iter(failed.values()), 0)


def _failure_text(failed: dict[int, int]) -> str:
    """Returns text: 'rank 1 ended with 7'. Gives no order, since a rank may end before the rank
    that it lost."""
    parts: list[str] = []
    for status in dict.fromkeys(failed.values()):
        *most, last = map(str, sorted(rank for rank, its in failed.items() if its == status))
        ranks = f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
        parts.append(f"{ranks} {'' if parts else 'ended '}with {status}")
    hint = ": look first at the rank whose error names no other" if len(failed) > 1 else ""
    return ", ".join(parts) + hint
