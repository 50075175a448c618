"""Runs nccl-tests with and without the drop-in, in turn: a CSV line a size, with the ratio.

    python bench/nccl_tests.py --programs FOLDER --drop-in libplait_nccl.so --csv out.csv

The programs are built elsewhere; each run checks its results (-c 1). `ratio` is the median time
without plait over the median time with plait: above 1 is faster. Lanes (0,1/2,3) are GPUs that run
side by side. Each program runs once on every lane, with and without the drop-in in the other order
each time.
"""

from __future__ import annotations

import argparse
import os
import queue
import statistics
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import result_rows
from jobs import run_job

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


def command_of(args: argparse.Namespace, program: str, mode: str, gpus: int) -> list[str]:
    """Returns the command of a run. mode: processes (one a GPU), threads (one a GPU), one_thread
    (for all GPUs)."""
    test = str(Path(args.programs) / f"{program}_perf")
    if mode == "processes":
        return [args.mpiexec, "-n", str(gpus), test, "-t", "1", "-g", "1", *args.options.split()]
    threads, each = (gpus, 1) if mode == "threads" else (1, gpus)
    return [test, "-t", str(threads), "-g", str(each), *args.options.split()]


def run(command: list[str], lane: str, drop_in: str, limit_s: float) -> tuple[Found, str]:
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


def work(
    args: argparse.Namespace,
    lane: str,
    tasks: queue.Queue[tuple[str, str, int]],
    table: TimingTable,
) -> None:
    """Takes runs from the queue until none is left or the time is up."""
    while time.monotonic() < args.ends:
        try:
            program, mode, number = tasks.get_nowait()
        except queue.Empty:
            return
        command = command_of(args, program, mode, len(lane.split(",")))
        variants = {"nccl": "", "plait": args.drop_in}
        for variant in sorted(variants, reverse=number % 2 == 1):
            begin = time.monotonic()
            found, why = run(command, lane, variants[variant], args.limit)
            table.add(program, mode, variant, found, why, time.monotonic() - begin)


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", required=True, help="folder with all_reduce_perf, ...")
    parser.add_argument("--drop-in", required=True)
    parser.add_argument("--lanes", default="0,1", help="GPUs of each lane, such as 0,1/2,3")
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--modes", default="threads", help="processes, threads, one_thread")
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each program")
    parser.add_argument("--options", default="-b 1K -e 256M -f 4 -c 1 -n 20 -w 5 -N 3")
    parser.add_argument("--limit", type=float, default=60, help="seconds a run")
    parser.add_argument("--seconds", type=float, default=1e9, help="no run starts after this time")
    parser.add_argument("--csv", default="")
    args = parser.parse_args()
    args.ends = time.monotonic() + args.seconds
    return args


def main() -> int:
    """Runs all programs. Returns 1 if plait gave a wrong element or a run failed."""
    args = arguments()
    names, modes = args.only.split(","), args.modes.split(",")
    tasks: queue.Queue[tuple[str, str, int]] = queue.Queue()
    for number in range(args.repeat):
        for mode in modes:
            for program in names:
                tasks.put((program, mode, number))
    table, lanes = TimingTable(), args.lanes.split("/")
    workers = [threading.Thread(target=work, args=(args, lane, tasks, table)) for lane in lanes]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    gpus = len(lanes[0].split(","))
    rows = [row for name in names for mode in modes for row in table.rows(name, mode, gpus)]
    bad = table.failures + sum(row["plait_wrong"] not in ("0", "N/A") for row in rows)
    for row in rows:
        print(
            f"{row['program']:>15} {row['mode']:>10} {row['place']:>3} {row['bytes']:>11} "
            f"{row['nccl_us']:>9.2f} {row['plait_us']:>9.2f} us {row['nccl_busbw']:>7.2f} "
            f"{row['plait_busbw']:>7.2f} GB/s {row['ratio']:>6.3f} of {row['samples']} "
            f"wrong {row['plait_wrong']}"
        )
    if args.csv:
        result_rows.keep(args.csv, rows, COLUMNS)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
