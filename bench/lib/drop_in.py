"""Reads the counters of a loaded drop-in under NCCL, and switches it for new communicators.

Programs of several GPUs and those of tests/gpu use this module.
"""

from __future__ import annotations

import ctypes
import os


class CounterRow(ctypes.Structure):
    """A row of the counters (src/comm/trace/call_book.hpp)."""

    _fields_ = (
        ("name", ctypes.c_char * 32),
        ("served", ctypes.c_int32),
        ("bucket", ctypes.c_int32),
        ("counts", ctypes.c_uint64 * 5),
    )


def drop_in() -> ctypes.CDLL | None:
    """Returns the drop-in if the process has loaded it."""
    try:
        return ctypes.CDLL("libplait_nccl.so", mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def leave_new(leave: bool) -> None:
    """Leaves new communicators to NCCL (True), or attaches to them again (False)."""
    library = drop_in()
    if library is not None:
        library.plait_nccl_leave_new(int(leave))


def served() -> list[int]:
    """Returns the numbers of served and forwarded calls so far; empty without the drop-in."""
    library = drop_in()
    if library is None:
        return []
    rows = (CounterRow * 4096)()
    count = library.plait_nccl_counters(rows, len(rows))
    totals = [0, 0]
    for row in rows[:count]:
        totals[0 if row.served else 1] += row.counts[0]
    return totals


def memory_mb() -> dict[str, float]:
    """Returns the MB of each part of plait's memory in this process now; empty without the
    drop-in."""
    library = drop_in()
    if library is None:
        return {}
    library.plait_nccl_memory.restype = ctypes.c_uint64
    parts: dict[str, float] = {}
    while True:
        name = ctypes.c_char_p()
        held = library.plait_nccl_memory(len(parts), ctypes.byref(name))
        if name.value is None:
            return parts
        parts[name.value.decode()] = round(held / 1e6, 1)
