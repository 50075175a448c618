"""Kills the ranks of a job after the launcher has ended.

Runs as a separate process, and thus survives a killed launcher. Reads "PID START" of each rank from
a pipe. The end of the pipe means that the launcher has ended or closed it. Every rank that still
runs then gets SIGTERM, with all child processes, and SIGKILL after GRACE_S. The launcher starts the
keeper by `Keeper` (launch.py), as a script that imports few modules.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

GRACE_S = 1.0  # between SIGTERM and SIGKILL
LOOK_S = 0.5  # s between checks of the parent, since a forked process may keep the pipe open


def started(pid: int) -> str:
    """Returns the start time of a process, a guard against a reused pid; "" = none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _under(ranks: dict[int, str]) -> dict[int, str]:
    """Returns the ranks that still run, and all descendants."""
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
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # a terminal signals this process too
    # A blocked signal stays pending, by which Keeper.got() knows that the whole group got the
    # signal. The launcher has blocked both from the start.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
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
