"""Finds and ends processes that ranks have started and left behind.

A shell that Ctrl-C ends leaves a child that ignores Ctrl-C. The launcher adopts such orphans, so
that it knows them.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection
from contextlib import suppress

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def left(known: Collection[int]) -> list[int]:
    """Returns descendants of this process that run in its process group, without those in `known`.

    Processes that have made a group or session of their own (daemons) are left alone.
    """
    group, parents, members = os.getpgrp(), {os.getpid()}, []
    children: dict[int, list[tuple[int, str, int]]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, IndexError, ValueError), open(f"/proc/{entry}/stat") as file:
            state, parent, of_group = file.read().rpartition(")")[2].split()[:3]
            children.setdefault(int(parent), []).append((int(entry), state, int(of_group)))
    while parents:
        for pid, state, its_group in children.get(parents.pop(), []):
            parents.add(pid)
            if state != "Z" and its_group == group and pid not in known:
                members.append(pid)
    return members


def kill(known: Collection[int]) -> None:
    """Kills what left() returns, also processes that these start meanwhile."""
    for _ in range(100):
        found = left(known)
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # another process is its parent still
                os.waitpid(pid, 0)
        if not found:
            return
