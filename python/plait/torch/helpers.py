"""Threads of a group, which end before the interpreter does.

A thread that wants the interpreter back once that has gone is unwound where it stands. PyTorch's
objects give it up and want it back in destructors, which cannot be unwound: the process would end
with "terminate called without an active exception".
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable

_LONGEST_S = 1.0  # what a process waits for its helpers when it ends

_helpers: weakref.WeakSet[Helper] = weakref.WeakSet()


class Helper(threading.Thread):
    """Runs serve(). end: a method that has serve() return soon; called when the process ends."""

    def __init__(self, name: str, serve: Callable[[], None], end: Callable[[], None]) -> None:
        super().__init__(target=serve, daemon=True, name=name)
        self._end_serving = weakref.WeakMethod(end)  # whose object lives as long as it is served
        _helpers.add(self)

    def end_serving(self) -> None:
        end = self._end_serving()
        if end is not None:
            end()


@atexit.register
def _end_all() -> None:
    """A child of a fork has none of its parent's alive, so it ends nothing of theirs."""
    alive = [helper for helper in list(_helpers) if helper.is_alive()]
    for helper in alive:
        helper.end_serving()
    limit = time.monotonic() + _LONGEST_S
    for helper in alive:
        helper.join(max(limit - time.monotonic(), 0.0))
