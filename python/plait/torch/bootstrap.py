"""Bootstrap of a group's ranks through torch's store, for communicators and mailboxes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

import plait
from plait.torch.works import timed_out

_LONGEST_S = 86400.0  # the core counts nanoseconds; a day stands for no deadline
_ABORTED = "aborted"  # key of the store; the value names the rank that has aborted the group
_LOOK_S = 0.02  # pause between looks for an abort
ABORT_S = 1.0  # longest wait for a rank's abort to come to the store


def clamp_deadline(seconds: float) -> float:
    """Returns the deadline within the core's range."""
    return min(max(seconds, 1e-3), _LONGEST_S)


def host_name() -> str:
    """Returns the host's boot id: the same in all containers of the host, new after a restart."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def tell_abort(store: Any, rank: int) -> threading.Thread:
    """Tells peers, in waits of a set-up, that this rank has aborted the group. Returns the thread
    that writes to the store, which may be slow: callers wait at most ABORT_S for the thread's end,
    and the process must not end before."""

    def tell() -> None:
        with suppress(Exception):  # a store that is gone has no readers
            store.set(_ABORTED, f"rank {rank}")

    thread = threading.Thread(target=tell, daemon=True, name="plait-abort")
    thread.start()
    return thread


def why_stop(store: Any, closed: str) -> str:
    """Returns why a wait of a set-up ends before its time; empty = the wait goes on.

    closed: why this rank has closed the group; empty = the group is open.
    """
    if closed:
        return closed
    with suppress(Exception):  # the wait itself reports errors of the store
        if store.check([_ABORTED]):
            return f"wanted an open process group: {bytes(store.get(_ABORTED)).decode()} aborted it"
    return ""


def read_store(
    store: Any, key: str, what: str, seconds: float, stopped: Callable[[], str] = lambda: ""
) -> str:
    """Returns a value that another rank sets. Polls: the store's wait blocks other threads.

    stopped: returns why the wait ends early, for AbortedError; empty = the wait goes on.
    """
    began = looked = time.monotonic()
    pause = 1e-4
    while not store.check([key]):
        now = time.monotonic()
        if now - looked >= _LOOK_S:
            if why := stopped():
                raise plait.AbortedError(why)
            looked = now
        if now >= began + seconds:
            raise timed_out(what, seconds, f"no rank has set {key} in the store")
        time.sleep(pause)
        pause = min(2 * pause, 5e-3)
    return bytes(store.get(key)).decode()


def bootstrap(
    store: Any,
    rank: int,
    ranks: int,
    device: int,
    seconds: float,
    closed: Callable[[], str] = lambda: "",
) -> plait.Communicator:
    """Makes a communicator. Collective. device: this rank's GPU, or -1 on all ranks for host
    memory.

    closed: returns why this rank has closed the group; empty = the group is open. Raises
    AbortedError once this rank has closed the group, or a peer has aborted the group.

    Under torch.use_deterministic_algorithms(True) sums are in rank order, or fail.
    """
    if ranks > plait._core.MOST_RANKS:
        raise plait.UnsupportedError(
            f"wanted at most {plait._core.MOST_RANKS} ranks in a group of plait's backend, found "
            f"{ranks}; make smaller groups, or use gloo or nccl for this one"
        )

    def stopped() -> str:
        return why_stop(store, closed())

    if why := stopped():
        raise plait.AbortedError(why)
    key = "host" if device < 0 else "gpus"
    if rank == 0:
        path = f"{plait._core.rendezvous_folder()}/torch-{os.urandom(12).hex()}"
        store.set(key, f"{host_name()} {clamp_deadline(seconds)} {path}")
    where = read_store(store, key, "rank 0 to come to its first call", seconds, stopped)
    found, arrive_s, path = where.split(" ", 2)  # rank 0's deadline, for all ranks
    if found != host_name():
        raise plait.UnsupportedError(
            "wanted all ranks of a group of plait's backend on one host, found rank 0 of rank "
            f"{rank}'s group on another; use gloo or nccl for groups of several hosts"
        )
    options = plait._core.CommunicatorOptions()
    options.rank, options.ranks, options.device = rank, ranks, device
    options.rendezvous = f"unix:{path}"
    options.arrive_s = options.deadline_s = float(arrive_s)
    options.bitwise = torch.are_deterministic_algorithms_enabled()
    try:
        core = plait._core.Communicator.create(options, stopped)
    except plait.PeerLostError as error:
        # A rank that aborts leaves the set-up, and its word in the store may come a moment later.
        if why := _within(ABORT_S, stopped):
            raise plait.AbortedError(why) from error
        raise
    return plait.Communicator._of(core)


def _within(seconds: float, ask: Callable[[], str]) -> str:
    """Returns the first text of ask() within `seconds`; empty = none."""
    end = time.monotonic() + seconds
    while not (found := ask()) and time.monotonic() < end:
        time.sleep(_LOOK_S)
    return found
