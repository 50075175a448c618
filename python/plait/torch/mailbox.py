"""Messages between two ranks on host memory: tags, any order of sends and receives, any source.

A Unix socket for each direction of each pair, made when its sender first sends. Who waits moves
everybody's bytes; a thread does where nobody waits. What comes for no posted receive is read only
on the way to what comes for one, and is kept.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import plait
from plait.torch.meeting import host_name, told
from plait.torch.messages import (
    HEADER,
    HELLO,
    USER,
    Incoming,
    Kept,
    Key,
    Message,
    check_user,
    closed,
    memory_of,
    peer_gone,
    wrong_size,
)
from plait.torch.works import timed_out

_AT_ONCE = 1 << 20  # bytes of one system call, so that others' turns come between
_HUNG_UP = select.POLLHUP | select.POLLERR | select.POLLNVAL
_GRACE_S = 1e-3  # a call that is waited for at once needs no thread
_LOOK_S = 2e-3


class Mailbox:
    """Of one rank of a group. Any thread may call it."""

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"plait-{os.getpid()}-{os.urandom(16).hex()}"
        self._listener.bind("\0" + name)  # in no folder: nothing stays behind
        self._listener.listen(2 * ranks)
        self._listener.setblocking(False)
        store.set(f"mail/{rank}", f"{host_name()} {name}")
        self._driver = threading.Lock()  # held by the thread that polls
        self._wanted = 0  # threads that want to be that one
        self._guard = threading.RLock()  # of what follows
        self._out: dict[int, socket.socket] = {}
        self._in: dict[int, Incoming] = {}
        self._lost: set[int] = set()
        self._sends: dict[int, deque[Message]] = {}
        self._receives: list[Message] = []
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._posted = threading.Condition(self._guard)
        self._thread: threading.Thread | None = None
        self._is_resting = False  # the thread
        self._closed = ""

    def __del__(self) -> None:
        self._listener.close()
        os.close(self._wake)

    # What callers do.

    def send(self, whole: Any, peer: int, tag: int, seconds: float, kind: int = USER) -> Message:
        """whole: a contiguous tensor in host memory. seconds: the most that a wait takes."""
        what = f"send to rank {peer} (tag {tag})"
        message = Message(what, peer, (kind, tag), [whole], seconds)
        self._reach(peer, seconds)
        memory = memory_of(whole)
        message.parts = [memoryview(HEADER.pack(kind, tag, len(memory))), memory]
        message.finish_it = self._finish
        with self._guard:
            self._check_open(what)
            if peer in self._lost:
                message.end(peer_gone(what, peer))
                return message
            queue = self._sends.setdefault(peer, deque())
            queue.append(message)
            if len(queue) == 1:
                self._write(peer)
            self._leave()
        return message

    def receive(
        self, whole: Any, peer: int | None, tag: int, seconds: float, kind: int = USER
    ) -> Message:
        """Fills a contiguous tensor in host memory. peer: None = whoever sends with this tag."""
        source = "any rank" if peer is None else f"rank {peer}"
        message = Message(f"recv from {source} (tag {tag})", peer, (kind, tag), [whole], seconds)
        # Connected too, so that the end of a peer that never sent is heard of.
        for one in self._others() if peer is None else {peer}:
            self._reach(one, seconds)
        message.memory = memory_of(whole)
        message.finish_it = self._finish
        with self._guard:
            self._check_open(message.what)
            if not self._take_kept(message):
                self._receives.append(message)
                self._forsake()
            self._leave()
        return message

    def withdraw(self, message: Message, error: BaseException) -> None:
        """What did not come in time, or whole: then its stream is of no more use."""
        with self._guard:
            if message.is_completed():
                return
            if message in self._receives:
                self._receives.remove(message)
            for peer, queue in list(self._sends.items()):
                if message in queue:
                    message.end(error)
                    self._lose(peer)
            for incoming in list(self._in.values()):
                if incoming.message is message or any(
                    kept.taken_by is message for kept in incoming.kept
                ):
                    message.end(error)
                    self._end_of(incoming)
            message.end(error)

    def close(self, why: str) -> None:
        """What is posted ends with an error."""
        with self._guard:
            if self._closed:
                return
            self._closed = why
            every = list(self._pending())
            self._receives.clear()
            self._sends.clear()
            for message in every:
                message.end(closed(message.what, why))
            for stream in [self._listener, *self._out.values()]:
                stream.close()
            for incoming in self._in.values():
                incoming.stream.close()
            self._posted.notify_all()
        os.eventfd_write(self._wake, 1)

    # Streams.

    def _others(self) -> set[int]:
        return set(range(self._ranks)) - {self._rank}

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise closed(what, self._closed)

    def _reach(self, peer: int, seconds: float) -> None:
        """The stream to a peer, made now where there is none."""
        if peer in self._out or peer in self._lost:
            return
        where = told(self._store, f"mail/{peer}", f"rank {peer} to join the group", seconds)
        host, name = where.split(" ", 1)
        if host != host_name():
            raise plait.UnsupportedError(
                f"wanted rank {peer} on this host, found it on another; use gloo or nccl for "
                "groups of several hosts"
            )
        with self._guard:
            self._check_open(f"reaching rank {peer}")
            if peer in self._out:
                return
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _AT_ONCE)
                stream.connect("\0" + name)
                check_user(stream)
                stream.sendall(HELLO.pack(self._rank))
            except OSError as error:
                stream.close()
                raise peer_gone(f"reaching rank {peer}", peer) from error
            stream.setblocking(False)
            self._out[peer] = stream

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            stream.settimeout(5.0)  # the hello comes with the connection
            try:
                check_user(stream)
                peer = HELLO.unpack(stream.recv(HELLO.size, socket.MSG_WAITALL))[0]
            except (OSError, struct.error, plait.Error):
                stream.close()  # no rank of this group, or one that is gone
                continue
            stream.setblocking(False)
            self._in[peer] = Incoming(peer, stream)

    def _lose(self, peer: int) -> None:
        """Fails what cannot end any more."""
        self._lost.add(peer)
        if peer in self._out:
            self._out[peer].close()
        for message in self._sends.pop(peer, deque()):
            message.end(peer_gone(message.what, peer))
        self._forsake()

    def _forsake(self) -> None:
        """Fails receives that nobody is left to send to."""
        if not self._lost:
            return
        for message in list(self._receives):
            wanted = self._others() if message.peer is None else {message.peer}
            if wanted <= self._lost:
                self._receives.remove(message)
                message.end(peer_gone(message.what, min(wanted)))

    def _end_of(self, incoming: Incoming) -> None:
        """Of what a peer sends."""
        incoming.stream.close()
        cut = [incoming.message] if isinstance(incoming.message, Message) else []
        for kept in [one for one in incoming.kept if not one.is_whole]:
            incoming.kept.remove(kept)
            cut += [kept.taken_by] if kept.taken_by is not None else []
        for message in cut:
            message.end(peer_gone(message.what, incoming.peer))
        incoming.next_is(None)
        self._lose(incoming.peer)

    # Bytes.

    def _write(self, peer: int) -> None:
        """As much as the socket takes."""
        queue = self._sends.get(peer)
        while queue:
            message = queue[0]
            parts = message.parts
            try:
                sent = self._out[peer].sendmsg([part[:_AT_ONCE] for part in parts])
            except BlockingIOError:
                return
            except OSError:
                self._lose(peer)
                return
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][sent:]
            else:
                queue.popleft()
                message.end()

    def _read(self, incoming: Incoming) -> None:
        """As much as there is, while somebody waits for it."""
        while self._wants(incoming):
            if incoming.at < len(incoming.into):
                try:
                    got = incoming.stream.recv_into(incoming.into[incoming.at :])
                except BlockingIOError:
                    return
                except OSError:
                    got = 0
                if got == 0:
                    self._end_of(incoming)
                    return
                incoming.at += got
            if incoming.at == len(incoming.into):
                self._next(incoming)

    def _wants(self, incoming: Incoming) -> bool:
        if incoming.peer in self._lost:
            return False
        if incoming.message is not None or incoming.at > 0:
            return True  # in the middle of one
        return any(one.peer in (None, incoming.peer) for one in self._receives)

    def _next(self, incoming: Incoming) -> None:
        """What was read is whole: a header, or the bytes of a message."""
        message = incoming.message
        if message is None:
            kind, tag, length = HEADER.unpack(incoming.header)
            message = self._receiver(incoming, (kind, tag), length)
            incoming.next_is(message)
            if length > 0:
                return
        incoming.next_is(None)
        if isinstance(message, Message):
            message.end(None, incoming.peer)
            return
        message.is_whole = True
        if message.taken_by is not None:
            incoming.kept.remove(message)
            message.give(incoming.peer)

    def _receiver(self, incoming: Incoming, key: Key, length: int) -> Message | Kept:
        """The first posted receive that fits, else room to keep the message in."""
        for message in self._receives:
            if message.peer in (None, incoming.peer) and message.key == key:
                self._receives.remove(message)
                if len(message.memory) == length:
                    return message
                message.end(wrong_size(message, incoming.peer, length))
                break
        kept = Kept(key, length)
        incoming.kept.append(kept)
        return kept

    def _take_kept(self, message: Message) -> bool:
        """Whether a kept message is the receive's."""
        for peer, incoming in sorted(self._in.items()):
            kept = incoming.taker(message.key) if message.peer in (None, peer) else None
            if kept is not None:
                kept.taken_by = message
                if kept.is_whole:
                    incoming.kept.remove(kept)
                    kept.give(peer)
                return True
        return False

    # Waiting.

    def _is_left(self) -> bool:
        """Whether anything is posted that no thread waits for."""
        return any(not message.is_waited_for for message in self._pending())

    def _pending(self) -> Iterator[Message]:
        yield from self._receives
        for queue in self._sends.values():
            yield from queue
        for incoming in self._in.values():
            if isinstance(incoming.message, Message):
                yield incoming.message
            yield from (kept.taken_by for kept in incoming.kept if kept.taken_by is not None)

    def _finish(self, message: Message, seconds: float) -> None:
        """Until the message has ended, in time or not."""
        end = time.monotonic() + seconds
        message.is_waited_for = True
        while not message.is_completed() and time.monotonic() < end:
            if not self._driver.acquire(blocking=False):
                self._wanted += 1
                os.eventfd_write(self._wake, 1)
                is_driver = self._driver.acquire(timeout=_LOOK_S)
                self._wanted -= 1
                if not is_driver:
                    continue
            try:
                self._drive(message, end)
            finally:
                self._driver.release()
        self.withdraw(message, timed_out(message.what, seconds))
        with self._guard:
            self._leave()

    def _leave(self) -> None:
        """To the thread, what this one does not wait for."""
        if not self._is_left() or self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True, name="plait-mail")
            self._thread.start()
        if self._is_resting:
            self._is_resting = False
            self._posted.notify()

    def _serve(self) -> None:
        while not self._closed:
            with self._guard:
                if not self._is_left() and not self._closed:
                    self._is_resting = True
                    self._posted.wait()
            time.sleep(_GRACE_S)
            with self._guard:
                is_left = self._is_left()
            if is_left:
                with self._driver:
                    self._drive(None, float("inf"))

    def _drive(self, until: Message | None, end: float) -> None:
        """Moves bytes until that message has ended, or the time. None = all of them have, or
        another thread wants to."""

        def is_done() -> bool:
            if until is not None:
                return until.is_completed()
            return self._wanted > 0 or not self._is_left()

        while True:
            with self._guard:
                if not self._closed:
                    self._turn()
                if self._closed or is_done():
                    return
                poll = self._interests()
            left = end - time.monotonic()
            if left <= 0:
                return
            for descriptor, events in poll.poll(min(left, 60.0) * 1e3):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                elif events & _HUNG_UP:
                    self._hung_up(descriptor)

    def _turn(self) -> None:
        """Whatever can be moved without waiting."""
        for peer in [peer for peer, queue in self._sends.items() if queue]:
            self._write(peer)
        if any(one.peer is None or one.peer not in self._in for one in self._receives):
            self._accept()
        for incoming in list(self._in.values()):
            self._read(incoming)

    def _interests(self) -> Any:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        sources = {message.peer for message in self._receives}
        if any(peer is None or peer not in self._in for peer in sources):
            poll.register(self._listener, select.POLLIN)
        for incoming in self._in.values():
            if self._wants(incoming):
                poll.register(incoming.stream, select.POLLIN)
        for peer, stream in self._out.items():
            is_sending = bool(self._sends.get(peer))
            is_source = peer in sources or None in sources
            if peer not in self._lost and (is_sending or is_source):
                poll.register(stream, select.POLLOUT if is_sending else 0)
        return poll

    def _hung_up(self, descriptor: int) -> None:
        """A peer closed its end of this rank's stream to it; what it sent before comes first."""
        with self._guard:
            for peer, stream in self._out.items():
                if stream.fileno() == descriptor and peer not in self._lost:
                    self._accept()
                    incoming = self._in.get(peer)
                    if incoming is None:
                        self._lose(peer)
                    else:
                        self._read(incoming)
                    return
