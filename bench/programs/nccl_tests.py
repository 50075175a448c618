"""Runs nccl-tests with and without the drop-in, in turn: a CSV line a size, with the ratio.

The programs are built elsewhere; each run checks its results (-c 1). `ratio` is the median time
without plait over the median time with plait: above 1 is faster. Lanes (0,1/2,3) are GPUs that run
side by side. Each program runs once on every lane, with and without the drop-in in the other order
each time.
"""

from __future__ import annotations

import os
import queue
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import product, repeat
from pathlib import Path
from types import SimpleNamespace

from bench.lib import jobs, rows
from bench.lib.jobs import run_job

PROGRAMS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "alltoall",
    "gather",
    "scatter",
    "sendrecv",
    "hypercube",
)
COLUMNS = (
    *("program", "gpus", "mode", "place", "bytes", "count", "type", "op", "root"),
    *("nccl_us", "plait_us", "nccl_busbw", "plait_busbw", "ratio", "samples"),
    *("nccl_wrong", "plait_wrong"),
)
Key = tuple[str, ...]
Task = tuple[str, str, int]  # program, mode, number of the turn
Timing = tuple[float, float, str]  # us, busbw, wrong
Found = dict[Key, list[Timing]]


def parse(text: str) -> Found:
    """Parses nccl-tests' tables: (place, bytes, count, type, op, root) -> a timing a cycle."""
    found: Found = defaultdict(list)
    for line in text.splitlines():
        words = line.split()
        if len(words) < 13 or not words[0].isdigit():
            continue
        for place, at in (("out", 5), ("in", 9)):
            time_us, _, busbw, wrong = words[at : at + 4]
            if time_us != "N/A":
                found[(place, *words[:5])].append((float(time_us), float(busbw), wrong))
    return found


def worst(timings: list[Timing]) -> str:
    """Returns the first nonzero count of wrong elements, if any."""
    return next((t[2] for t in timings if t[2] not in ("0", "N/A")), timings[0][2])


def command_of(given: SimpleNamespace, program: str, mode: str, gpus: int) -> list[str]:
    """Returns the command of a run. mode: processes (one a GPU), threads (one a GPU), one_thread
    (for all GPUs)."""
    test = str(Path(given.programs) / f"{program}_perf")
    if mode == "processes":
        return [given.mpiexec, "-n", str(gpus), test, "-t", "1", "-g", "1", *given.options.split()]
    threads, each = (gpus, 1) if mode == "threads" else (1, gpus)
    return [test, "-t", str(threads), "-g", str(each), *given.options.split()]


def tables_of(command: list[str], lane: str, drop_in: str, limit_s: float) -> tuple[Found, str]:
    """Returns the tables of a run, and why they are incomplete (empty if they are complete)."""
    env = dict(os.environ, CUDA_VISIBLE_DEVICES=lane)
    if drop_in:
        env["LD_PRELOAD"] = drop_in
        env.setdefault("PLAIT_DEBUG", "WARN")
    output, errors, why = run_job(command, env, limit_s)
    said = "\n".join(line for line in errors.splitlines() if "PLAIT" in line)
    if said:
        print(said, file=sys.stderr)
    return parse(output), f"{why}: {errors[-400:]}" if why else ""


class TimingTable:
    """The timings of all runs, by program, mode and variant."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.found: dict[tuple[str, str, str], Found] = {}
        self.failures = 0

    def add(
        self, program: str, mode: str, variant: str, found: Found, why: str, took_s: float
    ) -> None:
        """Adds a run."""
        with self.guard:
            timings_of = self.found.setdefault((program, mode, variant), defaultdict(list))
            for key, timings in found.items():
                timings_of[key] += timings
            self.failures += bool(why) and variant == "plait"
            print(f"# {program} {mode} {variant}: {took_s:.1f} s {why}", flush=True)

    def rows(self, program: str, mode: str, gpus: int) -> list[dict[str, object]]:
        """Returns a row for each size that both variants have."""
        plain = self.found.get((program, mode, "nccl"), {})
        ours = self.found.get((program, mode, "plait"), {})
        made = []
        for key in plain:
            if key not in ours:
                continue
            nccl_us, nccl_busbw = (statistics.median(t[i] for t in plain[key]) for i in (0, 1))
            us, busbw = (statistics.median(t[i] for t in ours[key]) for i in (0, 1))
            wrong = (worst(plain[key]), worst(ours[key]))
            values = (nccl_us, us, nccl_busbw, busbw, round(nccl_us / us if us else 0.0, 3))
            words = (program, gpus, mode, *key, *values, len(ours[key]), *wrong)
            made.append(dict(zip(COLUMNS, words, strict=True)))
        return made


def tasks_of(given: SimpleNamespace, tasks: queue.Queue[Task]) -> Iterator[Task]:
    """Takes runs from the queue until none is left or the time is up."""
    while time.monotonic() < given.ends:
        try:
            yield tasks.get_nowait()
        except queue.Empty:
            return


def run(given: SimpleNamespace) -> int:
    """Runs all programs. Returns 1 if plait gave a wrong element or a run failed."""
    given.ends = time.monotonic() + given.seconds
    names, modes = given.only.split(",") if given.only else PROGRAMS, given.modes.split(",")
    tasks: queue.Queue[Task] = queue.Queue()
    for number, mode, name in product(range(given.repeat), modes, names):
        tasks.put((name, mode, number))
    table, lanes = TimingTable(), given.lanes.split("/")
    gpus = len(lanes[0].split(","))

    def measure(lane: str, task: Task) -> None:
        program, mode, number = task
        for variant in ("nccl", "plait")[:: -1 if number % 2 else 1]:
            begin = time.monotonic()
            command = command_of(given, program, mode, gpus)
            drop_in = given.drop_in if variant == "plait" else ""
            found, why = tables_of(command, lane, drop_in, given.limit)
            table.add(program, mode, variant, found, why, time.monotonic() - begin)

    jobs.side_by_side(
        [zip(repeat(lane), tasks_of(given, tasks), strict=False) for lane in lanes],
        lambda one: measure(*one),
    )
    found = [row for name in names for mode in modes for row in table.rows(name, mode, gpus)]
    bad = table.failures + sum(row["plait_wrong"] not in ("0", "N/A") for row in found)
    for row in found:
        print(
            f"{row['program']:>15} {row['mode']:>10} {row['place']:>3} {row['bytes']:>11} "
            f"{row['nccl_us']:>9.2f} {row['plait_us']:>9.2f} us {row['nccl_busbw']:>7.2f} "
            f"{row['plait_busbw']:>7.2f} GB/s {row['ratio']:>6.3f} of {row['samples']} "
            f"wrong {row['plait_wrong']}"
        )
    rows.keep(given.csv, found, COLUMNS)
    return 1 if bad else 0
