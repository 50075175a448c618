"""Threads that run callbacks of futures of a group's collectives and messages.

A callback may make the group's next call and wait for the result. Hence callbacks run in separate
threads, not in the thread that runs collectives or the thread that moves messages.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from plait.torch.forks import track

_SLOW_CALLBACK_S = 1.0  # a callback that runs longer may wait for a later one, which then starts
_AT_EXIT_S = 10.0  # longest wait for callbacks when Python ends
_AFTER_ERROR_S = 1.0  # the same after an exception: peers wait for the end of this process
_OTHERS = -1  # turn of a callback for a call made in another group's callback
_here = threading.local()  # callbacks: owner of this thread; turn: turn of the callback


def in_callback() -> bool:
    """Returns whether this thread runs a callback."""
    return getattr(_here, "callbacks", None) is not None


class Callbacks:
    """Callbacks of a group. Callbacks run one at a time in the completion order of the calls, so
    calls made in callbacks have the same order on all ranks.

    Two kinds start early: callbacks of calls made in a callback (the callback may wait for the
    calls), and callbacks behind a slow callback. Slow callbacks differ between ranks: a callback
    that started early waits for its turn before making a call (await_turn). There is one thread
    more than running callbacks.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards all members below
        self._todo: deque[tuple[Callable[[], None], int, bool]] = deque()  # call, turn, is nested
        self._turns = 0  # the last turn given
        self._running: list[int] = []  # turns of running callbacks
        self._free = 0  # idle threads
        self._since = 0.0  # when the latest callback began
        self._is_closed = self._is_exiting = False
        _all.add(self)
        track(self)

    def forked(self) -> None:
        """Drops the callbacks of the parent in a forked child."""
        self._changed = threading.Condition()
        mine = self.current_turn()
        self._running, self._free = [mine] if mine > 0 else [], 0
        self._todo.clear()

    def current_turn(self) -> int:
        """Returns the turn of the callback that this thread runs; 0 = none."""
        if not in_callback():
            return 0
        return int(_here.turn) if _here.callbacks is self else _OTHERS

    def await_turn(self, seconds: float) -> None:
        """Waits, in a callback that makes a call, until all earlier callbacks have run."""
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
        """Schedules `call`. turn: current_turn() at the time of the callback's call."""
        with self._changed:
            if not self._is_exiting:
                if turn == 0:
                    self._turns += 1
                self._todo.append((call, turn or self._turns, turn != 0))
                self._ensure_free_thread()
                self._changed.notify_all()
                return
        if not sys.is_finalizing():  # a handler of atexit may wait for the call
            call()

    def close(self, seconds: float) -> None:
        """Waits at most `seconds` until all callbacks have run, except the calling callback."""
        end = time.monotonic() + seconds
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            mine = 1 if in_callback() else 0
            while (self._todo or len(self._running) > mine) and time.monotonic() < end:
                self._changed.wait(end - time.monotonic())

    def end_with_python(self, seconds: float) -> None:
        """Closes: Python kills threads of its own in the midst of a callback, and with them the
        process. Callbacks of calls that end later run in the threads of these calls."""
        with self._changed:
            self.close(seconds)
            self._is_exiting = True

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
        """Returns the next callback to run; None = this thread ends."""
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
            del call  # releases the call's objects before the next wait
            with self._changed:
                self._running.remove(_here.turn)
                self._free += 1
                self._changed.notify_all()


_all: weakref.WeakSet[Callbacks] = weakref.WeakSet()


@atexit.register
def _python_ends() -> None:
    has_failed = getattr(sys, "last_type", None) is not None
    end = time.monotonic() + (_AFTER_ERROR_S if has_failed else _AT_EXIT_S)
    for one in list(_all):
        one.end_with_python(max(end - time.monotonic(), 0.0))
