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


def stat_of(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat behind the name: state, parent, process group, and so
    on. Empty if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def children() -> dict[int, list[int]]:
    """Returns the processes that each process of this machine has started."""
    found: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if fields := stat_of(pid):
            found.setdefault(int(fields[1]), []).append(pid)
    return found


def started(pid: int) -> str:
    """Returns the start time of a process, a guard against a reused pid; "" = none."""
    fields = stat_of(pid)
    return fields[19] if fields else ""


def _under(ranks: dict[int, str]) -> dict[int, str]:
    """Returns the ranks that still run, and all descendants."""
    found = {pid: start for pid, start in ranks.items() if started(pid) == start}
    of_parent, left = children(), list(found)
    while left:
        for child in of_parent.get(left.pop(), []):
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
