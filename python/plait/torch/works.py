"""Work objects that calls return: completed, pending on the host, or on a GPU's stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

import plait
from plait.torch.callbacks import Callbacks
from plait.torch.compiled import never_compiled
from plait.torch.forks import FORKED, forks_so_far

FOREVER_S = 1e9  # 31 years; Python's waits refuse the seconds of timedelta.max


def seconds_of(timeout: timedelta | None) -> float:
    """Returns the seconds of a wait, at most FOREVER_S. No timeout is 0."""
    return 0.0 if timeout is None else min(timeout.total_seconds(), FOREVER_S)


@contextmanager
def c10d_errors(what: str, seconds: float) -> Iterator[None]:
    """Translates plait's errors into the errors that users of torch.distributed match."""
    try:
        yield
    except plait.Error as error:
        raise_as_c10d(error, what, seconds)


def raise_as_c10d(error: plait.Error, what: str, seconds: float) -> NoReturn:
    """Raises the error that c10d_errors translates `error` to."""
    if isinstance(error, plait.DeadlineError):
        raise timed_out(what, seconds, str(error)) from error
    if isinstance(error, plait.PeerLostError):
        text = f"[plait] {what}: Connection closed by peer: {error}"
        raise dist.DistNetworkError(text) from error
    if isinstance(error, plait.AbortedError):
        text = f"[plait] {what}: the process group was closed : {error}"
        raise dist.DistBackendError(text) from error
    raise error


def timed_out(what: str, seconds: float, why: str = "") -> dist.DistBackendError:
    """Returns the timeout error of a wait of `seconds`."""
    tail = f": {why}" if why else ""
    text = f"[plait] Timed out waiting {round(seconds * 1e3)}ms for {what} to complete{tail}"
    return dist.DistBackendError(text)


@never_compiled
class ResultWork(Work):
    """Work of a call with a result."""

    _result: Any

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        return self._result


@never_compiled
class SourceWork(ResultWork):
    """Work that names the sender of a message; -1 = no message, or none has arrived."""

    _source = -1

    def _source_rank(self) -> int:
        return self._source

    def source_rank(self) -> int:
        return self._source_rank()


@never_compiled
class CompletedWork(SourceWork):
    """Work of a call that completed before it returned."""

    def __init__(self, result: Any, source: int = -1) -> None:
        super().__init__()
        self._result, self._source = result, source
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def get_future(self) -> Any:
        if self._future is None:
            self._future = torch.futures.Future()
            self._future.set_result(self._result)
        return self._future


class CompletionLatch:
    """One-shot event: set by another thread, awaited by any thread, interrupted by Ctrl-C.

    interrupted: called when Ctrl-C ends a wait, since peers may never come to the call.
    """

    def __init__(self, interrupted: Callable[[], None] | None) -> None:
        self._interrupted, self._forks = interrupted, forks_so_far()
        self._over = threading.Lock()  # held until set(); cheaper than an Event
        self._over.acquire()

    def set(self) -> None:
        self._over.release()

    def wait(self, seconds: float = -1) -> bool:
        """Returns whether the event is set within `seconds`; -1 = no limit. Raises in a forked
        child, which has no thread that sets the event."""
        if self._forks != forks_so_far() and self._over.locked():
            raise dist.DistBackendError(f"[plait] {FORKED}")
        try:
            is_over = self._over.acquire(timeout=seconds)
        except KeyboardInterrupt:
            if self._interrupted is not None:
                self._interrupted()
            raise
        if is_over:
            self._over.release()
        return is_over


@never_compiled
class CallFuture(torch.futures.Future):
    """Future of a call. Unlike torch's, wait() reacts to Ctrl-C, and callbacks that are added once
    the future has its result run in the group's threads too, in turn. torch runs these at once in
    the thread that adds them, so calls in callbacks would have another order on a slow rank than on
    a fast one. Callbacks behind a future that then() made are torch's.

    wait_for_call: returns once the call has ended, and reacts to Ctrl-C. callbacks, turn: the
    group's, and current_turn() at the time of the call.
    """

    def __init__(
        self, wait_for_call: Callable[[], object], callbacks: Callbacks, turn: int
    ) -> None:
        super().__init__()
        self._wait_for_call, self._callbacks, self._turn = wait_for_call, callbacks, turn
        self._adding = threading.Lock()
        self._is_settled = False

    def settle(self, result: Any, error: BaseException | None = None) -> None:
        """Sets the result or the error, and runs the callbacks added before, hence in a thread of
        the callbacks."""
        with self._adding:
            self._is_settled = True
        if error is None:
            self.set_result(result)
        else:
            self.set_exception(error)

    def wait(self) -> Any:
        self._wait_for_call()
        return super().wait()  # another thread is about to set the result

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        with self._adding:
            if not self._is_settled:
                return super().add_done_callback(callback)
        late: Any = torch.futures.Future()
        late.add_done_callback(partial(self._run_late, callback))
        self._run_in_turn(partial(late.set_result, None))

    def then(self, callback: Callable[[Any], Any]) -> Any:
        with self._adding:
            if not self._is_settled:
                return super().then(callback)
        # By a future of torch, which has the callback's error in C++ too.
        late: Any = torch.futures.Future()
        child = late.then(partial(self._run_late, callback))
        self._run_in_turn(partial(late.set_result, None))
        return child

    def _run_in_turn(self, call: Callable[[], None]) -> None:
        """Schedules a late callback, in the turn of the callback that adds it, which may wait."""
        self._callbacks.run(call, self._callbacks.current_turn() or self._turn)

    def _run_late(self, callback: Callable[[Any], Any], _: Any) -> Any:
        with suppress(Exception):  # of the call: the callback asks for it
            super().wait()  # settle() may be about to set the result
        return callback(self)


@never_compiled
class PendingWork(SourceWork):
    """Work of a call that another thread completes by finish()."""

    def __init__(
        self,
        result: Any,
        what: str,
        callbacks: Callbacks,
        interrupted: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._result, self._what, self._callbacks = result, what, callbacks
        self._turn = callbacks.current_turn()
        self._error: BaseException | None = None
        self._end = CompletionLatch(interrupted)
        self._is_over = False
        self._guard = threading.Lock()
        self._future: Any = None

    def finish(self, error: BaseException | None = None, source: int = -1) -> None:
        """Completes the work, wakes the waiters and schedules the future's callbacks. Later calls
        do nothing."""
        with self._guard:
            if self._is_over:
                return
            self._error, self._source, self._is_over = error, source, True
            self._end.set()
            future = self._future
        if future is not None:
            self._callbacks.run(partial(self._resolve, future), self._turn)

    def _resolve(self, future: Any) -> None:
        future.settle(self._result, self._error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits and raises the call's error. timeout: None or zero = the group's."""
        seconds = seconds_of(timeout)
        if not self._end.wait(seconds if seconds > 0 else -1):
            raise timed_out(self._what, seconds)
        if self._error is not None:
            raise self._error
        return True

    def wait_within(self, seconds: float) -> bool:
        """Returns whether the call completes, with or without an error, within `seconds`."""
        return self._end.wait(seconds)

    def is_completed(self) -> bool:
        return self._is_over

    def is_success(self) -> bool:
        return self._is_over and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def get_future(self) -> Any:
        with self._guard:
            if self._future is not None:
                return self._future
            self._future = CallFuture(self._end.wait, self._callbacks, self._turn)
            if self._is_over:
                self._resolve(self._future)  # a new future has no callbacks that would run here
        return self._future


def await_event(event: Any, what: str, seconds: float, check: Callable[[], None]) -> None:
    """Waits on the host for a GPU event. check() raises errors of calls on the GPU."""
    end = time.monotonic() + seconds
    pause = 1e-5
    try:
        while not event.query():
            check()
            if time.monotonic() >= end:
                raise timed_out(what, seconds)
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
    except RuntimeError:
        check()  # raises the reason, if plait failed the stream
        raise
    check()


def tensors_in(what: Any) -> Iterator[torch.Tensor]:
    """Yields all tensors of nested lists."""
    if isinstance(what, torch.Tensor):
        yield what
    elif isinstance(what, (list, tuple)):
        for one in what:
            yield from tensors_in(one)


@never_compiled
class StreamWork(ResultWork):
    """Work of a call on a GPU's stream. wait() makes the current stream wait, not the host."""

    def __init__(
        self,
        what: str,
        result: Any,
        keep: Any,
        stream: Any,
        is_group_stream: bool,
        check: Callable[[], None],
    ) -> None:
        super().__init__()
        self._what, self._result, self._stream = what, result, stream
        self._is_group_stream, self._check = is_group_stream, check
        self._keep = keep  # keeps memory that the stream still uses from the allocator
        self._event = torch.cuda.Event()
        self._event.record(stream)
        self._future: Any = None

    def __del__(self) -> None:
        """Without a wait(), tells the allocator which stream still uses the tensors.

        Skips a failed stream: the allocator would query it and end the process.
        """
        keep = getattr(self, "_keep", None)
        if keep is None:
            return
        if not torch.cuda.is_current_stream_capturing():  # a query would end the capture
            try:
                if self._event.query():
                    return
            except RuntimeError:
                return
        for tensor in tensors_in(keep):
            if tensor.is_cuda:
                tensor.record_stream(self._stream)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Makes the current stream wait for the call, unless the call is on that stream.

        With a timeout the host waits too, except inside a graph capture.
        """
        self._check()  # first, since it raises the reason of a failed stream
        if self._is_group_stream:
            torch.cuda.current_stream(self._stream.device).wait_event(self._event)
            self._keep = None
        seconds = seconds_of(timeout)
        if seconds > 0 and not torch.cuda.is_current_stream_capturing():
            await_event(self._event, self._what, seconds, self._check)
        return True

    def is_completed(self) -> bool:
        return bool(self._event.query())

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        try:
            self._check()
        except RuntimeError as error:
            return error
        return None

    def get_future(self) -> Any:
        """Returns a future whose callbacks run at once, on streams that wait for the call."""
        if self._future is None:
            self._future = torch.futures.Future(devices=[self._stream.device])
            with torch.cuda.stream(self._stream):
                self._future.set_result(self._result)
        return self._future


@never_compiled
class CombinedWork(ResultWork):
    """Work of several calls; it completes with the last one."""

    def __init__(self, works: list[Any], result: Any = None) -> None:
        super().__init__()
        self._works, self._result = works, result
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception())), None)

    def get_future(self) -> Any:
        if self._future is None:
            futures = [work.get_future() for work in self._works]
            result = self._result
            self._future = torch.futures.collect_all(futures).then(lambda _: result)
        return self._future
