"""Starts the ranks of a job on this machine and collects the output.

A rank runs `python -m plait.launch MODULE:FUNCTION`, reads a task as JSON, joins the peers over
socket pairs made here (no path, no port), and writes JSON lines to a pipe. No rank outlives this
process, however the process ends (keeper.py).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from plait.keeper import started

Emit = Callable[[dict[str, Any]], None]


@contextlib.contextmanager
def without_interrupts(*more: signal.Signals) -> Iterator[None]:
    """Blocks Ctrl-C in processes started meanwhile. This process gets it and ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *more})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Keeper:
    """A process that kills the added ranks once this process has ended or called close()."""

    def __init__(self) -> None:
        with without_interrupts(signal.SIGTERM):
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )

    def add(self, rank: subprocess.Popen[bytes]) -> None:
        """Adds a rank, just started and not yet waited for."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the keeper was killed
            self._process.stdin.write(f"{rank.pid} {started(rank.pid)}\n".encode())
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def got(self, number: signal.Signals) -> bool:
        """Returns whether the keeper has got SIGINT or SIGTERM, as a whole group of processes does
        from its terminal."""
        with suppress(OSError), open(f"/proc/{self.pid}/status") as file:
            words = dict(line.split(":", 1) for line in file if ":" in line)
            pending = int(words["ShdPnd"], 16) | int(words["SigPnd"], 16)
            return bool(pending >> (number - 1) & 1)
        return False

    def close(self) -> None:
        """Kills the ranks that still run."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


class RankJob:
    """Running ranks of a job: iterate over `lines()`, then call `wait()`, or `kill()`."""

    def __init__(self, entry: str, ranks: int, task: dict[str, Any], env: dict[str, str]) -> None:
        pairs = [socket.socketpair() for _ in range(ranks - 1)]
        hub = ",".join(str(ours.fileno()) for ours, _ in pairs)
        self._read_fd, write_fd = os.pipe()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._keeper = Keeper()
        for rank in range(ranks):
            mine = [ours for ours, _ in pairs] if rank == 0 else [pairs[rank - 1][1]]
            fds = [end.fileno() for end in mine]
            rendezvous = f"fd:{hub}" if rank == 0 else f"fd:{fds[0]}"
            rank_env = {
                **os.environ,
                "PLAIT_DEVICE": "-1",  # benchmark ranks choose a GPU explicitly
                **env,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "PLAIT_RENDEZVOUS": rendezvous if ranks > 1 else "",
            }
            # The task goes by standard input: the text may exceed the length of an argument.
            with without_interrupts():
                process = subprocess.Popen(
                    [sys.executable, "-m", "plait.launch", entry, str(write_fd)],
                    env=rank_env,
                    stdin=subprocess.PIPE,
                    stdout=2,  # standard output is for the command's data
                    pass_fds=[*fds, write_fd],
                )
            self._keeper.add(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(task).encode())
            process.stdin.close()
            self.processes.append(process)
        os.close(write_fd)
        for ours, theirs in pairs:
            ours.close()
            theirs.close()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yields the ranks' JSON lines as they arrive, until all ranks have closed the pipe."""
        with os.fdopen(self._read_fd) as stream:
            for line in stream:
                yield json.loads(line)

    def wait(self, timeout_s: float = 30.0) -> list[int]:
        """Returns the ranks' exit statuses; kills ranks that still run after the time (status
        -9)."""
        statuses = []
        for process in self.processes:
            try:
                statuses.append(process.wait(timeout_s))
            except subprocess.TimeoutExpired:
                process.kill()
                statuses.append(process.wait())
        self._keeper.close()
        return statuses

    def kill(self) -> None:
        """Kills all ranks at once."""
        for process in self.processes:
            process.kill()
        self.wait()


def start(
    entry: str,
    ranks: int,
    task: dict[str, Any],
    env: dict[str, str] | None = None,
    folder: str = "",
) -> RankJob:
    """Starts `ranks` processes that each call entry ("module:function") with (task, emit).

    env: added to this process's environment; folder: of the module, if it is not installed.
    """
    path = os.pathsep.join(part for part in (folder, os.environ.get("PYTHONPATH", "")) if part)
    return RankJob(entry, ranks, task, {"PYTHONPATH": path, **(env or {})})


def _rank_main(entry: str, write_fd: int) -> int:
    said = sys.stdin.read()
    if not said:  # the command was interrupted before it gave the task
        return 1
    task = json.loads(said)
    module, function = entry.split(":")

    def emit(row: dict[str, Any]) -> None:
        # A single write per line, below PIPE_BUF, so that ranks' lines do not mix.
        try:
            os.write(write_fd, (json.dumps(row) + "\n").encode())
        except BrokenPipeError:  # the command was interrupted, and reads no more rows
            sys.exit(1)

    import plait

    try:
        try:
            getattr(importlib.import_module(module), function)(task, emit)
        except MemoryError as error:  # numpy's
            raise plait.MemoryExhaustedError(str(error)) from None
    except plait.Error as error:
        emit(
            {
                "error": str(error),
                "code": error.name,
                "exit_code": error.exit_code,
                "rank": int(os.environ["RANK"]),
            }
        )
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(_rank_main(sys.argv[1], int(sys.argv[2])))
