"""Collectives in host memory: a communicator per group, one call at a time, in call order.

A blocking call runs in the caller's thread if no call is pending. All others run in the group's
thread, first come first served.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch.distributed as dist

import plait
from plait.torch.bootstrap import ABORT_S, bootstrap, clamp_deadline, tell_abort
from plait.torch.callbacks import Callbacks
from plait.torch.forks import FORKED, track
from plait.torch.works import CompletedWork, PendingWork, raise_as_c10d, timed_out

Call = Callable[["HostBackend"], None]


class HostBackend:
    """Runs calls in host memory. store, timeout_s: the group's."""

    takes_factors = True  # the core multiplies each rank's input by the rank's factor

    def __init__(
        self, store: Any, rank: int, ranks: int, timeout_s: float, callbacks: Callbacks
    ) -> None:
        self.rank, self.ranks, self.timeout_s = rank, ranks, timeout_s
        self._store, self._callbacks = store, callbacks
        self.index = -1  # device index of tensors; -1 = host memory
        self._comm: Any = None
        self._core: Any = None  # core object of self._comm
        self._core_s = timeout_s  # deadline of the core's calls
        self._limit_s = timeout_s  # limit of the running call
        self._closed = ""
        self._make_queue()
        track(self)

    def _make_queue(self) -> None:
        self._turn = threading.Lock()  # held during a call of the core
        self._guard = threading.Lock()
        self._waiting = 0  # calls in the thread's queue or running
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._running: PendingWork | None = None  # the call that the thread runs

    def forked(self) -> None:
        """Fails all calls of a forked child, with locks and a thread of the child's own."""
        self._closed = FORKED
        self._make_queue()

    def launch(self, request: plait.Request, source: int, out: int, scalar: float = 1.0) -> None:
        """Runs a collective of the core. source, out: addresses. Only inside do()."""
        core = self._core
        if core is None:
            core = self._bootstrap()
        if scalar == 1.0:
            core.run_request(request, source, out)
        else:
            core.run_request(request, source, out, "", {}, scalar)

    def launch_by_own_counts(
        self, request: plait.Request, sends: list[int], gets: list[int], source: int, out: int
    ) -> None:
        """Runs a collective whose counts each rank knows only in part. Only inside do()."""
        core = self._core if self._core is not None else self._bootstrap()
        core.run_by_own_counts(sends, gets, request, source, out)

    def launch_rms_norm(self, norm: Any, places: list[int]) -> None:
        """Runs all_reduce_rms_norm. Only inside do()."""
        core = self._core if self._core is not None else self._bootstrap()
        core.all_reduce_rms_norm(norm, *places)

    def barrier(self) -> None:
        """Waits for all ranks. Only inside do()."""
        if self.ranks > 1:
            (self._core or self._bootstrap()).barrier()

    def exchange(self, mine: bytes, backend: Any) -> list[bytes]:
        """Returns every rank's bytes. Only inside do() of `backend`, perhaps a GPU's."""

        def call() -> list[bytes]:
            return list((self._core or self._bootstrap()).exchange(mine))

        return call() if backend is self else self._in_order("the exchange of sizes", call)

    def refuse(self, error: Exception, backend: Any = None) -> None:
        """Fails the other ranks' matching call with `error`, in place of this rank's part.

        backend: the GPU backend, if the call is on a GPU.
        """
        if self.ranks == 1:
            return

        def call() -> None:
            if self._core is None:
                self._bootstrap()
            self._comm._tell(error)

        with suppress(Exception):
            if backend in (None, self):
                call()
            else:
                self._in_order("the exchange of sizes", call)

    def _in_order(self, what: str, call: Callable[[], Any]) -> Any:
        """Returns the result of a step on the host of a GPU's call, or raises its error. The step
        runs behind the queued calls, since all ranks make the same calls in the same order."""
        result: Any = None
        failure: Exception | None = None

        def step(_: HostBackend) -> None:
            nonlocal result, failure
            try:
                result = call()
            except plait.Error as error:  # the GPU's call names itself in the error
                failure = error

        self.do(what, step, None, False, 0.0)
        if failure is not None:
            raise failure
        return result

    def _bootstrap(self) -> Any:
        if self._closed:
            raise plait.AbortedError(self._closed)
        try:
            made = bootstrap(
                self._store, self.rank, self.ranks, -1, self.timeout_s, lambda: self._closed
            )
        except Exception as error:
            self._closed = self._closed or f"its communicator could not be made: {error}"
            raise
        self._comm, self._core, self._core_s = made, made._core, self.timeout_s
        if self._closed:  # an abort that found no communicator yet
            self._core.abort()
            raise plait.AbortedError(self._closed)
        self._set_deadline()
        return self._core

    def _set_deadline(self) -> None:
        """Gives the core the limit of the running call."""
        if self._core is not None and self._core_s != self._limit_s:
            seconds = clamp_deadline(self._limit_s)
            self._core.set_host_deadlines(seconds, seconds)
            self._core_s = self._limit_s

    def do(self, what: str, call: Call, result: Any, is_async: bool, timeout_s: float) -> Any:
        """Runs call(self) now or in the thread; returns its Work. timeout_s: <= 0 = the group's.

        A call with its own timeout runs in the thread: the limit includes the waits for earlier
        calls.
        """
        limit = timeout_s if timeout_s > 0 else self.timeout_s
        has_own = limit != self.timeout_s
        if is_async or has_own:
            work = self._enqueue(what, call, result, limit)
            if not is_async:
                self._wait(work, what, limit)
            return work
        if self._waiting or not self._turn.acquire(blocking=False):
            work = self._enqueue(what, call, result, limit)
            work.wait()
            return work
        try:
            self._run(what, call, limit)
        finally:
            self._turn.release()
        return CompletedWork(result)

    def _run(self, what: str, call: Call, limit: float) -> None:
        self._limit_s = limit
        try:
            if self._closed:
                raise plait.AbortedError(self._closed)
            self._set_deadline()
            call(self)
        except plait.Error as error:
            raise_as_c10d(error, what, limit)

    def _wait(self, work: PendingWork, what: str, timeout_s: float) -> None:
        """Waits for a call with its own timeout. A timeout, here or in the core, aborts the
        communicator, since peers may still come to the call."""
        is_over = work.wait_within(timeout_s)
        error = work.exception() if is_over else timed_out(what, timeout_s)
        if error is None:
            return
        if not is_over or isinstance(error.__cause__, plait.DeadlineError):
            self._abort_and_tell(f"{what} did not complete within its own timeout")
        raise error

    def _enqueue(self, what: str, call: Call, result: Any, limit: float) -> PendingWork:
        work = PendingWork(result, what, self._callbacks, self._interrupted)
        with self._guard:
            self._waiting += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_thread, daemon=True, name="plait")
                self._thread.start()
            self._queue.put((what, call, work, limit))
        return work

    def _run_thread(self) -> None:
        while (item := self._queue.get()) is not None:
            what, call, work, limit = item
            error: BaseException | None = None
            self._running = work
            try:
                with self._turn:
                    self._run(what, call, limit)
            except BaseException as caught:
                error = caught
            self._running = None
            with self._guard:
                self._waiting -= 1
            work.finish(error)
            del item, call, work, error  # releases the call's objects before the next wait

    def _interrupted(self) -> None:
        """Aborts after Ctrl-C ended a wait, so that the program can exit."""
        self._abort_and_tell("Ctrl-C ended a wait for one of its calls")

    def _abort_and_tell(self, why: str) -> None:
        self.abort(why)
        tell_abort(self._store, self.rank).join(ABORT_S)

    def abort(self, why: str = "it was aborted") -> None:
        """Fails this rank's running call and all later calls. Thread-safe. Peers in a call fail
        too; tell_abort() reaches peers without a communicator."""
        self._closed = self._closed or f"wanted an open process group: {why}"
        if self._core is not None:
            self._core.abort()
        elif (work := self._running) is not None:  # its bootstrap ends a moment later
            work.finish(dist.DistBackendError(f"[plait] the process group was closed : {why}"))

    def close(self) -> None:
        """Waits for queued calls, at most the group's timeout, and closes the communicator."""
        with self._guard:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(self.timeout_s)
        self._closed = self._closed or "wanted an open process group: it was destroyed"
        self._comm = self._core = None
