"""Kills ranks in the middle of collectives, and times when survivors know and have ended.

Each round starts a job, lets it run, and sends SIGKILL to a random rank at a random moment. Every
survivor must raise an error that names the rank within the limit, and exit 0; the GPUs must have as
much free memory in the next round. Rows also have the times when the killed process was gone (by
its pidfd), when a survivor's stream had failed, and when its communicator was closed. Prints a JSON
line. Exit status 1: a survivor got no error, a late or a wrong one, kept memory or did not exit.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

import plait
from bench.lib import rows
from bench.lib.jobs import Ranks
from plait import gpu
from plait.launch import Emit

KINDS = (  # fp32 elements, strategy, calls in a graph (0 = eager), calls between waits
    (250, "", 0, 1),
    (250, "", 20, 3),
    (1 << 18, "", 0, 8),
    (1 << 22, "", 0, 1),
    (1 << 24, "", 20, 1),
    (1 << 26, "", 0, 4),
    (1 << 20, "direct", 0, 2),
)
# The driver keeps 16 MiB of a process's first communicator, however it ended, and nothing of later
# ones (counted by soak); an arena alone, which must come back, is over 100 MiB.
MOST_KEPT_BYTES = 32 << 20
COLUMNS = (
    *("round", "ranks", "victim", "elements", "strategy", "graph"),
    *("told_ms", "gone_ms", "freed_ms", "kept_bytes", "fault"),
)


class GpuWorkload:
    """A rank's buffers and stream on its GPU."""

    def __init__(self, task: dict[str, Any], rank: int) -> None:
        self.gpu, self.task = gpu.Gpu(rank), task
        self.stream = self.gpu.make_stream()
        self.free_bytes = self.gpu.memory()[0]
        self.buffers = [self.gpu.allocate(task["count"] * 4) for _ in range(2)]
        self.comm = plait.init(device=rank)
        self.request = plait.Request("all_reduce", task["count"], "fp32", "sum", self.comm.ranks)
        self.graph: int | None = None

    def call(self) -> None:
        self.comm._core.enqueue(self.request, *self.buffers, self.stream, self.task["strategy"])

    def capture(self, calls: int) -> None:
        """Captures a graph of `calls` calls, which run() launches from then on."""
        self.gpu.begin_capture(self.stream)
        for _ in range(calls):
            self.call()
        self.graph = self.gpu.end_capture(self.stream)

    def run(self) -> None:
        if self.graph is None:
            self.call()
        else:
            self.gpu.launch(self.graph, self.stream)

    def wait(self) -> None:
        """Waits for the calls. check() raises before the driver has failed the stream."""
        try:
            while not self.gpu.is_done(self.stream):
                self.comm.check()
        finally:
            self.comm.check()

    def give_back(self) -> None:
        """Frees everything. A failed stream ends all the process's work on its GPU; then the driver
        frees the rest when the process ends."""
        with contextlib.suppress(plait.Error):
            self.gpu.synchronize(self.stream)
        del self.comm


class HostWorkload:
    """The same on host memory."""

    def __init__(self, task: dict[str, Any], rank: int) -> None:
        del rank
        self.comm = plait.init(device=-1)
        self.arrays = [np.ones(task["count"], np.float32) for _ in range(2)]
        self.free_bytes = 0

    def call(self) -> None:
        self.comm.all_reduce(self.arrays[0], out=self.arrays[1])

    run = call

    def capture(self, calls: int) -> None:
        """Does nothing: host memory has no graphs."""

    def wait(self) -> None:
        """Does nothing: calls on host memory return when they are done."""

    def give_back(self) -> None:
        del self.comm


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """Runs collectives until an error comes, then frees everything."""
    rank = int(os.environ["RANK"])
    mine: Any = HostWorkload(task, rank) if task["host"] else GpuWorkload(task, rank)
    try:
        for _ in range(3):
            mine.call()
        mine.wait()
        if task["graph"]:
            mine.capture(task["graph"])
        emit({"rank": rank, "kind": "running", "free": mine.free_bytes})
        while True:
            for _ in range(task["between"]):
                mine.run()
            mine.wait()
    except plait.Error as error:
        reported = time.monotonic()
        said = {"class": type(error).__name__, "error": str(error)}
    mine.give_back()
    freed = time.monotonic()
    emit({"rank": rank, "kind": "reported", "reported": reported, "freed": freed, **said})


class KillRound:
    """A job and its killed rank."""

    def __init__(self, given: SimpleNamespace, number: int, chance: random.Random) -> None:
        self.given, self.number = given, number
        self.count, self.strategy, self.graph, self.between = KINDS[number % len(KINDS)]
        if given.host:
            self.count, self.strategy, self.graph = min(self.count, 1 << 18), "", 0
        self.victim = chance.randrange(given.ranks)
        self.delay_s = chance.uniform(0.0, 0.25)
        self.killed = self.gone = 0.0
        self.reported: dict[int, dict[str, Any]] = {}
        self.free: dict[int, int] = {}  # free bytes of each rank's GPU at the start
        self.statuses: list[int] = []

    def run(self) -> None:
        """Starts the job, kills the victim, and collects the survivors' reports."""
        task = {
            "count": self.count,
            "strategy": self.strategy,
            "graph": self.graph,
            "between": self.between,
            "host": self.given.host,
        }
        job = Ranks("kills", self.given.ranks, task, self.given.deadline)
        self.waiting = threading.Thread(target=self.await_gone, args=(job,), daemon=True)
        running = 0
        for row in job.lines(10.0):
            if row.get("kind") == "running":
                running += 1
                self.free[row["rank"]] = row["free"]
            if row.get("kind") == "running" and running == self.given.ranks:
                time.sleep(self.delay_s)
                self.killed = time.monotonic()
                os.kill(job.processes[self.victim].pid, signal.SIGKILL)
                self.waiting.start()
            if row.get("kind") != "running":
                self.reported[row["rank"]] = row
        self.statuses = job.statuses
        if self.killed:
            self.waiting.join()

    def await_gone(self, job: Ranks) -> None:
        """Stores the time when the victim's process is gone."""
        job.processes[self.victim].wait()
        self.gone = time.monotonic()

    def fault(self) -> str:
        """Returns the broken promise; empty if all are kept."""
        for rank in range(self.given.ranks):
            if rank == self.victim:
                continue
            row = self.reported.get(rank)
            if row is None or "reported" not in row:
                return f"rank {rank} reported no error: {row}"
            if f"rank {self.victim}" not in row["error"]:
                return f"rank {rank} reported: {row['error']}"
            if row["reported"] - self.killed > self.given.limit:
                return f"rank {rank} reported after {row['reported'] - self.killed:.2f} s"
            if self.statuses[rank] != 0:
                return f"rank {rank} ended with status {self.statuses[rank]}"
        return ""

    def worst_ms(self, name: str) -> float:
        """Returns the last survivor's time since the kill."""
        times = [row[name] - self.killed for row in self.reported.values() if name in row]
        return round(max(times, default=0.0) * 1e3, 2)

    def row(self, first: KillRound) -> dict[str, Any]:
        """Returns the row of the table. Memory that earlier rounds left allocated: the GPUs' free
        memory compared with the start of the first round."""
        lacks = [first.free[rank] - self.free.get(rank, 0) for rank in first.free]
        leftover = max([0, *lacks])
        gone_ms = round((self.gone - self.killed) * 1e3, 2)
        values = (
            *(self.number, self.given.ranks, self.victim, self.count, self.strategy, self.graph),
            *(self.worst_ms("reported"), gone_ms, self.worst_ms("freed"), leftover),
        )
        fault = self.fault()
        if not fault and leftover > MOST_KEPT_BYTES:
            fault = f"{leftover} bytes of a GPU are still held after earlier rounds"
        return dict(zip(COLUMNS, (*values, fault), strict=True))


def run(given: SimpleNamespace) -> int:
    """Runs all rounds, and returns the exit status of the opening comment."""
    chance, found = random.Random(given.seed), []
    first: KillRound | None = None
    file = rows.CsvFile(given.csv, COLUMNS)
    for number in range(given.rounds):
        one = KillRound(given, number, chance)
        one.run()
        first = first or one
        found.append(one.row(first))
        file.write({name: str(value) for name, value in found[-1].items()})
        print(*found[-1].values(), sep=",", file=sys.stderr, flush=True)
    faults = [f"round {row['round']}: {row['fault']}" for row in found if row["fault"]]
    summary: dict[str, Any] = {"rounds": len(found), "ranks": given.ranks}
    for name in ("told_ms", "gone_ms", "freed_ms"):
        times = sorted(row[name] for row in found)
        summary[name] = {"median": times[len(times) // 2], "most": times[-1]}
    print(json.dumps({**summary, "faults": faults}), flush=True)
    return 1 if faults else 0
