"""Transport between nodes over torch.distributed, for programs without MPI.

Messages go by a gloo group of plait's own. A gloo wait with a deadline breaks the connection, so
each wait runs in a thread without one, and plait polls a flag.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

_ROUND: Counter[str] = Counter()  # last bootstrap round of this process, by unique id
_LOOK_S = 0.05  # s between polls of the store for a failed rank


@contextlib.contextmanager
def _in_store() -> Iterator[None]:
    """Names the store in its errors, which the end of the process that holds it causes."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(
            f"the store of torch.distributed, which its rank 0 usually holds, has failed: {error}"
        ) from None


class _Message:
    """A message in flight; `work` keeps the buffer that gloo reads or writes."""

    def __init__(self, work: Any, tensor: Any) -> None:
        self.work, self.tensor = work, tensor
        self.has_ended = False
        self.error: Exception | None = None

    def wait(self) -> None:
        try:
            self.work.wait()
        except Exception as error:
            self.error = error
        self.has_ended = True


class _Waiters:
    """Pool of waiting threads, a thread per concurrent wait."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = self._threads = 0

    def wait_for(self, message: _Message) -> None:
        with self._lock:
            self._free -= 1
            if self._free < 0:
                self._free += 1
                self._threads += 1
                threading.Thread(target=self._run, daemon=True).start()
        self._todo.put(message)

    def end(self) -> None:
        for _ in range(self._threads):
            self._todo.put(None)

    def _run(self) -> None:
        while (message := self._todo.get()) is not None:
            message.wait()
            del message
            with self._lock:
                self._free += 1


class TorchTransport:
    """Transport for plait's core, made collectively by the ranks of a communicator.

    These are the ranks of the default group, or, with a unique id, some of them in any order.
    """

    def __init__(self, rank: int, ranks: int, arrive_s: float, unique_id: str) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self.rank, self.ranks = rank, ranks
        self.name = "gloo, by torch.distributed"
        are_all = ranks == dist.get_world_size()
        name = "" if are_all else unique_id  # the same for all, so that different ids are noticed
        with _in_store():
            self._store = self._round(name)
            self._members = self._bootstrap(arrive_s, unique_id)
        self._group = (
            dist.new_group(backend="gloo")
            if are_all
            else dist.new_group(
                sorted(self._members), backend="gloo", use_local_synchronization=True
            )
        )
        self._numbers = itertools.count(1)
        self._messages: dict[int, _Message] = {}
        self._waiters = _Waiters()
        self._looked = 0.0
        self._first_failure: tuple[int, str] | None = None

    def __del__(self) -> None:
        waiters = getattr(self, "_waiters", None)
        if waiters is not None:
            waiters.end()

    def _round(self, name: str) -> Any:
        """Returns the store of the current bootstrap round.

        All ranks take part in each round. A rank that was refused before arriving joins the last
        round that the peers began.
        """
        store = self._dist.distributed_c10d._get_default_store()
        number = _ROUND[name] + 1
        while store.check([f"plait/{name}/{number + 1}/begun"]):
            number += 1
        _ROUND[name] = number
        store.set(f"plait/{name}/{number}/begun", "")
        return self._dist.PrefixStore(f"plait/{name}/{number}", store)

    def _bootstrap(self, arrive_s: float, unique_id: str) -> list[int]:
        """Returns each rank's number in the default group. An unfit rank is an error on all ranks.

        Uses the store, since making a group does not name a missing rank.
        """
        mine = f"{self._dist.get_rank()} {self.ranks} {unique_id}"
        first = self._store.compare_set(f"come/{self.rank}", "", mine).decode()
        if first != mine:
            self._refuse(
                f"two processes came as rank {self.rank}: ranks {first.split()[0]} and "
                f"{mine.split()[0]} of torch.distributed"
            )
        missing = set(range(self.ranks))
        members = [0] * self.ranks
        deadline = time.monotonic() + arrive_s
        while missing:
            for rank in [one for one in missing if self._store.check([f"come/{one}"])]:
                missing.remove(rank)
                number, _, rest = self._store.get(f"come/{rank}").decode().partition(" ")
                members[rank] = int(number)
                if rest != f"{self.ranks} {unique_id}":
                    self._refuse(
                        f"rank {rank} came with ranks and unique_id {rest!r}, rank {self.rank} "
                        f"with '{self.ranks} {unique_id}': both must be the same"
                    )
            if self._store.check(["refused"]):
                self._raise(self._store.get("refused").decode())
            if time.monotonic() > deadline:
                why = (
                    "wanted all ranks to make this communicator, with the same unique_id where "
                    f"there is one; after {arrive_s:g} s (arrive_s) there is no rank "
                    f"{', '.join(map(str, sorted(missing)))}"
                )
                self._refuse(why, is_late=True)  # later ranks must not wait for this rank
            if missing:
                time.sleep(0.005)
        return members

    def _refuse(self, why: str, is_late: bool = False) -> NoReturn:
        """Fails the bootstrap on all ranks with the same error; the first stands."""
        said = f"{'late' if is_late else 'unfit'} {why}"
        self._raise(self._store.compare_set("refused", "", said).decode())

    def _raise(self, said: str) -> NoReturn:
        kind, _, why = said.partition(" ")
        raise TimeoutError(why) if kind == "late" else ValueError(why)

    def _begin(self, call: Any, peer: int, tag: int, address: int, size: int) -> int:
        memory = (ctypes.c_char * size).from_address(address)
        tensor = self._torch.frombuffer(memory, dtype=self._torch.uint8)
        member = self._members[peer]
        message = _Message(call(tensor, member, group=self._group, tag=tag), tensor)
        number = next(self._numbers)
        self._messages[number] = message
        self._waiters.wait_for(message)
        return number

    def send(self, peer: int, tag: int, address: int, size: int) -> int:
        return self._begin(self._dist.isend, peer, tag, address, size)

    def receive(self, peer: int, tag: int, address: int, size: int) -> int:
        return self._begin(self._dist.irecv, peer, tag, address, size)

    def is_done(self, number: int) -> bool:
        message = self._messages[number]
        if not message.has_ended:
            return False
        del self._messages[number]
        if message.error is not None:
            raise message.error
        return True

    def drop(self, number: int) -> bool:
        """Drops a message. Returns whether its buffer is free, which needs a finished wait."""
        message = self._messages.pop(number, None)
        if message is None or message.has_ended:
            return True
        with contextlib.suppress(Exception):
            message.work.abort()
        deadline = time.monotonic() + 0.1
        while not message.has_ended and time.monotonic() < deadline:
            time.sleep(0.001)
        return message.has_ended

    def publish_failure(self, ranks: list[int], failure: str) -> None:
        """Publishes a failure to all ranks; the first failure stands."""
        with _in_store():
            self._store.compare_set("failed", "", f"{self.rank} {failure}")

    def first_failure(self) -> tuple[int, str] | None:
        now = time.monotonic()
        if self._first_failure is None and now > self._looked + _LOOK_S:
            self._looked = now
            with _in_store():
                said = self._store.get("failed").decode() if self._store.check(["failed"]) else ""
            if said:
                rank, _, failure = said.partition(" ")
                if int(rank) != self.rank:
                    self._first_failure = int(rank), failure
        return self._first_failure


def make(rank: int, ranks: int, arrive_s: float, unique_id: str) -> TorchTransport | None:
    """Makes the transport; returns None if torch.distributed has no default group."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    here, all_ = dist.get_rank(), dist.get_world_size()
    if (here, all_) != (rank, ranks) and (not unique_id or ranks > all_):
        raise ValueError(
            f"this is rank {rank} of {ranks}; torch.distributed says {here} of {all_}: both must "
            "be the same, or with a unique_id ranks be some of these"
        )
    return TorchTransport(rank, ranks, arrive_s, unique_id)
