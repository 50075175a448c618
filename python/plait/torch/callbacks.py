"""The threads that run what hangs on futures: callbacks of a group's collectives and messages.

A callback may make the group's next call and wait for it. So callbacks run in no thread that calls
need: neither in the one that runs collectives, nor in the one that moves messages.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable

_PATIENCE_S = 1.0  # for a callback that runs; it may wait for one that comes after it
_here = threading.local()


def in_callback() -> bool:
    """Whether this thread is in one."""
    return getattr(_here, "is_in_callback", False)


class Callbacks:
    """Of one group. They run one after the other, in the order in which their calls ended, so that
    calls made in them come in the same order on all ranks.

    Two kinds do not wait for their turn: callbacks of calls that were made in a callback, since it
    may wait for them, and those behind a callback that takes long. Threads are as many as callbacks
    run at once, and one more.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # of what follows
        self._todo: deque[tuple[Callable[[], None], bool]] = deque()
        self._running = self._free = 0  # threads
        self._since = 0.0  # when the latest callback began
        self._is_closed = False

    def run(self, call: Callable[[], None], is_nested: bool) -> None:
        """Later, in a thread. is_nested: of a call that was made in a callback."""
        with self._changed:
            self._todo.append((call, is_nested))
            self._have_free()
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Once all have run, but for the one that calls this; at most so long."""
        end = time.monotonic() + seconds
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            mine = 1 if in_callback() else 0
            while (self._todo or self._running > mine) and time.monotonic() < end:
                self._changed.wait(end - time.monotonic())

    def _have_free(self) -> None:
        if self._free == 0:
            self._free += 1
            threading.Thread(target=self._serve, daemon=True, name="plait-callbacks").start()

    def _next(self) -> Callable[[], None] | None:
        for index, (call, is_nested) in enumerate(self._todo):
            if is_nested:
                del self._todo[index]
                return call
        if self._todo and (self._running == 0 or time.monotonic() >= self._since + _PATIENCE_S):
            return self._todo.popleft()[0]
        return None

    def _take(self) -> Callable[[], None] | None:
        """None once this thread is to end."""
        with self._changed:
            while (call := self._next()) is None:
                if self._is_closed and not self._todo:
                    self._free -= 1
                    return None
                left = self._since + _PATIENCE_S - time.monotonic()
                self._changed.wait(max(left, 1e-3) if self._todo else None)
            self._free -= 1
            self._running += 1
            self._since = time.monotonic()
            if self._todo:
                self._have_free()
            return call

    def _serve(self) -> None:
        _here.is_in_callback = True
        while (call := self._take()) is not None:
            try:
                call()
            except Exception:
                sys.excepthook(*sys.exc_info())
            del call  # nothing of a call lives until the next
            with self._changed:
                self._running -= 1
                self._free += 1
                self._changed.notify_all()
