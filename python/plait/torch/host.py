"""Calls on host memory: one communicator a group, its calls one after the other in one order.

A blocking call runs in the caller's thread where nothing is before it; the others run in a thread
of the group, as they came.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import torch.distributed as dist

import plait
from plait.torch.bootstrap import bootstrap
from plait.torch.callbacks import Callbacks
from plait.torch.works import CompletedWork, PendingWork, raise_as_c10d, timed_out

Call = Callable[["HostBackend"], None]


class HostBackend:
    """What runs calls on host memory. `store`, `timeout_s`: the group's."""

    def __init__(
        self, store: Any, rank: int, ranks: int, timeout_s: float, callbacks: Callbacks
    ) -> None:
        self.rank, self.ranks, self.timeout_s = rank, ranks, timeout_s
        self._store, self._callbacks = store, callbacks
        self.index = -1  # of tensors' devices: host memory
        self._comm: Any = None
        self._core: Any = None  # of self._comm
        self._core_s = timeout_s  # what the core waits at most
        self._closed = ""
        self._turn = threading.Lock()  # held by whoever calls the core
        self._guard = threading.Lock()
        self._waiting = 0  # calls handed to the thread that have not ended
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._running: PendingWork | None = None  # what the thread is at

    def launch(self, request: plait.Request, source: int, out: int, scalar: float = 1.0) -> None:
        """One collective of the core; inside a call alone. source, out: addresses."""
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
        """One of blocks of which no rank knows all counts; inside a call alone."""
        core = self._core if self._core is not None else self._bootstrap()
        core.run_by_own_counts(sends, gets, request, source, out)

    def barrier(self) -> None:
        """All ranks; inside a call alone."""
        if self.ranks > 1:
            (self._core or self._bootstrap()).barrier()

    def exchange(self, mine: bytes, backend: Any) -> list[bytes]:
        """Every rank's bytes; inside a call of `side`, which may be a GPU's."""
        if backend is self:
            return list((self._core or self._bootstrap()).exchange(mine))
        with self._turn:
            return list((self._core or self._bootstrap()).exchange(mine))

    def refuse(self, error: Exception, backend: Any = None) -> None:
        """Ends the call that the others come to with `error`, in place of this rank's part in it.

        side: whose call it is where it is a GPU's.
        """
        if self.ranks == 1:
            return
        with nullcontext() if backend in (None, self) else self._turn, suppress(Exception):
            if self._core is None:
                self._bootstrap()
            self._comm._tell(error)

    def _bootstrap(self) -> Any:
        if self._closed:
            raise plait.AbortedError(self._closed)
        try:
            made = bootstrap(self._store, self.rank, self.ranks, -1, self.timeout_s)
        except Exception as error:
            self._closed = f"its communicator could not be made: {error}"
            raise
        self._comm, self._core, self._core_s = made, made._core, self.timeout_s
        return self._core

    def do(self, what: str, call: Call, result: Any, is_async: bool, timeout_s: float) -> Any:
        """The Work of call(self), run now or later. timeout_s: this call's own; <= 0 = the group's.

        A call with a time of its own runs in the thread, since the core has one time for all.
        """
        limit = timeout_s if timeout_s > 0 else self.timeout_s
        if is_async or limit != self._core_s:
            work = self._enqueue(what, call, result)
            if not is_async:
                self._wait(work, what, limit)
            return work
        if self._waiting or not self._turn.acquire(blocking=False):
            work = self._enqueue(what, call, result)
            work.wait()
            return work
        try:
            self._run(what, call)
        finally:
            self._turn.release()
        return CompletedWork(result)

    def _run(self, what: str, call: Call) -> None:
        try:
            if self._closed:
                raise plait.AbortedError(self._closed)
            call(self)
        except plait.Error as error:
            raise_as_c10d(error, what, self.timeout_s)

    def _wait(self, work: PendingWork, what: str, timeout_s: float) -> None:
        """The others may come still, but not this rank: its communicator is of no more use."""
        if not work.wait_within(timeout_s):
            self.abort(f"{what} did not complete within its own timeout")
            raise timed_out(what, timeout_s)
        work.wait()

    def _enqueue(self, what: str, call: Call, result: Any) -> PendingWork:
        work = PendingWork(result, what, self._callbacks, self._interrupted)
        with self._guard:
            self._waiting += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_thread, daemon=True, name="plait")
                self._thread.start()
            self._queue.put((what, call, work))
        return work

    def _run_thread(self) -> None:
        while (item := self._queue.get()) is not None:
            what, call, work = item
            error: BaseException | None = None
            self._running = work
            try:
                with self._turn:
                    self._run(what, call)
            except BaseException as caught:
                error = caught
            self._running = None
            with self._guard:
                self._waiting -= 1
            work.finish(error)
            del item, call, work, error  # nothing of a call lives until the next

    def _interrupted(self) -> None:
        """Nobody waits any more for what runs; a program that ends must get to its end."""
        self.abort("Ctrl-C ended a wait for one of its calls")

    def abort(self, why: str = "it was aborted") -> None:
        """Ends what runs and what comes, with an error; from any thread."""
        self._closed = self._closed or f"wanted an open process group: {why}"
        if self._core is not None:
            self._core.abort()
        elif (work := self._running) is not None:  # which waits for ranks to meet, deaf to this
            work.finish(dist.DistBackendError(f"[plait] the process group was closed : {why}"))

    def close(self) -> None:
        """After what was handed over, where it ends in the group's time."""
        with self._guard:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(self.timeout_s)
        self._closed = self._closed or "wanted an open process group: it was destroyed"
        self._comm = self._core = None
