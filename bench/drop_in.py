"""The drop-in as a program sees it: its counters, and its switch for new communicators."""

from __future__ import annotations

import ctypes
import os


class CounterRow(ctypes.Structure):
    """A line of the counters (shims/nccl/counters.hpp)."""

    _fields_ = (
        ("name", ctypes.c_char * 32),
        ("served", ctypes.c_int32),
        ("bucket", ctypes.c_int32),
        ("counts", ctypes.c_uint64 * 5),
    )


def drop_in() -> ctypes.CDLL | None:
    """The library where it is loaded."""
    try:
        return ctypes.CDLL("libplait_nccl.so", mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def leave_new(leave: bool) -> None:
    """New communicators stay on NCCL from here on, or attach again."""
    library = drop_in()
    if library is not None:
        library.plait_nccl_leave_new(int(leave))


def served() -> list[int]:
    """Calls that plait served and forwarded so far; empty where it is not there."""
    library = drop_in()
    if library is None:
        return []
    rows = (CounterRow * 4096)()
    count = library.plait_nccl_counters(rows, len(rows))
    totals = [0, 0]
    for row in rows[:count]:
        totals[0 if row.served else 1] += row.counts[0]
    return totals
