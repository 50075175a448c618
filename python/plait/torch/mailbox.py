"""Point-to-point messages in host memory: tags, sends and receives in any order, any source.

Each direction of a pair has a Unix socket (streams.py), opened at the first send. Any thread in
wait() makes progress for all messages; without a waiting thread, a background thread does. An
unexpected message is buffered only if it lies in the socket before a message that a posted receive
matches.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import threading
import time
from typing import Any

from torch._C._distributed_c10d import Work

import plait
from plait.torch.alarm import TimerFd
from plait.torch.bootstrap import host_name, read_store
from plait.torch.callbacks import Callbacks
from plait.torch.messages import (
    HEADER,
    USER,
    Message,
    UnexpectedMessage,
    closed,
    memory_of,
    peer_gone,
    send_text,
    wrong_size,
)
from plait.torch.streams import Incoming, Outgoing, ReadProbe, SpinBudget
from plait.torch.works import CompletedWork, timed_out

_HUNG_UP = select.POLLHUP | select.POLLERR | select.POLLNVAL
_GRACE_S = 1e-3  # before the background thread starts: most calls are waited for at once
_AT_ONCE_S = 1e-9
_LOOK_S = 2e-3
_TELL_S = 10.0  # a longer wait names the peer on stderr


class Mailbox:
    """Mailbox of a rank of a group. Thread-safe."""

    def __init__(self, store: Any, rank: int, ranks: int, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._store, self._rank, self._ranks = store, rank, ranks
        self._others = set(range(ranks)) - {rank}
        self._probe = ReadProbe()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"plait-{os.getpid()}-{os.urandom(16).hex()}"
        self._listener.bind("\0" + name)  # abstract socket: leaves no file behind
        self._listener.listen(2 * ranks)
        self._listener.setblocking(False)
        store.set(f"mail/{rank}", f"{host_name()} {name}")
        self._driver = threading.Lock()  # held by the thread that makes progress
        self._wanted = 0  # threads that wait to take over
        self._guard = threading.RLock()  # guards all members below
        self._out: dict[int, Outgoing] = {}
        self._in: dict[int, Incoming] = {}
        self._send_closed: set[int] = set()  # peers that read nothing more
        self._receive_closed: set[int] = set()  # peers that send nothing more
        self._receives: list[Message] = []
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._alarm = TimerFd()  # wakes the background thread
        self._thread: threading.Thread | None = None
        self._alarm_is_set = False
        self._background_is_active = False
        self._spins = SpinBudget(ranks)
        self._closing = ""  # reason; empty = open. Same for _closed
        self._closed = ""
        self._is_aborting = False  # interrupts a long read under the guard

    def __del__(self) -> None:
        self._listener.close()
        os.close(self._wake)
        self._alarm.close()

    # Calls of users.

    def send(self, whole: Any, peer: int, tag: int, seconds: float, kind: int = USER) -> Work:
        """Posts a send; returns its Work, complete if the socket took the message at once.

        whole: a contiguous tensor in host memory; seconds: limit of wait(). Raises DistBackendError
        if the mailbox is closed; a peer that has ended fails the Work.
        """
        if peer not in self._out:
            self._connect(peer, seconds)
        memory = memory_of(whole)
        with self._guard:
            self._check_open("send to rank", peer)
            out = self._out.get(peer)
            sent = 0 if out is None else out.send_now((kind, tag), memory)
            if sent == HEADER.size + len(memory):
                return CompletedWork([whole])
            what = send_text(len(memory), peer, tag)
            message = Message(what, peer, (kind, tag), [whole], seconds, self._callbacks)
            message.progress = self._wait_for
            if out is None or not out.is_open:
                message.end(peer_gone(what, peer))
                return message
            out.post(message, memory, whole.data_ptr(), sent)
            self._write(out)
            self._arm_background()
        return message

    def receive(
        self, whole: Any, peer: int | None, tag: int, seconds: float, kind: int = USER
    ) -> Message:
        """Posts a receive into a contiguous tensor in host memory. peer: None = any source."""
        source = "any rank" if peer is None else f"rank {peer}"
        what = f"recv from {source} (tag {tag})"
        message = Message(what, peer, (kind, tag), [whole], seconds, self._callbacks)
        message.memory = memory_of(whole)
        message.progress = self._wait_for
        for one in self._others if peer is None else (peer,):
            if one not in self._in:
                self._listen_to(one, seconds)
        with self._guard:
            self._check_open(message.what)
            if not self._match_unexpected(message):
                self._receives.append(message)
                self._fail_orphaned_receives()
            self._arm_background()
        return message

    def withdraw(self, message: Message, error: BaseException) -> None:
        """Fails a message. Closes a stream that has carried part of the message, and cannot
        resume."""
        with self._guard:
            if message.is_completed():
                return
            if message in self._receives:
                self._receives.remove(message)
            for out in list(self._out.values()):
                if message in out.unsent():
                    message.end(error)
                    self._close_sends_to(out.peer)
            for incoming in list(self._in.values()):
                if message in incoming.receives_in_progress():
                    message.end(error)
                    self._close_receives_from(incoming)
            message.end(error)

    def shut_down(self, why: str, seconds: float) -> None:
        """Closes the mailbox once all peers have received all messages.

        Posted receives fail at once. Raises the first error if a peer does not receive within
        `seconds`; the mailbox is closed in any case.
        """
        with self._guard:
            if self._closed or self._closing:
                return
            self._closing = why
            self._end_receives(why)
            self._listener.close()
            for incoming in self._in.values():
                if incoming.pending_replies == 0:
                    incoming.stream.close()  # tells the sender that this rank reads nothing more
        errors = self._drain(seconds)
        self.close(why)
        if errors:
            raise errors[0]

    def close(self, why: str) -> None:
        """Fails all posted messages and closes the sockets at once."""
        self._is_aborting = True
        with self._guard:
            if self._closed:
                return
            self._closed = why
            self._end_receives(why)
            self._listener.close()
            for out in self._out.values():
                out.close()
                for message in out.drop_unsent():
                    message.end(closed(message.what, why))
            for incoming in self._in.values():
                incoming.stream.close()
            self._alarm.set(_AT_ONCE_S)
        os.eventfd_write(self._wake, 1)

    def _end_receives(self, why: str) -> None:
        posted = [*self._receives]
        for incoming in self._in.values():
            posted += incoming.receives_in_progress()
            incoming.expect(None)
            incoming.unexpected.clear()
        self._receives.clear()
        self._receive_closed |= self._others
        for message in posted:
            message.end(closed(message.what, why))

    def _drain(self, seconds: float) -> list[BaseException]:
        """Waits until peers have received their messages. Returns the errors of the rest."""
        began = time.monotonic()
        tell_at, pause = began + _TELL_S, 1e-4
        with self._guard:
            posted = [message for out in self._out.values() for message in out.unsent()]
        while not self._closed:
            if self._acquire_driver(_LOOK_S):
                try:
                    with self._guard:
                        self._progress()
                finally:
                    self._driver.release()
            with self._guard:
                is_answered = self._end_answered()
                late = [out for out in self._out.values() if not out.is_drained()]
            now = time.monotonic()
            if (not late and is_answered) or now >= began + seconds:
                return self._not_received(late, posted, seconds)
            if now >= tell_at:
                tell_at = float("inf")
                self._warn_late(late)
            time.sleep(pause)
            pause = min(1.5 * pause, 5e-3, max(began + seconds - now, 1e-4))
        return []

    def _end_answered(self) -> bool:
        """Closes incoming streams without pending replies. Returns whether all are closed."""
        for incoming in self._in.values():
            if incoming.pending_replies == 0:
                incoming.stream.close()
        return all(incoming.pending_replies == 0 for incoming in self._in.values())

    def _warn_late(self, late: list[Outgoing]) -> None:
        for out in late:
            print(
                f"plait: rank {self._rank} destroys its group, and waits for rank {out.peer} to "
                f"receive the {out.unreceived_text()}",
                file=sys.stderr,
            )

    def _not_received(
        self, late: list[Outgoing], posted: list[Message], seconds: float
    ) -> list[BaseException]:
        why = "its receiver has not asked for it, and the group is destroyed"
        found: list[BaseException] = []
        for out in late:
            found.append(timed_out(f"the {out.unreceived_text()}", seconds, why))
            for message in out.unsent():
                self.withdraw(message, found[-1])
        for out in self._out.values():
            if out.was_dropped and out.last:
                found.append(
                    peer_gone(f"the {out.unreceived_text()}, which nobody received", out.peer)
                )
        errors = [message.exception() for message in posted]
        return found + [error for error in errors if error is not None]

    # Streams.

    def _check_open(self, *what: object) -> None:
        """Raises if the mailbox is closed. Joins the parts of the error's text only then."""
        why = self._closed or self._closing
        if why:
            raise closed(" ".join(map(str, what)), why)

    def _connect(self, peer: int, seconds: float) -> None:
        """Opens the stream to a peer, if not yet open."""
        if peer in self._out or peer in self._send_closed:
            return
        where = read_store(self._store, f"mail/{peer}", f"rank {peer} to join the group", seconds)
        host, name = where.split(" ", 1)
        if host != host_name():
            raise plait.UnsupportedError(
                f"wanted rank {peer} on this host, found it on another; use gloo or nccl for "
                "groups of several hosts"
            )
        with self._guard:
            self._check_open("reaching rank", peer)
            if peer in self._out:
                return
            try:
                self._out[peer] = Outgoing(peer, name, self._probe.hello(self._rank))
            except OSError:
                self._close_sends_to(peer)

    def _listen_to(self, peer: int, seconds: float) -> None:
        """Opens a stream to a peer that has not sent yet: its end of that stream shows if it
        ends."""
        with self._guard:
            self._check_open("recv from rank", peer)
            self._accept()
            if peer in self._in:
                return
        self._connect(peer, seconds)

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            try:
                incoming = Incoming(stream)
            except (OSError, struct.error, plait.Error):
                stream.close()  # not a rank of this group, or a rank that has ended
                continue
            self._in[incoming.peer] = incoming

    def _close_sends_to(self, peer: int) -> None:
        """Fails sends to the peer. Messages that it sent before may still arrive."""
        self._send_closed.add(peer)
        out = self._out.get(peer)
        if out is not None:
            out.close()
            for message in out.drop_unsent():
                message.end(peer_gone(message.what, peer))
        self._accept()
        if peer not in self._in:
            self._receive_closed.add(peer)
        self._fail_orphaned_receives()

    def _fail_orphaned_receives(self) -> None:
        """Fails receives if all possible senders have closed."""
        if not self._receive_closed:
            return
        for message in list(self._receives):
            wanted = self._others if message.peer is None else {message.peer}
            if wanted <= self._receive_closed:
                self._receives.remove(message)
                message.end(peer_gone(message.what, min(wanted)))

    def _close_receives_from(self, incoming: Incoming) -> None:
        """Closes the stream from a peer and fails the receives that it had begun to fill."""
        incoming.stream.close()
        incoming.pending_replies = 0
        cut = list(incoming.receives_in_progress())
        for unexpected in [one for one in incoming.unexpected if not one.is_complete]:
            incoming.unexpected.remove(unexpected)
        for message in cut:
            message.end(peer_gone(message.what, incoming.peer))
        incoming.expect(None)
        self._receive_closed.add(incoming.peer)
        self._fail_orphaned_receives()

    # Bytes.

    def _write(self, out: Outgoing) -> None:
        """Writes as much as the socket takes, and reads the peer's replies."""
        if out.queue:
            out.write()
        if out.awaiting_reads:
            out.read_replies()
        if not out.is_open and out.peer not in self._send_closed:
            self._close_sends_to(out.peer)

    def _read(self, incoming: Incoming) -> None:
        """Reads arrived data while a receive needs data, and sends pending replies."""
        try:
            if incoming.pending_replies > 0:
                incoming.send_replies()
            while self._reads_from(incoming):
                if incoming.message is None:
                    header = incoming.header()
                    if header is not None:
                        self._start_incoming(incoming, *header)
                elif incoming.body():
                    self._finish_incoming(incoming)
        except BlockingIOError:
            return
        except (OSError, EOFError):
            self._close_receives_from(incoming)

    def _reads_from(self, incoming: Incoming) -> bool:
        if incoming.message is not None:
            return True  # inside a message
        if not self._receives or incoming.peer in self._receive_closed:
            return False
        return any(one.peer in (None, incoming.peer) for one in self._receives)

    def _start_incoming(
        self, incoming: Incoming, kind: int, tag: int, length: int, address: int
    ) -> None:
        """Matches a header to the first posted receive of its key, or buffers the message.

        address: of the message in the sender's memory; 0 = the bytes follow in the stream.
        """
        found: Message | UnexpectedMessage | None = None
        for message in self._receives:
            if message.peer in (None, incoming.peer) and message.key == (kind, tag):
                self._receives.remove(message)
                if len(message.memory) == length:
                    found = message
                else:
                    message.end(wrong_size(message, incoming.peer, length))
                break
        if found is None:
            found = UnexpectedMessage((kind, tag), length)
            incoming.unexpected.append(found)
        incoming.expect(found)
        if address:
            incoming.read_in_place(address, found.memory, lambda: self._is_aborting)
            self._finish_incoming(incoming)
        elif length == 0:
            self._finish_incoming(incoming)

    def _finish_incoming(self, incoming: Incoming) -> None:
        message = incoming.message
        incoming.expect(None)
        if isinstance(message, Message):
            message.end(None, incoming.peer)
        elif message is not None:
            message.is_complete = True
            if message.matched_by is not None:
                incoming.unexpected.remove(message)
                message.deliver(incoming.peer)

    def _match_unexpected(self, message: Message) -> bool:
        """Returns whether an unexpected message matches the receive; the message then completes the
        receive."""
        for peer, incoming in self._in.items():
            if not incoming.unexpected or message.peer not in (None, peer):
                continue
            unexpected = incoming.find_unexpected(message.key)
            if unexpected is not None:
                unexpected.matched_by = message
                if unexpected.is_complete:
                    incoming.unexpected.remove(unexpected)
                    unexpected.deliver(peer)
                return True
        return False

    # Waiting.

    def _needs_background(self) -> bool:
        """Returns whether a message that no thread waits for, or a reply, needs progress."""
        if any([not message.is_waited_for for message in self._receives]):
            return True
        for out in self._out.values():
            if (out.queue or out.awaiting_reads) and not all(
                one.is_waited_for for one in out.unsent()
            ):
                return True
        for incoming in self._in.values():
            if incoming.pending_replies > 0:
                return True
            is_taken = incoming.message is not None or incoming.unexpected
            if is_taken and not all(one.is_waited_for for one in incoming.receives_in_progress()):
                return True
        return False

    def _wait_for(self, message: Message, seconds: float) -> None:
        """Makes progress until the message completes; fails it after `seconds`."""
        end = time.monotonic() + seconds
        message.is_waited_for = True
        if self._alarm_is_set:
            with self._guard:
                self._arm_background()
        while not message.is_completed() and time.monotonic() < end:
            if not self._acquire_driver(_LOOK_S):
                continue
            try:
                self._progress_until(message, end)
            finally:
                self._driver.release()
        if not message.is_completed():
            self.withdraw(message, timed_out(message.what, seconds))
        with self._guard:
            self._arm_background()

    def _acquire_driver(self, seconds: float) -> bool:
        """Asks the thread that makes progress to hand over. Returns whether this thread now
        does."""
        if self._driver.acquire(blocking=False):
            return True
        with self._guard:
            self._wanted += 1
        os.eventfd_write(self._wake, 1)
        is_driver = self._driver.acquire(timeout=seconds)
        with self._guard:
            self._wanted -= 1
        return is_driver

    def _arm_background(self) -> None:
        """Sets or clears the alarm of the background thread (after _GRACE_S), starting it if
        needed."""
        if self._closed or self._background_is_active:
            return
        is_left = self._needs_background()
        if is_left == self._alarm_is_set:
            return
        self._alarm_is_set = is_left
        if not is_left:
            self._alarm.unset()
            return
        self._alarm.set(_GRACE_S)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._background_loop, daemon=True, name="plait-mail"
            )
            self._thread.start()

    def _background_loop(self) -> None:
        alarm = select.poll()
        alarm.register(self._alarm.fd, select.POLLIN)
        while not self._closed:
            alarm.poll()
            with self._guard:
                self._alarm.clear()
                self._alarm_is_set = False
                self._background_is_active = not self._closed and self._needs_background()
            if self._background_is_active:
                with self._driver:
                    self._progress_until(None, float("inf"))
                with self._guard:
                    self._background_is_active = False
                    self._arm_background()

    def _progress_until(self, until: Message | None, end: float) -> None:
        """Makes progress until a message completes or the time `end` is over.

        until: None = until nothing needs the background thread or another thread wants to drive.
        """
        spins = self._spins.begin(until.nbytes) if until is not None else 0
        while True:
            with self._guard:
                if not self._closed:
                    self._progress()
                if self._closed or self._is_done(until):
                    self._spins.end(spins)
                    return
                poll = self._interests() if spins == 0 else None
            if poll is None:
                spins = self._spin(until, spins)
                continue
            left = end - time.monotonic()
            if left <= 0:
                return
            for descriptor, events in poll.poll(min(left, 60.0) * 1e3):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                elif events & _HUNG_UP:
                    self._peer_hung_up(descriptor)

    def _spin(self, until: Message | None, spins: int) -> int:
        """Polls the stream that the message needs, without sleeping. Returns the polls that are
        left."""
        peer = -1 if until is None or until.peer is None else until.peer
        streams = self._out if until is not None and until.nbytes > 0 else self._in
        stream = streams.get(peer)
        if stream is None:
            return spins - 1
        while spins > 0 and not self._closed:
            spins -= 1
            if stream.has_more():
                break
        return spins

    def _is_done(self, until: Message | None) -> bool:
        if until is not None:
            return until.is_completed()
        return self._wanted > 0 or not self._needs_background()

    def _progress(self) -> None:
        """Moves all bytes that can be moved without waiting."""
        for out in list(self._out.values()):
            if out.queue or out.awaiting_reads:
                self._write(out)
        if self._awaits_connection():
            self._accept()
        for incoming in list(self._in.values()):
            self._read(incoming)

    def _awaits_connection(self) -> bool:
        """Returns whether a posted receive may be for a peer that has not connected yet.

        Compares names, not counts: this rank itself is in _in after a message to itself.
        """
        for one in self._receives:
            if one.peer is None:
                if not self._others <= self._in.keys():
                    return True
            elif one.peer not in self._in:
                return True
        return False

    def _interests(self) -> Any:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        sources = {message.peer for message in self._receives}
        if self._awaits_connection():
            poll.register(self._listener, select.POLLIN)
        for incoming in self._in.values():
            wants, pending_replies = self._reads_from(incoming), incoming.pending_replies > 0
            events = (select.POLLIN if wants else 0) | (select.POLLOUT if pending_replies else 0)
            if events:
                poll.register(incoming.stream, events)
        for peer, out in self._out.items():
            is_source = peer not in self._in and (peer in sources or None in sources)
            if out.is_open and (out.queue or out.awaiting_reads or is_source):
                sends, hears = bool(out.queue), bool(out.awaiting_reads)
                events = (select.POLLOUT if sends else 0) | (select.POLLIN if hears else 0)
                poll.register(out.stream, events)
        return poll

    def _peer_hung_up(self, descriptor: int) -> None:
        """Handles a peer that closed its end of this rank's stream. Earlier replies are read
        first."""
        with self._guard:
            for out in list(self._out.values()):
                if out.is_open and out.stream.fileno() == descriptor:
                    out.read_replies()
                    out.close()
                    self._close_sends_to(out.peer)
                    return
