"""How ranks of a group find each other through torch's store, for communicators and mailboxes."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

import plait
from plait.torch.works import timed_out

_LONGEST_S = 86400.0  # the core counts nanoseconds; a day is for ever


def clamp_deadline(seconds: float) -> float:
    """As the core takes a deadline."""
    return min(max(seconds, 1e-3), _LONGEST_S)


def host_name() -> str:
    """The same in all containers of one host, and after no restart."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def read_store(store: Any, key: str, what: str, seconds: float) -> str:
    """What another rank set. A wait in the store would hold up this process's other threads."""
    end = time.monotonic() + seconds
    pause = 1e-4
    while not store.check([key]):
        if time.monotonic() >= end:
            raise timed_out(what, seconds, f"no rank has set {key} in the store")
        time.sleep(pause)
        pause = min(2 * pause, 5e-3)
    return bytes(store.get(key)).decode()


def bootstrap(store: Any, rank: int, ranks: int, device: int, seconds: float) -> plait.Communicator:
    """Made by all ranks at once, each on its GPU `device` or all in host memory (-1).

    Under torch.use_deterministic_algorithms(True) its sums are in rank order, or errors.
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
    found, arrive_s, path = where.split(" ", 2)  # rank 0's time, since all must have one
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
