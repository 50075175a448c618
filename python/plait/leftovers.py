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

from plait.keeper import children, stat_of

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def left(known: Collection[int]) -> list[int]:
    """Returns descendants of this process that run in its process group, without those in `known`.

    Processes that have made a group or session of their own (daemons) are left alone.
    """
    of_parent, parents, members = children(), {os.getpid()}, []
    while parents:
        for pid in of_parent.get(parents.pop(), []):
            parents.add(pid)
            state, _, group = (stat_of(pid) or ["Z", "", ""])[:3]
            if state != "Z" and group == str(os.getpgrp()) and pid not in known:
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
