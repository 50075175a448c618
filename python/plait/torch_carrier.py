"""Messages between nodes by torch.distributed: what carries them where a program has no MPI.

A group of gloo's own beside the program's carries the messages. Its waits have no deadline that
leaves the connection alone, so each is waited for in a thread, and asked for by a flag.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import queue
import sys
import threading
import time
from typing import Any

_MADE = itertools.count()  # groups so far, on all ranks alike
_LOOK_S = 0.05  # how often the store is asked whether a rank has failed


class _Message:
    """A message under way: its work keeps the buffer that gloo reads or writes."""

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
    """Threads that wait, as many as there are waits at once."""

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


class TorchCarrier:
    """What plait's core asks of a carrier; all ranks of the default group make one together."""

    def __init__(self, arrive_s: float) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.name = "gloo, by torch.distributed"
        store = dist.distributed_c10d._get_default_store()
        self._store = dist.PrefixStore(f"plait/{next(_MADE)}", store)
        self._meet(arrive_s)
        self._group = dist.new_group(backend="gloo")
        self._numbers = itertools.count(1)
        self._messages: dict[int, _Message] = {}
        self._waiters = _Waiters()
        self._looked = 0.0
        self._told: tuple[int, str] | None = None

    def __del__(self) -> None:
        waiters = getattr(self, "_waiters", None)
        if waiters is not None:
            waiters.end()

    def _meet(self, arrive_s: float) -> None:
        """By the store, since making a group names nobody who does not come."""
        self._store.set(f"come/{self.rank}", b"1")
        missing = list(range(self.ranks))
        deadline = time.monotonic() + arrive_s
        while missing := [rank for rank in missing if not self._store.check([f"come/{rank}"])]:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    "wanted all ranks of torch.distributed to make this communicator; after "
                    f"{arrive_s:g} s (arrive_s) there is no rank {', '.join(map(str, missing))}"
                )
            time.sleep(0.005)

    def _begin(self, call: Any, peer: int, tag: int, address: int, size: int) -> int:
        memory = (ctypes.c_char * size).from_address(address)
        tensor = self._torch.frombuffer(memory, dtype=self._torch.uint8)
        message = _Message(call(tensor, peer, group=self._group, tag=tag), tensor)
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
        """Whether its buffer is left alone: an ended wait lets go of it."""
        message = self._messages.pop(number, None)
        if message is None or message.has_ended:
            return True
        with contextlib.suppress(Exception):
            message.work.abort()
        deadline = time.monotonic() + 0.1
        while not message.has_ended and time.monotonic() < deadline:
            time.sleep(0.001)
        return message.has_ended

    def tell(self, ranks: list[int], failure: str) -> None:
        """The first word stands; all hear it, whoever it is for."""
        if not self._store.check(["failed"]):
            self._store.set("failed", f"{self.rank} {failure}")

    def told(self) -> tuple[int, str] | None:
        now = time.monotonic()
        if self._told is None and now > self._looked + _LOOK_S:
            self._looked = now
            if self._store.check(["failed"]):
                rank, _, failure = self._store.get("failed").decode().partition(" ")
                if int(rank) != self.rank:
                    self._told = int(rank), failure
        return self._told


def make(rank: int, ranks: int, arrive_s: float) -> TorchCarrier | None:
    """Where the program has a default group of torch.distributed; None where it has not."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    if (dist.get_rank(), dist.get_world_size()) != (rank, ranks):
        raise ValueError(
            f"this is rank {rank} of {ranks}; torch.distributed says {dist.get_rank()} of "
            f"{dist.get_world_size()}: both must be the same"
        )
    return TorchCarrier(arrive_s)
