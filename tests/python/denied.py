"""Seccomp filter like that of a container: a system call fails with EPERM."""

from __future__ import annotations

import ctypes
import errno
import struct

_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of classic BPF
_ALLOW, _ANSWER = 0x7FFF0000, 0x00050000


def deny(number: int) -> None:
    """Denies a system call to this thread and all children for ever. number: on this machine."""
    steps = [
        (_LOAD, 0, 0, 0),  # seccomp_data.nr
        (_JUMP_EQUAL, 0, 1, number),
        (_RETURN, 0, 0, _ANSWER | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(
        struct.pack("H6xP", len(steps), ctypes.addressof(code)), 16
    )
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((_SET_NO_NEW_PRIVS, 1, 0), (_SET_SECCOMP, _FILTER, ctypes.addressof(program))):
        first, second, third = (ctypes.c_ulong(word) for word in words)
        if libc.prctl(first, second, third, ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
