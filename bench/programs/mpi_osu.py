"""Runs OSU's micro-benchmarks with and without the drop-in under MPI, in turn: a row per size.

FOLDER holds the programs (osu_bw, osu_allreduce, ...), at any depth. They are built elsewhere, for
an MPI whose mpirun is on PATH or named by --mpirun. Runs validate their results (-c, of floats,
since the validation of OSU's usual MPI_CHAR fails reductions over any MPI). --device uses buffers
of CUDA, which a plain Open MPI cannot move, so these rows have no bare time. --goals checks the
goals of two or four H200. Status 1: a run failed, was not valid, or missed a goal.

Bandwidths are OSU's, in GB/s (10^9 bytes); `ratio` is plait's speed over the bare MPI's.
"""

from __future__ import annotations

import os
import shlex
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.lib import options, rows, variants
from bench.lib.jobs import run_job
from plait.bench.sizes import parse_bytes

MESSAGES = ("latency", "bw", "bibw", "mbw_mr")
COLLECTIVES = ("allreduce", "iallreduce", "bcast", "allgather", "alltoall", "alltoallv")
BANDWIDTHS = ("bw", "bibw", "mbw_mr")  # other programs print us
EVERY = "all_reduce,reduce,reduce_scatter,broadcast,all_gather,all_to_all,gather,scatter,send_recv"
# With 64 messages under way, OSU writes and checks 64 buffers on the CPU in every round. These
# programs are timed without validation, and validated in two rounds of at most this many bytes a
# message.
MOST_CHECKED = 16 << 20
# Goals of two H200 at the largest size: GB/s as OSU prints them.
GOALS = {("bw", 2): 435.0, ("bibw", 2): 425.0}
COLUMNS = ("program", "ranks", "memory", "bytes", "unit", "bare", "plait", "ratio", "samples")


def parse(text: str) -> dict[int, tuple[float, bool]]:
    """Parses OSU's table: bytes -> (the first figure, true if the validation passed)."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].isdigit():
            found[int(words[0])] = (float(words[1]), words[-1] == "Pass")
    return found


@dataclass(frozen=True)
class OsuRun:
    """Settings of one run of a program."""

    with_plait: bool
    rounds: int
    most: int  # bytes
    checks: bool = True


def command(given: SimpleNamespace, program: Path, run: OsuRun) -> list[str]:
    """Returns the command of one run."""
    words = [given.mpirun, "-n", str(given.ranks), *shlex.split(given.mpirun_options)]
    words += [str(program), *["-c"] * run.checks, "-T", "mpi_float", "-i", str(run.rounds)]
    words += ["-x", str(min(3, run.rounds)), "-m", f"{min(given.least, run.most)}:{run.most}"]
    if given.device:
        words += ["-d", "cuda"]
        if program.name.removeprefix("osu_") in MESSAGES:
            words += ["D", "D"]  # without these, buffers of both ranks are in host memory
    return [*shlex.split(given.run), "--via", "mpi", "--", *words] if run.with_plait else words


def programs_in(folder: Path, only: Sequence[str]) -> dict[str, Path]:
    """Returns the programs by name; a missing program is an error."""
    found = {}
    for name in only:
        paths = sorted(one for one in folder.rglob(f"osu_{name}") if os.access(one, os.X_OK))
        if not paths:
            raise SystemExit(f"wanted osu_{name} below {folder}, found none")
        found[name] = paths[0]
    return found


def measure(
    given: SimpleNamespace, name: str, program: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the rows of all sizes, and the failures."""
    env = {**os.environ, "PLAIT_OPS": EVERY}
    if not given.device:
        env["PLAIT_MPI_HOST"] = "1"
    figures: dict[tuple[int, bool], list[float]] = defaultdict(list)
    wrong = []
    both = (True,) if given.device else (False, True)
    is_bandwidth = name in BANDWIDTHS
    timed = [OsuRun(with_plait, given.rounds, given.most, not is_bandwidth) for with_plait in both]
    runs = [run for _, run in variants.in_turn(timed, given.turns)]
    if is_bandwidth:
        runs += [OsuRun(with_plait, 2, min(given.most, MOST_CHECKED)) for with_plait in both]
    for run in runs:
        words = command(given, program, run)
        text, said, why = run_job(words, env, given.limit_s)
        table = parse(text)
        if why or not table:
            wrong.append(f"{shlex.join(words)}: {why or 'no table'}: {said.strip()[-300:]}")
        for size, (figure, is_valid) in table.items():
            if run.rounds == given.rounds:
                figures[size, run.with_plait].append(figure)
            if run.checks and not is_valid:
                wrong.append(f"osu_{name} of {size} bytes: its validation did not pass")
    found = []
    for size in sorted({size for size, _ in figures}):
        scale = 1e-3 if is_bandwidth else 1.0  # MB/s
        bare, ours = (
            scale * statistics.median(figures[size, with_plait])
            if figures[size, with_plait]
            else 0.0
            for with_plait in (False, True)
        )
        ratio = (ours / bare if is_bandwidth else bare / ours) if bare and ours else ""
        row = {"program": f"osu_{name}", "ranks": given.ranks, "bytes": size}
        row |= {"memory": "device" if given.device else "host", "samples": given.turns}
        row |= {"unit": "GB/s" if is_bandwidth else "us", "ratio": ratio and f"{ratio:.2f}"}
        found.append(row | {"bare": f"{bare:.2f}" if bare else "", "plait": f"{ours:.2f}"})
    return found, wrong


def missed(measured: list[dict[str, Any]], ranks: int) -> list[str]:
    """Returns the goals that the largest size of a program missed."""
    found = []
    for (name, of_ranks), goal in GOALS.items():
        mine = [row for row in measured if row["program"] == f"osu_{name}" and of_ranks == ranks]
        if mine and float(mine[-1]["plait"]) < goal:
            found.append(f"osu_{name}: wanted {goal:.0f} GB/s, found {mine[-1]['plait']}")
    return found


def run(given: SimpleNamespace) -> int:
    given.least, given.most = parse_bytes(given.least), parse_bytes(given.most)
    wanted = (
        given.only.split(",")
        if given.only
        else [*MESSAGES[: 4 if given.ranks % 2 == 0 else 0], *COLLECTIVES]
    )
    options.check("--only", wanted, (*MESSAGES, *COLLECTIVES))
    measured: list[dict[str, Any]] = []
    wrong: list[str] = []
    for name, program in programs_in(given.programs, wanted).items():
        made, faults = measure(given, name, program)
        rows.show(made)
        measured += made
        wrong += faults
    rows.keep(given.csv, measured, COLUMNS)
    if given.goals:
        wrong += missed(measured, given.ranks)
    for fault in dict.fromkeys(wrong):
        print(f"mpi_osu: {fault}", file=sys.stderr)
    return 1 if wrong else 0
