"""Tests the end of programs with threads in calls, and programs that read settings at exit."""

import os
import subprocess
import sys

import pytest

import plait
from plait import places

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
    """Returns (status, stdout, stderr)."""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("status", [0, 3])
def test_a_program_ends_as_it_wants_while_a_thread_is_in_a_call(status):
    assert ended(f"{ENDS}\nraise SystemExit({status})") == (status, "", "")


def test_what_ends_the_process_in_its_main_thread_still_does():
    """Covers hooks registered before plait's import, which run after plait's."""
    program = """
import atexit, ctypes
atexit.register(ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev)
import plait
"""
    status, _, said = ended(program)
    assert status == -6 and "terminate called" in said


WRONG_VARIABLE = r"""
#include <plait/plait.h>
#include <stdio.h>
int main(void) {
  plaitComm_t comm = NULL;
  if (plaitCommInitFromEnvironment(&comm) == plait_ok) return 1;
  puts(plaitGetLastError(NULL));
  return 0;
}
"""


@pytest.mark.skipif(
    not (places.cmake() / "plaitConfig.cmake").exists(), reason="wanted plait as it is installed"
)
def test_a_c_program_with_a_variable_that_is_none_ends_after_its_error(tmp_path):
    (tmp_path / "wrong.c").write_text(WRONG_VARIABLE)
    library = os.path.dirname(plait.__file__)
    words = ["gcc", "wrong.c", "-o", "wrong", f"-I{library}/include", f"-Wl,-rpath,{library}"]
    words += [f"{library}/libplait.so.0"]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=60)
    env = {**os.environ, "PLAIT_FOO": "1"}
    done = subprocess.run([tmp_path / "wrong"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "PLAIT_FOO is no variable of plait" in done.stdout
