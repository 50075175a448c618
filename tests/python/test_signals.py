"""Tests that Ctrl-C and returning handlers interrupt every wait for ranks within a second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEARD_S = 1.0
BUSY_S = 2.0  # s of tolerance on a busy machine

# Rank 0 waits in `wait`. Rank 1 leaves the peers without ending.
RANK_0 = """
import os, signal, sys, time
import numpy as np
import plait
values = np.ones(1 << 12)
{before}
try:
    print("waits", flush=True)
    {wait}
except KeyboardInterrupt:
    print("heard", flush=True)
{after}
"""
RANK_1 = """
import sys, time
import numpy as np
import plait
values = np.ones(1 << 12)
comm = plait.Communicator(1, 2, rendezvous=sys.argv[1], arrive_s=60, deadline_s=60)
comm.all_reduce(values)
try:
    time.sleep(3)
    comm.all_reduce(values)
except plait.Error as error:
    print(type(error).__name__, error, flush=True)
"""
COMM = "comm = plait.Communicator(0, 2, rendezvous=sys.argv[1], arrive_s=60, deadline_s=60)"
MET = f"{COMM}\ncomm.all_reduce(values)"
WAITS = {
    "a call": (MET, "comm.all_reduce(values)"),
    "a barrier": (MET, "comm.barrier()"),
    "an exchange": (MET, "comm._core.exchange(b'mine')"),
    "a send": (MET, "comm.send(values, 1)"),
    "a receive": (MET, "comm.recv(values, 1)"),
    "the making of a communicator": ("", COMM.replace("0, 2", "0, 3")),
    "the making of a communicator, as another rank": (
        "",
        COMM.replace("0, 2", "1, 3").replace("sys.argv[1]", "sys.argv[1] + '-none'"),
    ),
}


def start(program: str, place: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, f"unix:{place}/meet", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(ranks: list[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        rank.kill()
        rank.communicate()


@pytest.fixture
def place(tmp_path_factory):
    folder = Path(f"/tmp/plait-signals-{os.getpid()}")
    folder.mkdir(mode=0o700)
    yield folder
    for left in folder.iterdir():
        left.unlink()
    folder.rmdir()


def waiting(rank: subprocess.Popen[str]) -> None:
    assert rank.stdout is not None and rank.stdout.readline() == "waits\n"
    time.sleep(0.4)


@pytest.mark.parametrize("wait", WAITS)
def test_an_interrupt_is_heard_while_a_rank_waits(wait, place):
    before, call = WAITS[wait]
    after = "os._exit(0)"  # the leftovers are another test's subject
    ranks = [start(RANK_0.format(before=before, wait=call, after=after), place)]
    if before:
        ranks.append(start(RANK_1, place))
    try:
        waiting(ranks[0])
        ranks[0].send_signal(signal.SIGINT)
        began = time.monotonic()
        assert ranks[0].stdout.readline() == "heard\n"
        assert time.monotonic() - began < HEARD_S + BUSY_S
        if before:
            said, err = ranks[1].communicate(timeout=30)
            assert "Error " in said, (said, err)  # gets the error without waiting for 60 s
    finally:
        end(ranks)


def test_an_interrupt_comes_before_the_end_of_a_peer(place):
    """Ctrl-C reaches all ranks, and a rank that ends by it is noticed within milliseconds."""
    before = f"""{MET}
import threading
def end_both():
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(int(sys.argv[2]), signal.SIGKILL)
threading.Thread(target=end_both).start()"""
    for _ in range(3):
        peer = start(RANK_1, place)
        program = RANK_0.format(before=before, wait="comm.all_reduce(values)", after="os._exit(0)")
        rank = start(program, place, str(peer.pid))
        try:
            said, err = rank.communicate(timeout=60)
            assert said == "waits\nheard\n", err
        finally:
            end([rank, peer])


def test_a_handler_that_returns_lets_the_wait_go_on(place):
    before = f"signal.signal(signal.SIGUSR1, lambda *_: print('handled', flush=True))\n{MET}"
    ranks = [
        start(RANK_0.format(before=before, wait="comm.all_reduce(values)", after=""), place),
        start(RANK_1, place),
    ]
    try:
        waiting(ranks[0])
        ranks[0].send_signal(signal.SIGUSR1)
        began = time.monotonic()
        assert ranks[0].stdout.readline() == "handled\n"
        assert time.monotonic() - began < HEARD_S + BUSY_S
        assert ranks[0].wait(60) == 0 and ranks[1].wait(60) == 0
        assert ranks[1].communicate()[0] == ""
    finally:
        end(ranks)


def test_another_thread_that_looks_at_the_communicator_does_not_hold_up_the_wait(place):
    """A waiting thread takes the GIL at times, hence no thread may hold it and wait for the
    lock."""
    before = (
        f"{MET}\nimport threading\ndef look():\n    while True:\n        comm.counters()\n"
        "        comm.plan_for(plait.Request('all_reduce', 4, 'fp32', ranks=2))\n"
        "threading.Thread(target=look, daemon=True).start()"
    )
    ranks = [
        start(
            RANK_0.format(before=before, wait="comm.all_reduce(values)", after="os._exit(0)"), place
        ),
        start(RANK_1, place),
    ]
    try:
        waiting(ranks[0])
        ranks[0].send_signal(signal.SIGINT)
        began = time.monotonic()
        assert ranks[0].stdout.readline() == "heard\n"
        assert time.monotonic() - began < HEARD_S + BUSY_S
    finally:
        end(ranks)
