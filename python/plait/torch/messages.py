"""What a mailbox moves: messages, posted or kept, and the errors of them."""

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

USER, BARRIER = 0, 1  # kinds of messages, which never match each other's receives
HEADER = struct.Struct("<qqQQ")  # kind, tag, bytes, where they lie (0 = they follow)
Key = tuple[int, int]  # kind, tag

_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes, _view.restype = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int), ctypes.py_object
_TO_WRITE = 0x200  # PyBUF_WRITE


def memory_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous tensor in host memory, which the caller keeps."""
    length = tensor.nbytes
    return memoryview(b"") if length == 0 else _view(tensor.data_ptr(), length, _TO_WRITE)


def send_text(nbytes: int, peer: int, tag: int) -> str:
    """Of a send, as errors name it."""
    return f"send of {nbytes} bytes to rank {peer} (tag {tag})"


class Message(PendingWork):
    """A send or a receive, and the Work of it. peer: None = any; keep: what holds the memory."""

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
        self.parts: list[memoryview] = []  # of a send: what is still to go
        self.nbytes = 0  # of a send
        self.is_rendezvous = False  # a send whose bytes the receiver reads where they lie
        self.memory = memoryview(b"")  # of a receive
        self.is_waited_for = False
        self.progress: Callable[[Message, float], None] | None = None  # the mailbox's
        self.on_completion: Callable[[], None] | None = None  # before it counts as over
        self.on_wait: Callable[[], None] | None = None  # in the thread that waits

    def before_completion(self, call: Callable[[], None]) -> None:
        """Has `call` run before the message counts as over; at once where it is over."""
        with self._guard:
            if not self._is_over:
                self.on_completion = call
                return
        if self._error is None:
            call()

    def end(self, error: BaseException | None = None, source: int = -1) -> None:
        """Once; a second end is none."""
        if self._is_over:
            return
        if error is None and self.on_completion is not None:
            self.on_completion()
        self.parts, self.memory, self.on_completion = [], memoryview(b""), None
        self.finish(error, source)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Moves bytes itself where no other thread does."""
        if not self._is_over and self.progress is not None:
            seconds = timeout.total_seconds() if timeout is not None else 0.0
            self.progress(self, seconds if seconds > 0 else self.seconds)
        super().wait()
        if self.on_wait is not None:
            self.on_wait()
            self.on_wait = None
        return True


class UnexpectedMessage:
    """What came, or is coming, for no posted receive; matched_by: one that was posted since."""

    def __init__(self, key: Key, length: int) -> None:
        self.key, self.memory = key, memoryview(bytearray(length))
        self.is_complete = False
        self.matched_by: Message | None = None

    def deliver(self, peer: int) -> None:
        """To whom it is taken by; it is whole."""
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
