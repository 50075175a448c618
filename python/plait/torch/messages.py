"""Point-to-point messages in host memory: works over the core's mailbox (src/comm/p2p).

The core matches, moves and fails messages. Here ranks find each other through torch's store, and
errors become those of c10d.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

import plait
from plait.torch.bootstrap import host_name, read_store, why_stop
from plait.torch.callbacks import Callbacks
from plait.torch.compiled import never_compiled
from plait.torch.memory import place_of
from plait.torch.works import (
    FOREVER_S,
    CallFuture,
    CompletedWork,
    SourceWork,
    seconds_of,
    timed_out,
)

USER, BARRIER = 0, -1  # contexts: a receive matches the same one only; those below 0 are internal


def c10d_error(failure: tuple[int, str, str], seconds: float) -> BaseException:
    """Returns c10d's error for a failed message. seconds: limit of the wait."""
    code, what, reason = failure
    if code == plait.DeadlineError.code:
        return timed_out(what, seconds, reason.partition("; ")[2])
    if code == plait.PeerLostError.code:
        plait._core.note_lost_peer()
        return dist.DistNetworkError(f"[plait] {what}: Connection closed by peer: {reason}")
    if code == plait.AbortedError.code:
        return _closed(what, reason)
    if code == plait.MismatchError.code:
        return plait.MismatchError(f"{what}: {reason}")
    return dist.DistBackendError(f"[plait] {what}: {reason}")


def _closed(what: str, why: str) -> BaseException:
    return dist.DistBackendError(f"[plait] {what}: the process group was closed : {why}")


@never_compiled
class MessageWork(SourceWork):
    """Work of a posted send or receive.

    memory: what the message reads or writes. seconds: limit of wait() without a timeout.
    """

    def __init__(
        self,
        core: Any,
        message: Any,
        memory: Any,
        result: Any,
        seconds: float,
        callbacks: Callbacks,
    ) -> None:
        super().__init__()
        self._core, self._message = core, message
        self._memory, self._result = memory, result
        self._seconds, self._callbacks = seconds, callbacks
        self._turn = callbacks.current_turn()
        self._error: BaseException | None = None
        self._before: Callable[[], None] | None = None
        self._is_ready: Callable[[], bool] = _is_always_ready
        self._guard = threading.Lock()  # guards _before and _future
        self._future: Any = None

    def __del__(self) -> None:
        """Keeps the memory of a message that is under way until its end."""
        message = getattr(self, "_message", None)
        if message is not None and not message.is_done:
            self._core.on_done(message, partial(_forget, self._memory))

    def before_completion(
        self, call: Callable[[], None], is_ready: Callable[[], bool] | None = None
    ) -> None:
        """Runs `call` once, before any function shows that the message arrived. An error of `call`
        fails the message.

        is_ready: returns whether `call` runs without a long wait; None = always.
        """
        self._is_ready = is_ready or _is_always_ready
        self._before = call

    def _is_over(self) -> bool:
        """Returns whether the message is done, and its result is there or needs no long wait."""
        if not self._message.is_done:
            return False
        return self._message.failure is not None or self._before is None or self._is_ready()

    def _ended_well(self) -> bool:
        """Of a done message: whether it arrived."""
        if self._message.failure is not None:
            return False
        if self._before is not None:
            with self._guard:
                if self._before is not None:
                    try:
                        self._before()
                    except Exception as error:
                        self._error = error
                    self._before = None  # last: other threads go on once this is None
        return self._error is None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for completion and makes progress meanwhile, unless another thread does.

        timeout: None or zero = the message's own limit.
        """
        if not self._message.is_done:
            seconds = seconds_of(timeout)
            seconds = seconds if seconds > 0 else self._seconds
            self._core.wait(self._message, seconds)
            self._seconds = seconds
        if not self._ended_well():
            error = self.exception()
            assert error is not None
            raise error
        return True

    def is_completed(self) -> bool:
        if not self._is_over():
            return False
        self._ended_well()
        return True

    def is_success(self) -> bool:
        return self._is_over() and self._ended_well()

    def exception(self) -> BaseException | None:
        if self._error is None and self._message.is_done and self._message.failure is not None:
            self._error = c10d_error(self._message.failure, self._seconds)
        return self._error

    def _source_rank(self) -> int:
        return int(self._message.source)

    def get_future(self) -> Any:
        with self._guard:
            is_new = self._future is None
            if is_new:
                wait = partial(self._core.wait, self._message, FOREVER_S)
                self._future = CallFuture(wait, self._callbacks, self._turn)
            future = self._future
        if is_new:
            self._core.on_done(self._message, partial(self._schedule, future))
        return future

    def _schedule(self, future: Any) -> None:
        self._callbacks.run(partial(self._resolve, future), self._turn)

    def _resolve(self, future: Any) -> None:
        if self._ended_well():
            future.settle(self._result)
        else:
            future.settle(None, self.exception())


def _forget(_: Any) -> None:
    pass


def _is_always_ready() -> bool:
    return True


class Mailbox:
    """Mailbox of a rank of a group. Thread-safe."""

    def __init__(self, store: Any, rank: int, ranks: int, callbacks: Callbacks) -> None:
        self._store, self._callbacks = store, callbacks
        self._others = set(range(ranks)) - {rank}
        self._targets: set[int] = set()  # peers that a send reaches
        self._sources: set[int] = set()  # peers that a receive hears
        self._core = plait._core.Mailbox(rank, ranks)
        self._closed = ""  # why the mailbox is closed; empty = open
        # Ends the core's threads before Python does, if the program never destroys the group.
        weakref.finalize(self, self._core.close, "the program ended")
        store.set(f"mail/{rank}", f"{host_name()} {self._core.address}")

    def send(
        self, whole: Any, peer: int, tag: int, seconds: float, context: int = USER
    ) -> SourceWork:
        """Posts a send of a contiguous tensor in host memory; returns its Work. Large messages are
        read from the tensor.

        seconds: limit of wait(). Raises DistBackendError if the mailbox is closed; a peer that has
        ended fails the Work.
        """
        if peer not in self._targets:
            self._connect(peer, seconds)
        try:
            message = self._core.send(peer, context, tag, *place_of(whole))
        except plait.AbortedError as error:
            raise self._closed_error(f"send to rank {peer}", error) from None
        if message is None:
            return CompletedWork([whole])
        return MessageWork(self._core, message, whole, [whole], seconds, self._callbacks)

    def receive(
        self,
        whole: Any,
        peer: int | None,
        tag: int,
        seconds: float,
        context: int = USER,
        result: Any = None,
    ) -> MessageWork:
        """Posts a receive into a contiguous tensor in host memory.

        peer: None = any source. result: the caller's tensor; None = `whole`.
        """
        if peer is None:
            for one in self._others - self._sources:
                self._hear(one, seconds)
            peer = plait._core.ANY_SOURCE
        elif peer not in self._sources:
            self._hear(peer, seconds)
        try:
            message = self._core.receive(peer, context, tag, *place_of(whole))
        except plait.AbortedError as error:
            raise self._closed_error("recv", error) from None
        results = [whole if result is None else result]
        return MessageWork(self._core, message, whole, results, seconds, self._callbacks)

    def shut_down(self, why: str, seconds: float) -> None:
        """Closes the mailbox once all peers have received all messages.

        Posted receives fail at once. Raises the first error if a peer does not receive within
        `seconds`; the mailbox is closed in any case.
        """
        failure = self._core.shut_down(why, seconds)
        if failure is None:
            return
        code, what, reason = failure
        if code == plait.DeadlineError.code:
            raise timed_out(what, seconds, reason)
        raise c10d_error((code, what, reason), seconds)

    def close(self, why: str) -> None:
        """Fails all posted messages and closes at once. Thread-safe."""
        self._closed = self._closed or f"wanted an open process group: {why}"
        self._core.close(why)

    def _closed_error(self, what: str, error: plait.Error) -> BaseException:
        return _closed(what, str(error).rpartition("closed: ")[2])

    def _connect(self, peer: int, seconds: float) -> None:
        """Opens the stream to a peer, if not yet open."""
        if not self._core.is_connected(peer):
            what = f"rank {peer} to join the group"
            found = read_store(
                self._store,
                f"mail/{peer}",
                what,
                seconds,
                lambda: why_stop(self._store, self._closed),
            )
            host, address = found.split(" ", 1)
            if host != host_name():
                raise plait.UnsupportedError(
                    f"wanted rank {peer} on this host, found it on another; use gloo or nccl for "
                    "groups of several hosts"
                )
            try:
                self._core.connect(peer, address)
            except plait.AbortedError as error:
                raise self._closed_error(f"reaching rank {peer}", error) from None
        self._targets.add(peer)

    def _hear(self, peer: int, seconds: float) -> None:
        """Opens a stream to a peer that has not sent yet: its end of that stream shows if it
        ends."""
        if not self._core.is_connected_from(peer):
            self._connect(peer, seconds)
        self._sources.add(peer)
