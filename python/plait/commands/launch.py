"""`plait launch -n 4 python x.py`: starts ranks on this machine, without another launcher.

Ranks end with the launcher, also if it is killed or its terminal hangs up. With --tag a thread for
each output of a rank passes whole lines on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Annotated, TextIO

import typer

import plait
from plait.commands.console import at_least, err
from plait.commands.run import CommandArgument, cannot_run
from plait.launch import Keeper

GRACE_S = 5.0  # s after a failed rank, time for the rest to report errors
INTERRUPT_GRACE_S = 0.5  # s after Ctrl-C, time for ranks to end by themselves
DRAIN_S = 1.0  # s for the last lines of ranks that have ended
PEER_LOST = b"peer lost: "  # begins the text of a PeerLostError, in every language


class Tags:
    """Passes the ranks' lines on, whole and with the rank before them.

    lost_a_peer: ranks whose standard error says that they lost a rank.
    """

    def __init__(self) -> None:
        self.lost_a_peer: set[int] = set()
        self._threads: list[threading.Thread] = []
        self._passed_on = time.monotonic()  # when the last line was written
        self._is_writing = False  # a line that its reader has not taken yet
        self._lock = threading.Lock()

    def add(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Starts to read a rank's standard output and standard error."""
        for source, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            assert source is not None
            reading = threading.Thread(target=self._pass_on, args=(rank, source, sink), daemon=True)
            reading.start()
            self._threads.append(reading)

    def _pass_on(self, rank: int, source: IO[bytes], sink: TextIO) -> None:
        tag = f"[{rank}] ".encode()
        for line in source:
            if sink is sys.stderr and PEER_LOST in line:
                self.lost_a_peer.add(rank)
            with self._lock:
                self._is_writing = True
                try:
                    sink.buffer.write(tag + line.rstrip(b"\r\n") + b"\n")
                    sink.buffer.flush()
                except OSError:  # nobody reads on; the rank may not block
                    pass
                self._is_writing, self._passed_on = False, time.monotonic()

    def close(self) -> None:
        """Waits for the last lines, also of a slow reader, not for processes that hold the outputs
        open."""
        began = time.monotonic()
        for reading in self._threads:
            while reading.is_alive():
                reading.join(0.05)
                quiet_since = max(began, self._passed_on)
                if not self._is_writing and time.monotonic() > quiet_since + DRAIN_S:
                    return


def environment(rank: int, ranks: int, job: str) -> dict[str, str]:
    """Returns torchrun's variables and the rendezvous address."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "PLAIT_RENDEZVOUS": job,
    }


def launch(
    command: CommandArgument,
    ranks: Annotated[int, typer.Option("--ranks", "-n", "-g", callback=at_least(1))] = 2,
    tag: Annotated[
        bool, typer.Option("--tag", help="Print whole lines, with [rank] before them.")
    ] = False,
) -> None:
    """Start ranks of a program that calls plait.init().

    plait launch -n 4 python x.py
    """
    most = plait._core.MOST_RANKS
    if ranks > most:
        raise plait.UnsupportedError(f"--ranks: wanted 1 to {most}, found {ranks}")
    job = f"launch-{os.getpid()}-{time.time_ns():x}"
    started: list[subprocess.Popen[bytes]] = []
    keeper, tags = Keeper(), Tags()
    output = subprocess.PIPE if tag else None
    try:
        for rank in range(ranks):
            env = environment(rank, ranks, job)
            started.append(subprocess.Popen(command, env=env, stdout=output, stderr=output))
            keeper.add(started[-1])
            if tag:
                tags.add(rank, started[-1])
    except OSError as error:
        keeper.close()
        cannot_run(command, error)
    interrupts: list[float] = []
    # The terminal signals the ranks too; a program has INTERRUPT_GRACE_S to end in order.
    signal.signal(signal.SIGINT, lambda *_: interrupts.append(time.monotonic()))
    signal.signal(signal.SIGTERM, lambda number, _: _end(started, number))
    failed, is_interrupted = _wait(started, interrupts)
    keeper.close()
    tags.close()
    if is_interrupted:
        raise KeyboardInterrupt
    if failed:
        err.print(f"plait: {_failure_text(failed, tags.lost_a_peer)}", markup=False)
    raise typer.Exit(next(iter(failed.values()), 0))


def _end(started: list[subprocess.Popen[bytes]], number: int) -> None:
    for process in started:
        if process.poll() is None:
            process.send_signal(number)


def _wait(
    started: list[subprocess.Popen[bytes]], interrupts: list[float]
) -> tuple[dict[int, int], bool]:
    """Returns the status of each rank that failed by itself, and whether Ctrl-C ended the ranks.
    Kills the rest GRACE_S after the first failure, or INTERRUPT_GRACE_S after Ctrl-C."""
    failed: dict[int, int] = {}
    deadline = float("inf")
    while True:
        runs = [process.poll() for process in started].count(None)
        for rank, process in enumerate(started):
            if status := process.returncode:
                failed.setdefault(rank, status if status > 0 else 128 - status)
        if failed:
            deadline = min(deadline, time.monotonic() + GRACE_S)
        if interrupts:
            deadline = min(deadline, interrupts[0] + INTERRUPT_GRACE_S)
        if runs == 0 or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    _end(started, signal.SIGKILL)
    for process in started:
        process.wait()
    return failed, bool(interrupts)


def _failure_text(failed: dict[int, int], lost_a_peer: set[int]) -> str:
    """Returns text: 'rank 1 ended with 7'. Gives no order of time, since a rank may end before the
    rank that it lost. lost_a_peer: ranks whose output says that they lost a rank."""
    first = {rank: status for rank, status in failed.items() if rank not in lost_a_peer}
    if first and len(first) < len(failed):
        rest = [rank for rank in failed if rank in lost_a_peer]
        lost = "it" if len(first) == 1 else "them"
        return f"{_statuses_text(first)} by itself, and {_ranks_text(rest)} lost {lost}"
    hint = ": look first at the rank whose error names no other" if len(failed) > 1 else ""
    return _statuses_text(failed) + hint


def _statuses_text(failed: dict[int, int]) -> str:
    """Returns text: 'ranks 0 and 2 ended with 1, rank 3 with 7'."""
    parts: list[str] = []
    for status in dict.fromkeys(failed.values()):
        ranks = _ranks_text([rank for rank, its in failed.items() if its == status])
        parts.append(f"{ranks} {'' if parts else 'ended '}with {status}")
    return ", ".join(parts)


def _ranks_text(ranks: list[int]) -> str:
    """Returns text: 'rank 1', or 'ranks 0, 1 and 3'."""
    *most, last = map(str, sorted(ranks))
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
