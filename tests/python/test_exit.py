"""How programs end whose threads are in calls."""

import subprocess
import sys

import pytest

ENDS = """
import threading, time
import numpy
import plait
comm = plait.Communicator(0, 1)
values = numpy.ones(1 << 16, numpy.float32)
has_begun = threading.Event()
def loop():
    while True:
        comm.all_reduce(values)
        has_begun.set()
threading.Thread(target=loop, daemon=True).start()
has_begun.wait()
"""


def ended(program):
    """(status, stdout, stderr)."""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("status", [0, 3])
def test_a_program_ends_as_it_wants_while_a_thread_is_in_a_call(status):
    assert ended(f"{ENDS}\nraise SystemExit({status})") == (status, "", "")


def test_what_ends_the_process_in_its_main_thread_still_does():
    """Also after plait's hook, since hooks from before its import run later."""
    program = """
import atexit, ctypes
atexit.register(ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev)
import plait
"""
    status, _, said = ended(program)
    assert status == -6 and "terminate called" in said
