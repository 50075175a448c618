"""The sending and the receiving end of a stream between two ranks, used by the mailbox.

A stream carries a header and then the message. Large messages go by rendezvous: the receiver reads
the sender's memory (process_vm_readv) and replies, which saves a copy and its system calls. The
receiver tries that read once when the stream opens, since the kernel may forbid it.
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

AT_ONCE = 1 << 20  # bytes of one system call, so that other streams get their turn
RENDEZVOUS_FROM = 1 << 17  # bytes; smaller messages arrive sooner through the socket
_SMALL = 1 << 15  # bytes, sent in the call that posts them
_BETWEEN = 1 << 26  # bytes read between two checks for an abort
_BY_TWO_FROM = 1 << 22  # bytes; a smaller message is read before a second thread wakes
_AHEAD = 1 << 14  # bytes read with a header: a small message takes one system call
_HUNG_UP = select.POLLHUP | select.POLLERR | select.POLLNVAL
_HELLO = struct.Struct("<qQ16s")  # sender's rank, address of its probe bytes, and these bytes
_CAN_READ, _HAS_READ = b"c", b"h"  # replies: once a stream, and once a message

_libc = ctypes.CDLL(None, use_errno=True)


class _Piece(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_memory(process: int, address: int, into: memoryview) -> bool:
    """Fills `into` from another process's memory. Returns False if the kernel forbids it."""
    done = 0
    while done < len(into):
        length = min(len(into) - done, 1 << 30)  # at most this much in one system call
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
    """Returns the process at the other end. Raises AccessError if it runs as another user."""
    found = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", found)
    if user != os.geteuid():
        raise plait.AccessError(f"wanted a rank of user {os.geteuid()}, found one of user {user}")
    return int(process)


def _drop(parts: list[memoryview], sent: int) -> None:
    """Removes the first `sent` bytes of `parts`."""
    while parts and sent >= len(parts[0]):
        sent -= len(parts.pop(0))
    if parts:
        parts[0] = parts[0][sent:]


class ReadProbe:
    """Random bytes in this process. A peer that can read them here can read messages here too."""

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(os.urandom(16), 16)

    def hello(self, rank: int) -> bytes:
        return _HELLO.pack(rank, ctypes.addressof(self._bytes), self._bytes.raw)


class Outgoing:
    """Stream to one peer: queued messages, and messages that the peer has yet to read."""

    def __init__(self, peer: int, name: str, hello: bytes) -> None:
        """name: the peer's socket. Raises OSError if the peer has ended."""
        self.peer = peer
        self.queue: deque[Message] = deque()  # not yet written in full
        self.awaiting_reads: deque[Message] = deque()  # rendezvous: header written, reply pending
        self.last: tuple[int, int] | None = None  # bytes and tag of the last message in the socket
        self.is_open = True
        self.was_dropped = False  # the peer closed before it had read everything
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
        """Returns whether a reply, or the peer's end, can be read."""
        return bool(self._poll.poll(0))

    def send_now(self, key: Key, memory: memoryview) -> int:
        """Writes header and message if the message is small and the queue empty. Returns bytes
        written."""
        if self.queue or not self.is_open or len(memory) > _SMALL:
            return 0
        kind, tag = key
        header = HEADER.pack(kind, tag, len(memory), 0)
        try:
            sent = self.stream.sendmsg((header, memory) if memory else (header,))
        except OSError:  # write() reports it
            return 0
        self.last = (len(memory), tag) if kind == USER else None
        return sent

    def post(self, message: Message, memory: memoryview, address: int, sent: int) -> None:
        """Queues a message, of which `sent` bytes are written already."""
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
        """Writes queued messages until the socket is full."""
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
        """Reads the peer's replies and completes their messages. Closes the stream if the peer
        did."""
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
        """Returns whether the peer has read all user messages, or cannot any more."""
        if self.queue or self.awaiting_reads:
            return False
        if self.last:
            self.read_replies()  # notices a peer that has ended, too
        if not self.is_open or not self.last:
            return True
        left = fcntl.ioctl(self.stream, termios.TIOCOUTQ, b"\0" * 4)
        return struct.unpack("i", left)[0] == 0

    def unsent(self) -> list[Message]:
        return [*self.awaiting_reads, *self.queue]

    def drop_unsent(self) -> list[Message]:
        """Empties the queue and returns the unsent messages."""
        messages = self.unsent()
        self.queue.clear()
        self.awaiting_reads.clear()
        return messages

    def unreceived_text(self) -> str:
        """Returns the name of a send that the peer has not received, for errors. Requires that
        is_drained() is false or was_dropped true."""
        for message in self.unsent():
            return message.what
        nbytes, tag = self.last or (0, 0)
        return send_text(nbytes, self.peer, tag)

    def close(self) -> None:
        self.is_open = False
        with suppress(OSError):  # shutdown also reaches copies in forked processes
            self.stream.shutdown(socket.SHUT_RDWR)
        self.stream.close()


class Incoming:
    """Stream from one peer: the message being read, and its progress."""

    def __init__(self, stream: socket.socket) -> None:
        """stream: a connection just accepted. Raises OSError, struct.error or plait.Error if no
        rank of this user made it."""
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
        self._from, self._to = 0, 0  # range of _ahead that is read and not yet used
        self.message: Message | UnexpectedMessage | None = None  # None: a header comes next
        self.at = 0  # bytes of the message read so far
        self.unexpected: deque[UnexpectedMessage] = deque()
        self._helper: ThreadPoolExecutor | None = None  # reads the second half of large messages
        self.pending_replies = 0  # for rendezvous messages; not yet written

    def has_more(self) -> bool:
        """Returns whether bytes, or the end of the stream, can be read."""
        return bool(self._poll.poll(0))

    def header(self) -> tuple[int, int, int, int] | None:
        """Returns the next header, or None if it is incomplete. Raises OSError or EOFError at the
        end."""
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
        """Sets what is read next; None = a header."""
        self.message, self.at = message, 0

    def body(self) -> bool:
        """Reads more of the message. Returns whether it is complete. Raises OSError or EOFError at
        the end of the stream."""
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
        """Reads a rendezvous message from the sender's memory and replies. The sender keeps the
        memory until the reply. Raises EOFError or OSError if the read fails or must_end() is
        true."""
        for at in range(0, len(memory), _BETWEEN):
            piece = memory[at : at + _BETWEEN]
            if must_end() or not self._read_piece(address + at, piece):
                raise EOFError
        if any(events & _HUNG_UP for _, events in self._poll.poll(0)):
            raise EOFError  # the sender gave up and may have reused the memory
        self.pending_replies += 1
        self.send_replies()

    def _read_piece(self, address: int, piece: memoryview) -> bool:
        """Reads a piece, a large one by two threads: the sender waits, so its core is free."""
        if len(piece) < _BY_TWO_FROM:
            return read_memory(self._process, address, piece)
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "plait-mail-half")
        half = len(piece) // 2
        rest = self._helper.submit(read_memory, self._process, address + half, piece[half:])
        is_read = read_memory(self._process, address, piece[:half])
        return rest.result() and is_read

    def send_replies(self) -> None:
        """Writes pending replies until the socket is full (some hundreds). Raises OSError at the
        end."""
        if self.pending_replies > 0:
            try:
                self.pending_replies -= self.stream.send(_HAS_READ * self.pending_replies)
            except BlockingIOError:
                return

    def _receive(self, into: memoryview) -> int:
        """Reads some bytes. Raises BlockingIOError if none are there, EOFError at the end."""
        got = self.stream.recv_into(into)
        if got == 0:
            raise EOFError
        return got

    def find_unexpected(self, key: Key) -> UnexpectedMessage | None:
        """Returns the first unexpected message of that key that no receive has matched."""
        return next(
            (one for one in self.unexpected if one.key == key and one.matched_by is None), None
        )

    def receives_in_progress(self) -> Iterator[Message]:
        """Yields the receives that messages on this stream are filling."""
        if isinstance(self.message, Message):
            yield self.message
        yield from (
            unexpected.matched_by
            for unexpected in self.unexpected
            if unexpected.matched_by is not None
        )


class SpinBudget:
    """Number of polls before a wait sleeps. After _MOST_FAILURES waits whose polls found
    nothing (shared cores, or a late peer), the next _SKIPPED_WAITS waits sleep at once."""

    _MOST, _MOST_FAILURES, _SKIPPED_WAITS = 100, 4, 50  # a poll takes 1 us
    _MOST_OF_BYTES = 512

    def __init__(self, ranks: int) -> None:
        self._has_cores = ranks <= len(os.sched_getaffinity(0))
        self._failures = self._waits_to_skip = 0

    def begin(self, sent: int) -> int:
        """Returns the polls of a wait. sent: bytes of a pending send, which the peer is reading."""
        if not self._has_cores:
            return 0
        if self._waits_to_skip > 0:
            self._waits_to_skip -= 1
            return 0
        self._failures += 1
        if self._failures >= self._MOST_FAILURES:
            self._failures, self._waits_to_skip = 0, self._SKIPPED_WAITS
        return self._MOST + min(sent >> 12, self._MOST_OF_BYTES)

    def end(self, left: int) -> None:
        """left: unused polls of those that begin() returned."""
        if left > 0:
            self._failures = self._waits_to_skip = 0
