"""Messages of a mailbox (mailbox.py): posted sends and receives, unexpected messages, and
errors."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import plait
from plait.torch.callbacks import Callbacks
from plait.torch.works import PendingWork

USER, BARRIER = 0, 1  # kinds of messages; a receive matches the same kind only
HEADER = struct.Struct("<qqQQ")  # kind, tag, bytes, sender's address (0 = the bytes follow)
Key = tuple[int, int]  # kind, tag

_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes, _view.restype = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int), ctypes.py_object
_TO_WRITE = 0x200  # PyBUF_WRITE


def memory_of(tensor: Any) -> memoryview:
    """Returns the bytes of a contiguous tensor in host memory, writable. The caller keeps the
    tensor alive."""
    length = tensor.nbytes
    return memoryview(b"") if length == 0 else _view(tensor.data_ptr(), length, _TO_WRITE)


def send_text(nbytes: int, peer: int, tag: int) -> str:
    """Returns the name of a send in error messages."""
    return f"send of {nbytes} bytes to rank {peer} (tag {tag})"


class Message(PendingWork):
    """A posted send or receive, and its Work. peer: None = any source; keep: owner of the
    memory."""

    def __init__(
        self,
        what: str,
        peer: int | None,
        key: Key,
        keep: Any,
        seconds: float,
        callbacks: Callbacks,
    ) -> None:
        super().__init__(keep, what, callbacks)
        self.what, self.peer, self.key, self.seconds = what, peer, key, seconds
        self.parts: list[memoryview] = []  # send: bytes still to be written
        self.nbytes = 0  # size of a send
        self.is_rendezvous = False  # a send whose receiver reads the sender's memory
        self.memory = memoryview(b"")  # buffer of a receive
        self.is_waited_for = False
        self.progress: Callable[[Message, float], None] | None = None  # set by the mailbox
        self.on_completion: Callable[[], None] | None = None  # runs before completion
        self.on_wait: Callable[[], None] | None = None  # runs in the thread that calls wait()

    def before_completion(self, call: Callable[[], None]) -> None:
        """Runs `call` before the message completes, or at once if it has completed without an
        error."""
        with self._guard:
            if not self._is_over:
                self.on_completion = call
                return
        if self._error is None:
            call()

    def end(self, error: BaseException | None = None, source: int = -1) -> None:
        """Completes the message, with `error` if given. Later calls do nothing."""
        if self._is_over:
            return
        if error is None and self.on_completion is not None:
            self.on_completion()
        self.parts, self.memory, self.on_completion = [], memoryview(b""), None
        self.finish(error, source)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for completion and makes progress meanwhile, unless another thread does.

        timeout: None or zero = the message's own limit.
        """
        if not self._is_over and self.progress is not None:
            seconds = timeout.total_seconds() if timeout is not None else 0.0
            self.progress(self, seconds if seconds > 0 else self.seconds)
        super().wait()
        if self.on_wait is not None:
            self.on_wait()
            self.on_wait = None
        return True


class UnexpectedMessage:
    """A message, complete or not, that arrived before its receive. matched_by: the receive, once
    posted."""

    def __init__(self, key: Key, length: int) -> None:
        self.key, self.memory = key, memoryview(bytearray(length))
        self.is_complete = False
        self.matched_by: Message | None = None

    def deliver(self, peer: int) -> None:
        """Copies the complete message into the matching receive and completes that one."""
        message = self.matched_by
        assert message is not None
        if len(message.memory) != len(self.memory):
            message.end(wrong_size(message, peer, len(self.memory)))
            return
        message.memory[:] = self.memory
        message.end(None, peer)


def wrong_size(message: Message, peer: int, length: int) -> BaseException:
    return plait.MismatchError(
        f"{message.what}: wanted {len(message.memory)} bytes, found a message of {length} bytes "
        f"from rank {peer}; receive into a tensor of that size and type"
    )


def closed(what: str, why: str) -> BaseException:
    return dist.DistBackendError(f"[plait] {what}: the process group was closed : {why}")


def peer_gone(what: str, peer: int) -> BaseException:
    text = f"[plait] {what}: Connection closed by peer: rank {peer} has ended"
    return dist.DistNetworkError(text)
