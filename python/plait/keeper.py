"""Ends the ranks of a job when what started them has ended before them.

A process of its own, since a launcher that is killed can do nothing more: it reads "PID START" of
each rank from a pipe, and the pipe's end tells that the launcher has ended or closed it. Then every
rank that still runs is ended with all processes under it, by SIGTERM and after a moment by SIGKILL.
`Keeper` is the launcher's side. Run as a script, so that it imports nothing but what it needs.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

GRACE_S = 1.0  # between SIGTERM and SIGKILL
LOOK_S = 0.5  # a process forked by the launcher may hold the pipe too; its parent then says the end


def started(pid: int) -> str:
    """When a process started, which tells it from a later one of its number; "" = it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _under(ranks: dict[int, str]) -> dict[int, str]:
    """The ranks that still run, and all processes under them."""
    found = {pid: start for pid, start in ranks.items() if started(pid) == start}
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        children.setdefault(parent, []).append(int(name))
    left = list(found)
    while left:
        for child in children.get(left.pop(), []):
            if child not in found:
                found[child] = started(child)
                left.append(child)
    return found


def _end(processes: dict[int, str], number: int) -> None:
    for pid, start in processes.items():
        if start and started(pid) == start:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _keep() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # a terminal tells all of a job, this one too
    launcher = os.getppid()
    said = b""
    while os.getppid() == launcher:
        if select.select([0], [], [], LOOK_S)[0]:
            more = os.read(0, 4096)
            if not more:
                break
            said += more
    lines = [line.split() for line in said.decode().splitlines()]
    processes = _under({int(pid): start for pid, start in lines})
    if not processes:
        return
    _end(processes, signal.SIGTERM)
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end and any(started(pid) == processes[pid] for pid in processes):
        time.sleep(0.02)
    _end(processes, signal.SIGKILL)


if __name__ == "__main__":
    _keep()
    sys.exit(0)
