"""`plait launch -n 4 python x.py`: starts ranks on this machine, without another launcher.

Ranks end with the launcher, also if the launcher is killed or the terminal hangs up. Ranks share
the launcher's process group, so that a terminal serves a debugger in a rank and signals all ranks;
SIGINT and SIGTERM to the launcher alone are passed on. With --tag a thread for each output of a
rank passes whole lines on.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import IO, Annotated, TextIO

import typer

import plait
from plait import leftovers, standard_output
from plait.commands.console import at_least, err
from plait.commands.run import CommandArgument, cannot_run
from plait.launch import Keeper
from plait.launch_page import LaunchPage
from plait.outputs import why

GRACE_S = 5.0  # s after a failed rank, time for the rest to report errors
INTERRUPT_GRACE_S = 0.8  # s after Ctrl-C, time for ranks to save; all are gone within 1 s
GROUP_S = 0.02  # s until a signal to a group of processes has reached all processes
DRAIN_S = 1.0  # s for the last lines of ranks that have ended
BUSY_S = 30.0  # s for lines that are there, on a busy machine


class Tags:
    """Passes the ranks' lines on, whole and with the rank before them."""

    def __init__(self) -> None:
        self._readers: list[tuple[threading.Thread, IO[bytes]]] = []
        self._passed_on = time.monotonic()  # when the last line was written
        self._is_writing = False  # a line that its reader has not taken yet
        self._lock = threading.Lock()
        self.lost: OSError | None = None  # the first failure to write a line

    def add(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Starts to read a rank's standard output and standard error."""
        for source, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            assert source is not None
            reading = threading.Thread(target=self._pass_on, args=(rank, source, sink), daemon=True)
            reading.start()
            self._readers.append((reading, source))

    def _pass_on(self, rank: int, source: IO[bytes], sink: TextIO) -> None:
        tag = f"[{rank}] ".encode()
        for line in source:
            with self._lock:
                self._is_writing = True
                try:
                    sink.buffer.write(tag + line.rstrip(b"\r\n") + b"\n")
                    sink.buffer.flush()
                except OSError as error:  # the rank may not block, so reading goes on
                    standard_output.discard(sink)
                    if not isinstance(error, BrokenPipeError):  # the reader wanted no more
                        self.lost = self.lost or error
                self._is_writing, self._passed_on = False, time.monotonic()

    def close(self) -> None:
        """Waits for the last lines, also of a slow reader, not for processes that hold the outputs
        open."""
        began = time.monotonic()
        for reading, source in self._readers:
            while reading.is_alive():
                reading.join(0.05)
                quiet_s = time.monotonic() - max(began, self._passed_on)
                if not self._is_writing and quiet_s > (BUSY_S if _can_read(source) else DRAIN_S):
                    return


def _can_read(source: IO[bytes]) -> bool:
    """Returns whether a line, or the end of the output, is there to be read."""
    return bool(select.select([source], [], [], 0)[0])


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
    grace: Annotated[
        float,
        typer.Option(help="Seconds that ranks have after Ctrl-C; a second Ctrl-C ends them."),
    ] = INTERRUPT_GRACE_S,
) -> None:
    """Start ranks of a program that calls plait.init().

    plait launch -n 4 python x.py

    Programs of torch.distributed want torchrun, which sets MASTER_ADDR and MASTER_PORT.
    """
    if not 0 <= grace <= 3600:
        raise plait.InvalidArgumentError(f"--grace: wanted 0 to 3600 seconds, found {grace:g}")
    most = plait._core.MOST_RANKS
    if ranks > most:
        raise plait.UnsupportedError(f"--ranks: wanted 1 to {most}, found {ranks}")
    page = LaunchPage(ranks)
    job = page.rendezvous
    started: list[subprocess.Popen[bytes]] = []
    leftovers.adopt_orphans()
    heard: list[signal.Signals] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: heard.append(signal.Signals(number)))
    keeper, tags = Keeper(), Tags()
    output = subprocess.PIPE if tag else None
    try:
        for rank in range(ranks):
            if heard:
                break
            env = environment(rank, ranks, job)
            started.append(subprocess.Popen(command, env=env, stdout=output, stderr=output))
            keeper.add(started[-1])
            if tag:
                tags.add(rank, started[-1])
            if heard:  # the group's signal may have come before this rank
                started[-1].send_signal(heard[-1])
    except OSError as error:
        keeper.close()
        cannot_run(command, error)
    job_of_ranks = Job(started, keeper, heard, grace, page)
    job_of_ranks.wait()
    keeper.close()
    tags.close()
    if job_of_ranks.interrupts:
        if job_of_ranks.killed:
            err.print(f"plait: {_killed_text(job_of_ranks)} (--grace)", markup=False)
        raise KeyboardInterrupt
    failed = job_of_ranks.failed
    if failed or len(started) < ranks:
        err.print(f"plait: {_failure_text(job_of_ranks, page.lost_a_peer())}", markup=False)
    if tags.lost:
        err.print(f"plait: --tag: cannot write the ranks' lines: {why(tags.lost)}", markup=False)
    otherwise = 128 + signal.SIGTERM if len(started) < ranks else 1 if tags.lost else 0
    raise typer.Exit(next(iter(failed.values()), otherwise))


def _end(started: list[subprocess.Popen[bytes]], number: int) -> None:
    for process in started:
        if process.poll() is None:
            process.send_signal(number)


class Job:
    """Ranks under way. heard: SIGINT and SIGTERM that this process has got.

    failed: the status of each rank that failed by itself, in the order in which ranks were seen to
    end; first: the rank that failed before all others, None if several were seen at once; done:
    ranks that had ended with 0 before any rank failed; killed: ranks that still ran at the end of
    their time, waited_s; ended_by: SIGTERM, if the launcher got it before a failure.
    """

    def __init__(
        self,
        started: list[subprocess.Popen[bytes]],
        keeper: Keeper,
        heard: list[signal.Signals],
        grace_s: float,
        page: LaunchPage,
    ) -> None:
        self.started, self.failed, self.done = started, dict[int, int](), set[int]()
        self.interrupts: list[float] = []
        self.killed: list[int] = []
        self.waited_s, self.ended_by = 0.0, ""
        self.first: int | None = None
        self._keeper, self._heard, self._grace_s = keeper, heard, grace_s
        self._page = page
        self._known = {keeper.pid, *(process.pid for process in started)}

    def wait(self) -> None:
        """Waits until all ranks have ended. Kills the rest GRACE_S after the first failure, or
        grace_s after Ctrl-C, then also with what ranks have left behind."""
        deadline, since = float("inf"), time.monotonic()
        while True:
            self._pass_signals_on()
            runs = self._look()
            if self.failed and deadline == float("inf"):
                since = time.monotonic()
                deadline = since + GRACE_S
            if self.interrupts and self.interrupts[0] + self._grace_s < deadline:
                since = self.interrupts[0]
                deadline = since + self._grace_s
                runs = runs or bool(leftovers.left(self._known))
            if not runs or time.monotonic() > deadline or len(self.interrupts) > 1:
                break
            time.sleep(0.01)
        self.waited_s = time.monotonic() - since
        self.killed = [rank for rank, one in enumerate(self.started) if one.poll() is None]
        _end(self.started, signal.SIGKILL)
        for process in self.started:
            process.wait()
        if self.interrupts:
            leftovers.kill(self._known)

    def _look(self) -> bool:
        """Notes ranks that have ended; returns whether some rank runs."""
        states = [process.poll() for process in self.started]
        ended = {rank for rank, status in enumerate(states) if status == 0}
        if not self.failed and (any(states) or ended > self.done):
            # A rank polled as running may have ended before a rank polled later.
            states = [process.poll() for process in self.started]
            found = [rank for rank, status in enumerate(states) if status]
            self.first = found[0] if len(found) == 1 else None
            if not found:
                self.done = ended
        for rank, status in enumerate(states):
            if status is not None:
                self._page.note_end(rank, status)
        for rank, status in enumerate(states):
            if status:
                self.failed.setdefault(rank, status if status > 0 else 128 - status)
        return None in states

    def _pass_signals_on(self) -> None:
        """Sends the ranks signals to this process alone. A terminal signals the ranks by itself."""
        while self._heard:
            number = self._heard.pop(0)
            if number == signal.SIGINT:
                self.interrupts.append(time.monotonic())
            elif not self.failed:
                self.ended_by = number.name
            time.sleep(GROUP_S)
            if not self._keeper.got(number):
                _end(self.started, number)

    def crashed(self) -> list[int]:
        """Returns ranks that a signal has ended which is no answer to the loss of a peer. An
        uncaught error ends a C++ program by SIGABRT."""
        statuses = {rank: self.started[rank].returncode for rank in self.failed}
        return [rank for rank, code in statuses.items() if code < 0 and code != -signal.SIGABRT]


def _failure_text(job: Job, lost_a_peer: set[int]) -> str:
    """Returns the last line: why the job ended, and which ranks had to be killed."""
    by_signal = f"ended by {job.ended_by} sent to the launcher" if job.ended_by else ""
    killed = f"; {_killed_text(job)}" if job.killed else ""
    return (by_signal or _blame_text(job, lost_a_peer)) + killed


def _killed_text(job: Job) -> str:
    """Returns text: 'rank 0 still ran 5.0 s later and was killed'."""
    were = "was" if len(job.killed) == 1 else "were"
    return f"{_ranks_text(job.killed)} still ran {job.waited_s:.1f} s later and {were} killed"


def _blame_text(job: Job, lost_a_peer: set[int]) -> str:
    """Returns text: 'rank 1 ended with 7'. Names the rank that ended first by itself, if known. The
    order of ends is no proof, since a rank may end before the rank that it lost. lost_a_peer: ranks
    that have reported a lost rank."""
    failed = job.failed
    first = {rank: status for rank, status in failed.items() if rank not in lost_a_peer}
    if not lost_a_peer and len(job.crashed()) == 1:
        first = {rank: failed[rank] for rank in job.crashed()}
    if first and len(first) < len(failed):
        rest = [rank for rank in failed if rank not in first]
        lost = "it" if len(first) == 1 else "them"
        by_signal = all(job.started[rank].returncode < 0 for rank in first)
        itself = "" if by_signal else " by itself" if len(first) == 1 else " by themselves"
        return f"{_statuses_text(job, first)}{itself}, and {_ranks_text(rest)} lost {lost}"
    if job.done and len(job.done) + len(failed) == len(job.started):
        return f"{_statuses_text(job, failed)} after {_ranks_text(list(job.done))} had ended with 0"
    is_known = job.first is not None and len(failed) > 1
    return _statuses_text(job, failed) + (f"; rank {job.first} failed first" if is_known else "")


def _end_text(code: int, ranks: int) -> str:
    """Returns text: 'ended with 7', 'was killed by SIGKILL' or 'were ended by SIGTERM'."""
    if code >= 0:
        return f"ended with {code}"
    known = -code in {int(number) for number in signal.Signals}
    name = signal.Signals(-code).name if known else f"signal {-code}"
    verb = "killed" if -code == signal.SIGKILL else "ended"
    return f"{'was' if ranks == 1 else 'were'} {verb} by {name}"


def _statuses_text(job: Job, failed: Iterable[int]) -> str:
    """Returns text: 'ranks 0 and 2 ended with 1, rank 3 was killed by SIGKILL'."""
    codes = {rank: job.started[rank].returncode for rank in failed}
    parts: list[str] = []
    for code in dict.fromkeys(codes.values()):
        ranks = [rank for rank, its in codes.items() if its == code]
        parts.append(f"{_ranks_text(ranks)} {_end_text(code, len(ranks))}")
    return ", ".join(parts)


def _ranks_text(ranks: list[int]) -> str:
    """Returns text: 'rank 1', 'ranks 0, 1 and 3' or 'ranks 0 to 3'."""
    *most, last = sorted(ranks)
    if len(most) > 2 and last - most[0] == len(most):
        return f"ranks {most[0]} to {last}"
    return f"ranks {', '.join(map(str, most))} and {last}" if most else f"rank {last}"
