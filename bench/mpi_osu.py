"""Runs OSU's micro-benchmarks with and without the drop-in under MPI, in turn: a row per size.

    python3 bench/mpi_osu.py --programs FOLDER --device -n 2 --csv out.csv
    python3 bench/mpi_osu.py --programs FOLDER -n 2 --most 1M --only allreduce bcast

FOLDER holds the programs (osu_bw, osu_allreduce, ...), at any depth. They are built elsewhere, for
an MPI whose mpirun is on PATH or named by --mpirun. Runs validate their results (-c, of floats,
since the validation of OSU's usual MPI_CHAR fails reductions over any MPI). --device uses buffers
of CUDA, which a plain Open MPI cannot move, so these rows have no bare time. --goals checks the
goals of two or four H200. Status 1: a run failed, was not valid, or missed a goal.

Bandwidths are OSU's, in GB/s (10^9 bytes); `ratio` is plait's speed over the bare MPI's.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs import run_job
from result_rows import keep, show

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


def command(args: argparse.Namespace, program: Path, run: OsuRun) -> list[str]:
    """Returns the command of one run."""
    words = [args.mpirun, "-n", str(args.ranks), *shlex.split(args.mpirun_options)]
    words += [str(program), *["-c"] * run.checks, "-T", "mpi_float", "-i", str(run.rounds)]
    words += ["-x", str(min(3, run.rounds)), "-m", f"{min(args.least, run.most)}:{run.most}"]
    if args.device:
        words += ["-d", "cuda"]
        if program.name.removeprefix("osu_") in MESSAGES:
            words += ["D", "D"]  # without these, buffers of both ranks are in host memory
    return [*shlex.split(args.run), "--via", "mpi", "--", *words] if run.with_plait else words


def programs_in(folder: Path, only: Sequence[str]) -> dict[str, Path]:
    """Returns the programs by name; a missing program is an error."""
    found = {}
    for name in only:
        paths = sorted(one for one in folder.rglob(f"osu_{name}") if os.access(one, os.X_OK))
        if not paths:
            raise SystemExit(f"wanted osu_{name} below {folder}, found none")
        found[name] = paths[0]
    return found


def measure(args: argparse.Namespace, name: str, program: Path) -> tuple[list[dict], list[str]]:
    """Returns the rows of all sizes, and the failures."""
    env = {**os.environ, "PLAIT_OPS": EVERY}
    if not args.device:
        env["PLAIT_MPI_HOST"] = "1"
    figures: dict[tuple[int, bool], list[float]] = defaultdict(list)
    wrong = []
    variants = (True,) if args.device else (False, True)
    is_bandwidth = name in BANDWIDTHS
    timed = [
        OsuRun(with_plait, args.rounds, args.most, not is_bandwidth) for with_plait in variants
    ]
    runs = [run for turn in range(args.turns) for run in (timed if turn % 2 == 0 else timed[::-1])]
    if is_bandwidth:
        runs += [OsuRun(with_plait, 2, min(args.most, MOST_CHECKED)) for with_plait in variants]
    for run in runs:
        words = command(args, program, run)
        text, said, why = run_job(words, env, args.limit_s)
        table = parse(text)
        if why or not table:
            wrong.append(f"{shlex.join(words)}: {why or 'no table'}: {said.strip()[-300:]}")
        for size, (figure, is_valid) in table.items():
            if run.rounds == args.rounds:
                figures[size, run.with_plait].append(figure)
            if run.checks and not is_valid:
                wrong.append(f"osu_{name} of {size} bytes: its validation did not pass")
    rows = []
    for size in sorted({size for size, _ in figures}):
        scale = 1e-3 if is_bandwidth else 1.0  # MB/s
        bare, ours = (
            scale * statistics.median(figures[size, with_plait])
            if figures[size, with_plait]
            else 0.0
            for with_plait in (False, True)
        )
        ratio = (ours / bare if is_bandwidth else bare / ours) if bare and ours else ""
        row = {"program": f"osu_{name}", "ranks": args.ranks, "bytes": size}
        row |= {"memory": "device" if args.device else "host", "samples": args.turns}
        row |= {"unit": "GB/s" if is_bandwidth else "us", "ratio": ratio and f"{ratio:.2f}"}
        rows.append(row | {"bare": f"{bare:.2f}" if bare else "", "plait": f"{ours:.2f}"})
    return rows, wrong


def missed(rows: list[dict], ranks: int) -> list[str]:
    """Returns the goals that the largest size of a program missed."""
    found = []
    for (name, of_ranks), goal in GOALS.items():
        mine = [row for row in rows if row["program"] == f"osu_{name}" and of_ranks == ranks]
        if mine and float(mine[-1]["plait"]) < goal:
            found.append(f"osu_{name}: wanted {goal:.0f} GB/s, found {mine[-1]['plait']}")
    return found


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--programs", type=Path, required=True)
    options.add_argument("--only", nargs="+", choices=(*MESSAGES, *COLLECTIVES))
    options.add_argument("-n", "--ranks", type=int, default=2)
    options.add_argument("--device", action="store_true")
    options.add_argument("--goals", action="store_true")
    options.add_argument("--least", type=parse_bytes, default=parse_bytes("8"))
    options.add_argument("--most", type=parse_bytes, default=parse_bytes("4M"))
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--limit-s", type=float, default=120)
    options.add_argument("--mpirun", default="mpirun")
    options.add_argument("--mpirun-options", default="--oversubscribe --bind-to none")
    options.add_argument("--run", default=f"{sys.executable} -m plait run")
    options.add_argument("--csv", default="")
    args = options.parse_args()
    wanted = args.only or [*MESSAGES[: 4 if args.ranks % 2 == 0 else 0], *COLLECTIVES]
    rows: list[dict] = []
    wrong: list[str] = []
    for name, program in programs_in(args.programs, wanted).items():
        made, faults = measure(args, name, program)
        show(made)
        rows += made
        wrong += faults
    if args.csv and rows:
        keep(args.csv, rows, COLUMNS)
    if args.goals:
        wrong += missed(rows, args.ranks)
    for fault in dict.fromkeys(wrong):
        print(f"mpi_osu: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
