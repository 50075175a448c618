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

_SLOW_CALLBACK_S = 1.0  # for a callback that runs; it may wait for one that comes after it
_OTHERS = -1  # turn of a callback of a call that was made in a callback of another group
_here = threading.local()  # callbacks: whose thread this is; turn: of the one that it runs


def in_callback() -> bool:
    """Whether this thread is in one."""
    return getattr(_here, "callbacks", None) is not None


class Callbacks:
    """Of one group. They run one after the other, in the order in which their calls ended, so that
    calls made in them come in the same order on all ranks.

    Two kinds do not wait for their turn: callbacks of calls that were made in a callback, since it
    may wait for them, and those behind a callback that takes long. How long one takes differs
    between ranks, so the latter wait for their turn before they make a call. Threads are as many as
    callbacks run at once, and one more.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # of what follows
        self._todo: deque[tuple[Callable[[], None], int, bool]] = deque()  # turn, whether nested
        self._turns = 0  # given so far
        self._running: list[int] = []  # turns
        self._free = 0  # threads
        self._since = 0.0  # when the latest callback began
        self._is_closed = False

    def current_turn(self) -> int:
        """Of the callback that this thread is in; 0 = it is in none."""
        if not in_callback():
            return 0
        return int(_here.turn) if _here.callbacks is self else _OTHERS

    def await_turn(self, seconds: float) -> None:
        """In a callback that is to make a call: until those before it have run."""
        mine = self.current_turn()
        if mine <= 0:
            return
        end = time.monotonic() + seconds
        with self._changed:
            while any(0 < turn < mine for turn in self._before()):
                if not self._changed.wait(max(end - time.monotonic(), 0.0)):
                    raise TimeoutError(
                        f"wanted the callbacks of earlier calls to end within {seconds} s, before "
                        "this callback makes a call; found one that still runs: does it wait for "
                        "this one?"
                    )

    def _before(self) -> list[int]:
        return self._running + [turn for _, turn, _ in self._todo]

    def run(self, call: Callable[[], None], turn: int) -> None:
        """Later, in a thread. turn: current_turn() where its call was made."""
        with self._changed:
            if turn == 0:
                self._turns += 1
            self._todo.append((call, turn or self._turns, turn != 0))
            self._ensure_free_thread()
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Once all have run, but for the one that calls this; at most so long."""
        end = time.monotonic() + seconds
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            mine = 1 if in_callback() else 0
            while (self._todo or len(self._running) > mine) and time.monotonic() < end:
                self._changed.wait(end - time.monotonic())

    def _ensure_free_thread(self) -> None:
        if self._free == 0:
            self._free += 1
            threading.Thread(target=self._run_thread, daemon=True, name="plait-callbacks").start()

    def _next_callback(self) -> tuple[Callable[[], None], int] | None:
        for index, (call, turn, is_nested) in enumerate(self._todo):
            if is_nested:
                del self._todo[index]
                return call, turn
        if self._todo and (not self._running or time.monotonic() >= self._since + _SLOW_CALLBACK_S):
            return self._todo.popleft()[:2]
        return None

    def _take_callback(self) -> Callable[[], None] | None:
        """None once this thread is to end."""
        with self._changed:
            while (found := self._next_callback()) is None:
                if self._is_closed and not self._todo:
                    self._free -= 1
                    return None
                left = self._since + _SLOW_CALLBACK_S - time.monotonic()
                self._changed.wait(max(left, 1e-3) if self._todo else None)
            self._free -= 1
            call, _here.turn = found
            self._running.append(_here.turn)
            self._since = time.monotonic()
            if self._todo:
                self._ensure_free_thread()
            return call

    def _run_thread(self) -> None:
        _here.callbacks = self
        while (call := self._take_callback()) is not None:
            try:
                call()
            except Exception:
                sys.excepthook(*sys.exc_info())
            del call  # nothing of a call lives until the next
            with self._changed:
                self._running.remove(_here.turn)
                self._free += 1
                self._changed.notify_all()
