"""Threads of a group, which end before the interpreter does.

A thread that wants the interpreter back once that has gone is unwound where it stands. PyTorch's
objects give it up and want it back in destructors, which cannot be unwound: the process would end
with "terminate called without an active exception".
"""

from __future__ import annotations

import atexit
import threading
import time
import traceback
import weakref
from collections.abc import Callable

_FINISH_S = 1.0  # that a process which ends gives calls under way
_STOP_S = 1.0  # and then their threads
_guard = threading.Lock()
_helpers: weakref.WeakSet[Helper] = weakref.WeakSet()


class Helper(threading.Thread):
    """Runs serve(). When the process ends two methods of the same object are called: finish, which
    has serve() return once nothing is under way, and where it does not, stop, which has it return
    as soon as it can."""

    def __init__(
        self,
        name: str,
        serve: Callable[[], None],
        finish: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        super().__init__(target=serve, daemon=True, name=name)
        self._ends = [weakref.WeakMethod(finish), weakref.WeakMethod(stop)]
        with _guard:
            _helpers.add(self)

    def _end(self, which: int) -> None:
        end = self._ends[which]()
        try:
            if end is not None:
                end()
        except Exception:
            traceback.print_exc()


@atexit.register
def _end_all() -> None:
    """A child of a fork has none of its parent's alive, so it ends nothing of theirs."""
    with _guard:
        helpers = list(_helpers)
    for which, seconds in enumerate((_FINISH_S, _STOP_S)):
        alive = [helper for helper in helpers if helper.is_alive()]
        for helper in alive:
            helper._end(which)
        limit = time.monotonic() + seconds
        for helper in alive:
            helper.join(max(limit - time.monotonic(), 0.0))
