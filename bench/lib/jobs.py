"""Runs other programs: with a deadline, under torchrun, as ranks of plait.launch, side by side."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bench.lib.rows import ROOT

BENCH = (sys.executable, str(ROOT / "bench"))  # runs from every folder, as python -m bench here
# NVLink multicast stays off in comparisons: NCCL, PyTorch's symmetric memory, NVSHMEM.
QUIET = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "PYTHONUNBUFFERED": "1",
}
T = TypeVar("T")


def torchrun(gpus: int, *words: str) -> list[str]:
    """Returns the command of a PyTorch job of this machine: a script with options, or a subcommand
    of bench after "bench"."""
    head = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    return [*head, str(gpus), str(ROOT / words[0]), *words[1:]]


def run_job(
    command: Sequence[str], env: Mapping[str, str], limit_s: float, cwd: str | None = None
) -> tuple[str, str, str]:
    """Returns (standard output, standard error, why the job failed; empty if it succeeded). At the
    deadline all processes of the job end, also those of its launchers."""
    try:
        job = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        return "", "", f"cannot start {command[0]}: {error.strerror}"
    try:
        output, said = job.communicate(timeout=limit_s)
        return output, said, f"status {job.returncode}" if job.returncode else ""
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        output, said = job.communicate()
        return output, said, f"still running after {limit_s:.0f} s"


def output_of(command: Sequence[str], env: Mapping[str, str], limit_s: float) -> str:
    """Returns the standard output of a job; ends the program if the job failed."""
    output, said, why = run_job(command, env, limit_s)
    if why:
        raise SystemExit(f"{' '.join(command)}: {why}\n{said[-2000:]}")
    return output


def side_by_side(lanes: Iterable[Iterable[T]], run: Callable[[T], object]) -> None:
    """Runs lanes side by side, and the items of a lane in turn."""

    def work(items: Iterable[T]) -> None:
        for item in items:
            run(item)

    threads = [threading.Thread(target=work, args=(items,)) for items in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Ranks:
    """Ranks of a program as processes of plait.launch, killed at the deadline. A rank runs
    `rank_main(task, emit)` of bench/programs/NAME.py."""

    def __init__(
        self, program: str, ranks: int, task: dict[str, Any], limit_s: float | None = None
    ) -> None:
        from plait import launch

        entry = f"bench.programs.{program}:rank_main"
        self.job = launch.start(entry, ranks, task, folder=str(ROOT))
        self.processes, self.ranks = self.job.processes, ranks
        self.last = threading.Timer(limit_s or 0.0, self.job.kill)
        if limit_s is not None:
            self.last.start()
        self.statuses: list[int] = []

    def lines(self, grace_s: float = 30.0) -> Iterator[dict[str, Any]]:
        """Yields the ranks' rows as they arrive, then waits for the ranks."""
        yield from self.job.lines()
        self.statuses = self.job.wait(grace_s)
        self.last.cancel()

    def kill(self) -> None:
        self.job.kill()
        self.last.cancel()

    def well(self) -> bool:
        return self.statuses == [0] * self.ranks
