"""A timer as a file descriptor (timerfd) for the sleep of the mailbox's background thread.

Setting and clearing the timer cost 1 us each. Waking a thread in vain costs a slice of a busy
core."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_libc = ctypes.CDLL(None, use_errno=True)
_MONOTONIC = 1
_NS = 1_000_000_000


class _Times(ctypes.Structure):
    """struct itimerspec: period and first expiry, each in s and ns."""

    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("in_s", ctypes.c_long),
        ("in_ns", ctypes.c_long),
    )


class TimerFd:
    """`fd` is readable from the expiry until clear()."""

    def __init__(self) -> None:
        self.fd: int = _libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"timerfd_create: {os.strerror(error)}")

    def set(self, seconds: float) -> None:
        """Sets the expiry, in place of an earlier expiry. seconds: above 0."""
        self._set(max(1, round(seconds * _NS)))

    def unset(self) -> None:
        self._set(0)

    def _set(self, in_ns: int) -> None:
        times = _Times(0, 0, in_ns // _NS, in_ns % _NS)
        _libc.timerfd_settime(self.fd, 0, ctypes.byref(times), None)

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)
