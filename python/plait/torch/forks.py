"""Forks of the process. A child has none of the parent's threads, and a lock that one of these
threads held stays held."""

from __future__ import annotations

import os
import weakref
from typing import Any

FORKED = (
    "this process group belongs to the process that forked; destroy it and make one in the child"
)
_count = 0  # forks between the first process and this one
_tracked: weakref.WeakSet[Any] = weakref.WeakSet()


def forks_so_far() -> int:
    """Returns a number that is another one in each child."""
    return _count


def track(owner: Any) -> None:
    """Calls owner.forked() in each child, before the child goes on."""
    _tracked.add(owner)


def _in_child() -> None:
    global _count
    _count += 1
    for owner in list(_tracked):
        owner.forked()


os.register_at_fork(after_in_child=_in_child)
