"""What a mailbox is made of: messages, posted or kept, and the stream from one peer."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import plait
from plait.torch.works import Later

USER, BARRIER = 0, 1  # kinds of messages, which never match each other's receives
HEADER = struct.Struct("<qqQ")  # kind, tag, bytes
HELLO = struct.Struct("<q")  # the sender's rank
Key = tuple[int, int]  # kind, tag


def memory_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous tensor in host memory, which the caller keeps."""
    length = tensor.nbytes
    if length == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * length).from_address(tensor.data_ptr())).cast("B")


class Message(Later):
    """A send or a receive, and the Work of it. peer: None = any; keep: what holds the memory."""

    def __init__(self, what: str, peer: int | None, key: Key, keep: Any, seconds: float) -> None:
        super().__init__(keep, what)
        self.what, self.peer, self.key, self.seconds = what, peer, key, seconds
        self.parts: list[memoryview] = []  # of a send: what is still to go
        self.memory = memoryview(b"")  # of a receive
        self.is_waited_for = False
        self.finish_it: Callable[[Message, float], None] | None = None  # the mailbox's
        self.at_end: Callable[[], None] | None = None  # before it counts as over
        self.at_wait: Callable[[], None] | None = None  # in the thread that waits

    def landing(self, call: Callable[[], None]) -> None:
        """Has `call` run before the message counts as over; at once where it is over."""
        with self._guard:
            if not self._is_over:
                self.at_end = call
                return
        if self._error is None:
            call()

    def end(self, error: BaseException | None = None, source: int = -1) -> None:
        """Once; a second end is none."""
        if self.is_completed():
            return
        if error is None and self.at_end is not None:
            self.at_end()
        self.parts, self.memory, self.at_end = [], memoryview(b""), None
        self.finish(error, source)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Moves bytes itself where no other thread does."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self.is_completed() and self.finish_it is not None:
            self.finish_it(self, seconds if seconds > 0 else self.seconds)
        super().wait()
        if self.at_wait is not None:
            self.at_wait()
            self.at_wait = None
        return True


class Kept:
    """What came, or is coming, for no posted receive; taken_by: one that was posted since."""

    def __init__(self, key: Key, length: int) -> None:
        self.key, self.memory = key, memoryview(bytearray(length))
        self.is_whole = False
        self.taken_by: Message | None = None

    def give(self, peer: int) -> None:
        """To whom it is taken by; it is whole."""
        message = self.taken_by
        assert message is not None
        if len(message.memory) != len(self.memory):
            message.end(wrong_size(message, peer, len(self.memory)))
            return
        message.memory[:] = self.memory
        message.end(None, peer)


class Incoming:
    """The stream from one peer: which message is being read, and how far."""

    def __init__(self, peer: int, stream: socket.socket) -> None:
        self.peer, self.stream = peer, stream
        self.header = bytearray(HEADER.size)
        self.into = memoryview(self.header)
        self.at = 0
        self.message: Message | Kept | None = None  # None: a header is being read
        self.kept: deque[Kept] = deque()

    def next_is(self, message: Message | Kept | None) -> None:
        """What is read from here on; None = a header."""
        self.message, self.at = message, 0
        self.into = memoryview(self.header) if message is None else message.memory

    def taker(self, key: Key) -> Kept | None:
        """The first kept message of that key that nobody took."""
        return next((one for one in self.kept if one.key == key and one.taken_by is None), None)


def check_user(stream: socket.socket) -> None:
    """Another user's process is not to be talked to."""
    peer = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user = struct.unpack("3i", peer)[1]
    if user != os.geteuid():
        raise plait.AccessError(f"wanted a rank of user {os.geteuid()}, found one of user {user}")


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
