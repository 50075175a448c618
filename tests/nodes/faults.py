"""A rank of a job with some failing ranks; test_hosts.py starts the job.

    mpiexec -n 4 python tests/nodes/faults.py FOLDER CASE RANK...

Each surviving rank writes FOLDER/RANK: a line per call with the call's seconds and error. A
launcher loses output that ranks print while it ends a job.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import plait

RANK = MPI.COMM_WORLD.Get_rank()
FOLDER, CASE = Path(sys.argv[1]), sys.argv[2]
IS_GUILTY = RANK in map(int, sys.argv[3:])
CALL_S = 3.0  # deadline of a call


def report(call: Callable[[], object]) -> None:
    began = time.monotonic()
    try:
        call()
        said = "no error"
    except plait.Error as error:
        said = f"{type(error).__name__} {error}"
    with (FOLDER / str(RANK)).open("a") as file:
        file.write(f"{time.monotonic() - began:.2f} {' '.join(said.split())}\n")


def leave() -> None:
    """Ends the process without MPI_Finalize: that function waits for dead ranks and for ranks in
    calls."""
    time.sleep(2)
    os._exit(0)


def absent() -> None:
    """The rank initialises MPI and makes no communicator."""
    if not IS_GUILTY:
        report(lambda: plait.init(arrive_s=1.0))
    time.sleep(3 if IS_GUILTY else 0)
    leave()


def late() -> None:
    """The rank comes after the other ranks have given up."""
    time.sleep(3 if IS_GUILTY else 0)
    report(lambda: plait.init(arrive_s=1.0))
    leave()


def refused() -> None:
    """A rank's arguments are wrong before it has connected to a peer."""
    report(lambda: plait.init(topology="mist" if IS_GUILTY else None))


def ended_in_set_up() -> None:
    """A rank ends amid plait.init(): ranks that listen for others of their node wait for the lock
    of the folder, which the rank holds."""
    os.environ["XDG_RUNTIME_DIR"] = ""
    folder = f"/tmp/plait-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if IS_GUILTY:
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
        threading.Timer(1.0, os._exit, (0,)).start()
    MPI.COMM_WORLD.Barrier()
    report(lambda: plait.init(arrive_s=20.0))
    leave()


def made() -> None:
    report(plait.init)
    leave()


def other_rank() -> None:
    """Two ranks give the same rank number."""
    os.environ["PLAIT_RANK"] = "0" if IS_GUILTY else str(RANK)
    report(plait.init)
    leave()


def links_of_descriptors() -> list[str]:
    """Returns the target of each open descriptor, except descriptors that MPI closes meanwhile."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return links


def killed() -> None:
    comm: Any = plait.init(arrive_s=CALL_S, deadline_s=CALL_S)
    mine = np.ones(1 << 20, np.float32)
    comm.all_reduce(mine)
    if IS_GUILTY:
        time.sleep(0.5)
        if CASE == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        (FOLDER / "cut").touch()  # the host's link
    report(lambda: [comm.all_reduce(mine) for _ in range(100000)])
    report(comm.barrier)
    comm = None  # frees all that the communicator held
    gc.collect()
    left = [link for link in links_of_descriptors() if "plait" in link or "pidfd" in link]
    (FOLDER / f"left-{RANK}").write_text(f"{left}")
    leave()


def aborted() -> None:
    """A rank's own abort() ends the wait for a rank of another node."""
    comm = plait.init(arrive_s=60.0)
    if IS_GUILTY:
        threading.Timer(0.5, comm.abort).start()
        report(lambda: comm.recv(np.ones(10, np.float32), (RANK + 2) % 4))
    else:
        time.sleep(1.5)
    leave()


def abort_told() -> None:
    """A rank outside calls aborts: calls of all other ranks fail."""
    comm = plait.init(arrive_s=60.0)
    if IS_GUILTY:
        time.sleep(0.5)
        comm.abort()
    else:
        report(lambda: [comm.all_reduce(np.ones(10, np.float32)) for _ in range(100000)])
    leave()


def cut() -> None:
    """The network link of the rank's host is cut. The rank lives on."""
    killed()


if __name__ == "__main__":
    try:
        globals()[CASE]()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # MPI_Finalize would wait for dead ranks
