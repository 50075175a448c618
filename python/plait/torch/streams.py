"""The two ends of a stream between two ranks: what goes to a peer, and what comes from one.

A stream carries headers, each with its message behind it. A large message stays where it lies: the
receiver reads the sender's memory and answers, which saves a copy and its system calls. Whether the
kernel lets it is tried when the stream is made.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import plait
from plait.torch.messages import HEADER, USER, Key, Message, UnexpectedMessage, send_text

AT_ONCE = 1 << 20  # bytes of one system call, so that others' turns come between
RENDEZVOUS_FROM = 1 << 17  # bytes; smaller ones are there sooner through the socket
_SMALL = 1 << 15  # bytes, tried at once
_BETWEEN = 1 << 26  # bytes, after which an abort is heard
_BY_TWO_FROM = 1 << 22  # bytes; smaller ones are read before another thread wakes
_AHEAD = 1 << 14  # bytes read with a header, so that a small message is one system call
_HUNG_UP = select.POLLHUP | select.POLLERR | select.POLLNVAL
_HELLO = struct.Struct("<qQ16s")  # the sender's rank; where it has its mark, and that mark
_CAN_READ, _HAS_READ = b"c", b"h"  # what a receiver answers: once, and for each message

_libc = ctypes.CDLL(None, use_errno=True)


class _Piece(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_memory(process: int, address: int, into: memoryview) -> bool:
    """Fills `into` from another process's memory. False where the kernel does not let this one."""
    done = 0
    while done < len(into):
        length = min(len(into) - done, 1 << 30)  # the most of one call of the kernel's
        target = (ctypes.c_char * length).from_buffer(into, done)
        here = _Piece(ctypes.addressof(target), length)
        there = _Piece(address + done, length)
        got = _libc.process_vm_readv(
            process, ctypes.byref(here), 1, ctypes.byref(there), 1, ctypes.c_ulong(0)
        )
        if got < 0 and ctypes.get_errno() == errno.EINTR:
            continue
        if got <= 0:
            return False
        done += got
    return True


def _process_of(stream: socket.socket) -> int:
    """That made the other end. Another user's process is not to be talked to."""
    found = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", found)
    if user != os.geteuid():
        raise plait.AccessError(f"wanted a rank of user {os.geteuid()}, found one of user {user}")
    return int(process)


def _drop(parts: list[memoryview], sent: int) -> None:
    """What has gone of what was to go."""
    while parts and sent >= len(parts[0]):
        sent -= len(parts.pop(0))
    if parts:
        parts[0] = parts[0][sent:]


class ReadProbe:
    """Bytes that nobody guesses: who reads them in this process can read its messages too."""

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(os.urandom(16), 16)

    def hello(self, rank: int) -> bytes:
        return _HELLO.pack(rank, ctypes.addressof(self._bytes), self._bytes.raw)


class Outgoing:
    """The stream to one peer: messages that go one after the other, and those it still reads."""

    def __init__(self, peer: int, name: str, hello: bytes) -> None:
        """OSError where the peer has ended. name: of its socket."""
        self.peer = peer
        self.queue: deque[Message] = deque()  # of which not all is in the socket
        self.awaiting_reads: deque[Message] = deque()  # of which only the header was to go
        self.last: tuple[int, int] | None = None  # bytes and tag of the last one the socket took
        self.is_open = True
        self.was_dropped = False  # the peer ended, or destroyed the group, before it read all
        self._can_rendezvous = False
        self.stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, AT_ONCE)
            self.stream.connect("\0" + name)
            _process_of(self.stream)
            self.stream.sendall(hello)
        except (OSError, plait.Error):
            self.stream.close()
            raise
        self.stream.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self.stream, select.POLLIN)

    def has_more(self) -> bool:
        """Whether the peer has answered, or ended."""
        return bool(self._poll.poll(0))

    def send_now(self, key: Key, memory: memoryview) -> int:
        """How many bytes of a header and its message the socket took; of small messages alone."""
        if self.queue or not self.is_open or len(memory) > _SMALL:
            return 0
        kind, tag = key
        header = HEADER.pack(kind, tag, len(memory), 0)
        try:
            sent = self.stream.sendmsg((header, memory) if memory else (header,))
        except OSError:  # write() says why
            return 0
        self.last = (len(memory), tag) if kind == USER else None
        return sent

    def post(self, message: Message, memory: memoryview, address: int, sent: int) -> None:
        """To go next, after those before; so many bytes are sent."""
        kind, tag = message.key
        message.nbytes = len(memory)
        message.is_rendezvous = len(memory) >= RENDEZVOUS_FROM and self._uses_rendezvous()
        header = HEADER.pack(kind, tag, len(memory), address if message.is_rendezvous else 0)
        message.parts = [memoryview(header)]
        if not message.is_rendezvous and len(memory) > 0:
            message.parts.append(memory)
        _drop(message.parts, sent)
        self.queue.append(message)

    def _uses_rendezvous(self) -> bool:
        if not self._can_rendezvous:
            self.read_replies()
        return self._can_rendezvous

    def write(self) -> None:
        """As much as the socket takes."""
        while self.queue and self.is_open:
            message = self.queue[0]
            parts = message.parts
            try:
                sent = self.stream.sendmsg([part[:AT_ONCE] for part in parts])
            except BlockingIOError:
                return
            except OSError:
                self.read_replies()
                self.close()
                return
            _drop(parts, sent)
            if parts:
                continue
            self.queue.popleft()
            is_users = message.key[0] == USER and not message.is_rendezvous
            self.last = (message.nbytes, message.key[1]) if is_users else None
            if message.is_rendezvous:
                self.awaiting_reads.append(message)
            else:
                message.end()

    def read_replies(self) -> None:
        """What the peer has answered; it takes nothing more where its end is closed."""
        while self.is_open:
            try:
                said = self.stream.recv(64)
            except BlockingIOError:
                return
            except OSError as error:
                self.was_dropped = error.errno == errno.ECONNRESET
                said = b""
            if not said:
                self.close()
                return
            self._can_rendezvous = self._can_rendezvous or _CAN_READ in said
            for _ in range(said.count(_HAS_READ)):
                self.awaiting_reads.popleft().end()

    def is_drained(self) -> bool:
        """Whether the peer has read all that users sent, or never will."""
        if self.queue or self.awaiting_reads:
            return False
        if self.last:
            self.read_replies()  # of a peer that is gone, too
        if not self.is_open or not self.last:
            return True
        left = fcntl.ioctl(self.stream, termios.TIOCOUTQ, b"\0" * 4)
        return struct.unpack("i", left)[0] == 0

    def unsent(self) -> list[Message]:
        return [*self.awaiting_reads, *self.queue]

    def drop_unsent(self) -> list[Message]:
        """They are no longer to go."""
        messages = self.unsent()
        self.queue.clear()
        self.awaiting_reads.clear()
        return messages

    def unreceived_text(self) -> str:
        """A send that the peer has not received, as errors name it; is_drained() is false, or
        was_dropped true."""
        for message in self.unsent():
            return message.what
        nbytes, tag = self.last or (0, 0)
        return send_text(nbytes, self.peer, tag)

    def close(self) -> None:
        self.is_open = False
        with suppress(OSError):  # the peer may be gone; processes forked since hold the stream too
            self.stream.shutdown(socket.SHUT_RDWR)
        self.stream.close()


class Incoming:
    """The stream from one peer: which message is being read, and how far."""

    def __init__(self, stream: socket.socket) -> None:
        """Of a connection just accepted. OSError, struct.error or plait.Error where it is no
        rank's."""
        stream.settimeout(5.0)  # the hello comes with the connection
        self.stream = stream
        self._process = _process_of(stream)
        hello = stream.recv(_HELLO.size, socket.MSG_WAITALL)
        self.peer, address, probe = _HELLO.unpack(hello)
        found = bytearray(len(probe))
        if read_memory(self._process, address, memoryview(found)) and found == probe:
            stream.sendall(_CAN_READ)
        stream.setblocking(False)
        self._ahead = memoryview(bytearray(_AHEAD))
        self._poll = select.poll()
        self._poll.register(stream, select.POLLIN)
        self._from, self._to = 0, 0  # of _ahead: what was read and is nobody's yet
        self.message: Message | UnexpectedMessage | None = None  # None: a header is to come
        self.at = 0  # bytes of it that have come
        self.unexpected: deque[UnexpectedMessage] = deque()
        self._helper: ThreadPoolExecutor | None = None  # reads a half of large messages
        self.pending_replies = (
            0  # to messages that were read in place, which its sender has not got yet
        )

    def has_more(self) -> bool:
        """Whether something has come, or the end."""
        return bool(self._poll.poll(0))

    def header(self) -> tuple[int, int, int, int] | None:
        """The next one, or None where it has not come yet. OSError, EOFError at the end."""
        if self._to - self._from < HEADER.size:
            left = self._to - self._from
            if left > 0:
                self._ahead[:left] = bytes(self._ahead[self._from : self._to])
            self._from, self._to = 0, left
            self._to += self._receive(self._ahead[left:])
            if self._to < HEADER.size:
                return None
        found = HEADER.unpack_from(self._ahead, self._from)
        self._from += HEADER.size
        return found

    def expect(self, message: Message | UnexpectedMessage | None) -> None:
        """What is read from here on; None = a header."""
        self.message, self.at = message, 0

    def body(self) -> bool:
        """More of the message; whether it is whole. OSError, EOFError at the end."""
        assert self.message is not None
        memory, length = self.message.memory, len(self.message.memory)
        ahead = min(self._to - self._from, length - self.at)
        if ahead > 0:
            memory[self.at : self.at + ahead] = self._ahead[self._from : self._from + ahead]
            self._from += ahead
            self.at += ahead
        if self.at < length:
            self.at += self._receive(memory[self.at :])
        return self.at == length

    def read_in_place(self, address: int, memory: memoryview, must_end: Callable[[], bool]) -> None:
        """A whole message where it lies; the sender keeps it until it hears of that. EOFError,
        OSError where it does not come."""
        for at in range(0, len(memory), _BETWEEN):
            piece = memory[at : at + _BETWEEN]
            if must_end() or not self._read_piece(address + at, piece):
                raise EOFError
        if any(events & _HUNG_UP for _, events in self._poll.poll(0)):
            raise EOFError  # the sender has given up: nobody knows what it had there meanwhile
        self.pending_replies += 1
        self.send_replies()

    def _read_piece(self, address: int, piece: memoryview) -> bool:
        """By two threads where that is sooner: the sender waits meanwhile, so its core is free."""
        if len(piece) < _BY_TWO_FROM:
            return read_memory(self._process, address, piece)
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "plait-mail-half")
        half = len(piece) // 2
        rest = self._helper.submit(read_memory, self._process, address + half, piece[half:])
        is_read = read_memory(self._process, address, piece[:half])
        return rest.result() and is_read

    def send_replies(self) -> None:
        """As many answers as the socket takes: it holds some hundreds. OSError at the end."""
        if self.pending_replies > 0:
            try:
                self.pending_replies -= self.stream.send(_HAS_READ * self.pending_replies)
            except BlockingIOError:
                return

    def _receive(self, into: memoryview) -> int:
        """BlockingIOError where nothing is there."""
        got = self.stream.recv_into(into)
        if got == 0:
            raise EOFError
        return got

    def find_unexpected(self, key: Key) -> UnexpectedMessage | None:
        """The first kept message of that key that nobody took."""
        return next(
            (one for one in self.unexpected if one.key == key and one.matched_by is None), None
        )

    def receives_in_progress(self) -> Iterator[Message]:
        """Receives that what is being read belongs to."""
        if isinstance(self.message, Message):
            yield self.message
        yield from (
            unexpected.matched_by
            for unexpected in self.unexpected
            if unexpected.matched_by is not None
        )


class SpinBudget:
    """How often a wait looks before it sleeps. Where looks are in vain for some waits in a row,
    others share the cores, or the peer comes much later: the next waits do without."""

    _MOST, _IN_VAIN, _WITHOUT = 100, 4, 50  # a look takes a microsecond
    _MOST_OF_BYTES = 512

    def __init__(self, ranks: int) -> None:
        self._has_cores = ranks <= len(os.sched_getaffinity(0))
        self._in_vain = self._without = 0

    def begin(self, sent: int) -> int:
        """sent: the bytes that a send waits for, which a peer reads meanwhile."""
        if not self._has_cores:
            return 0
        if self._without > 0:
            self._without -= 1
            return 0
        self._in_vain += 1
        if self._in_vain >= self._IN_VAIN:
            self._in_vain, self._without = 0, self._WITHOUT
        return self._MOST + min(sent >> 12, self._MOST_OF_BYTES)

    def end(self, left: int) -> None:
        """left: of the looks that begin() gave."""
        if left > 0:
            self._in_vain = self._without = 0
