"""Bootstrap of a group's ranks through torch's store, for communicators and mailboxes."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

import plait
from plait.torch.works import timed_out

_LONGEST_S = 86400.0  # the core counts nanoseconds; a day stands for no deadline


def clamp_deadline(seconds: float) -> float:
    """Returns the deadline within the core's range."""
    return min(max(seconds, 1e-3), _LONGEST_S)


def host_name() -> str:
    """Returns the host's boot id: the same in all containers of the host, new after a restart."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def read_store(store: Any, key: str, what: str, seconds: float) -> str:
    """Returns a value that another rank sets. Polls: the store's wait blocks other threads."""
    end = time.monotonic() + seconds
    pause = 1e-4
    while not store.check([key]):
        if time.monotonic() >= end:
            raise timed_out(what, seconds, f"no rank has set {key} in the store")
        time.sleep(pause)
        pause = min(2 * pause, 5e-3)
    return bytes(store.get(key)).decode()


def bootstrap(store: Any, rank: int, ranks: int, device: int, seconds: float) -> plait.Communicator:
    """Makes a communicator. Collective. device: this rank's GPU, or -1 on all ranks for host
    memory.

    Under torch.use_deterministic_algorithms(True) sums are in rank order, or fail.
    """
    if ranks > plait._core.MOST_RANKS:
        raise plait.UnsupportedError(
            f"wanted at most {plait._core.MOST_RANKS} ranks in a group of plait's backend, found "
            f"{ranks}; make smaller groups, or use gloo or nccl for this one"
        )
    key = "host" if device < 0 else "gpus"
    if rank == 0:
        path = f"{plait._core.rendezvous_folder()}/torch-{os.urandom(12).hex()}"
        store.set(key, f"{host_name()} {clamp_deadline(seconds)} {path}")
    where = read_store(store, key, "rank 0 to come to its first call", seconds)
    found, arrive_s, path = where.split(" ", 2)  # rank 0's deadline, for all ranks
    if found != host_name():
        raise plait.UnsupportedError(
            "wanted all ranks of a group of plait's backend on one host, found rank 0 of rank "
            f"{rank}'s group on another; use gloo or nccl for groups of several hosts"
        )
    return plait.Communicator(
        rank,
        ranks,
        rendezvous=f"unix:{path}",
        arrive_s=float(arrive_s),
        deadline_s=float(arrive_s),
        device=device,
        bitwise=torch.are_deterministic_algorithms_enabled(),
    )
