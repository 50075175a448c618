"""The page that `plait launch` shares with its ranks, without a path, so that nothing is left.

A rank notes there that it reports the loss of a peer; the launcher notes ranks that have ended.
src/comm/bootstrap/launch_page.cpp has the ranks' side and the same layout.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time

MOST_RANKS = 64
MAGIC = b"plait-launch-1"
RANKS, HAS_LOST, HAS_ENDED, SIGNALS, STATUSES = 16, 64, 128, 192, 256  # offsets of bytes, by rank


class LaunchPage:
    """A byte for each rank and fact."""

    def __init__(self, ranks: int) -> None:
        self._fd = os.memfd_create("plait-launch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, 4096)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._page = mmap.mmap(self._fd, 4096)
        self._ranks = ranks
        self._page[RANKS] = ranks
        self._page[: len(MAGIC)] = MAGIC

    @property
    def rendezvous(self) -> str:
        """Name of the job's rendezvous, by which ranks find the page."""
        return f"launch-{os.getpid()}-{self._fd}-{time.time_ns():x}"

    def note_end(self, rank: int, code: int) -> None:
        """Notes that a rank has ended. code: as subprocess has it, negative for a signal."""
        self._page[SIGNALS + rank], self._page[STATUSES + rank] = max(-code, 0), max(code, 0)
        self._page[HAS_ENDED + rank] = 1

    def lost_a_peer(self) -> set[int]:
        """Returns the ranks that have reported the loss of a peer."""
        return {rank for rank in range(self._ranks) if self._page[HAS_LOST + rank]}
