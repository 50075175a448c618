"""Runs all measurements of schedules on the GPUs of a machine, within a time budget; with --large
those of large messages: engines, shares through host memory, and a rotation by copy engines.

Steps run in order of importance, each with a share of the time; time left over goes to later steps.
A step that hangs is killed with all its processes, and the run goes on. Rows reach OUT when they
are measured, so an interrupted run loses nothing. The tables come at the end, and `python -m bench
tables OUT` prints those of an interrupted run. A run of large messages leaves a tuning file of the
machine in OUT too. NVLink multicast stays off.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from bench.lib import rows
from bench.lib.jobs import BENCH, QUIET, run_job, torchrun
from bench.programs import predictions, tables
from bench.programs.items import LARGER_BYTES, MEMORY_BYTES
from plait import gpu

BUDGET_S = 520.0  # nine minutes, less the start of Python and the tables
TABLES_S = 20.0
TREE = {"NCCL_ALGO": "allreduce:tree", "NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}
RING = {"NCCL_ALGO": "allreduce:ring", "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1"}
SLOTS = {"PLAIT_DEVICE_MEMORY": str(MEMORY_BYTES)}
LARGER = {"PLAIT_DEVICE_MEMORY": str(LARGER_BYTES)}
ROTATION_MIB, ROTATION_PIECES = "1024", "16,24,32"  # of a rank's buffer, of a piece
START_S = 22.0  # a job's start and end: contexts, communicators
LATE_S = 8.0  # grace of a job that should have ended, then it is killed


@dataclass(frozen=True)
class RunStep:
    """A program of the run. {budget} in the command: its time budget in seconds."""

    name: str
    share: float  # share of the run's time
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def ranks_step(name: str, share: float, given: SimpleNamespace, env: Mapping[str, str]) -> RunStep:
    command = [*BENCH, "section", name]
    command += ["--ranks", str(1 if given.one_gpu else given.gpus), "--budget-s", "{budget}"]
    command += ["--csv", str(given.out / f"gpu_run_{name}_{given.machine}.csv")]
    command += ["--most-mib", str(given.most_mib), "--commit", given.commit]
    return RunStep(name, share, tuple(command), env)


def symmetric_step(given: SimpleNamespace) -> RunStep:
    csv = given.out / f"gpu_symmetric_{given.machine}.csv"
    words = ("bench", "symmetric", "--csv", str(csv), "--budget-s", "{budget}")
    return RunStep("symmetric", 0.11, tuple(torchrun(given.gpus, *words)))


def links_step(given: SimpleNamespace) -> RunStep:
    csv = given.out / f"gpu_links_{given.machine}.csv"
    command = [str(given.build / "bench_links"), "--gpus", str(given.gpus)]
    mib = [str(one) for one in (1024, 4096, 256) if one <= given.most_mib] or [str(given.most_mib)]
    command += ["--mib", ",".join(mib), "--budget-s", "{budget}", "--csv", str(csv)]
    return RunStep("links", 0.13, tuple(command))


def rotation_step(given: SimpleNamespace) -> RunStep:
    csv = given.out / f"gpu_rotation_{given.machine}.csv"
    command = [str(given.build / "bench_links"), "--gpus", str(given.gpus)]
    command += ["--mib", ROTATION_MIB, "--rotation", ROTATION_PIECES]
    return RunStep("rotation", 0.06, (*command, "--budget-s", "{budget}", "--csv", str(csv)))


def large_steps(given: SimpleNamespace) -> list[RunStep]:
    """Returns the steps of a run of large messages, in order of importance."""
    alone = [] if given.one_gpu else [rotation_step(given)]
    return [
        ranks_step("large", 0.42, given, {}),
        ranks_step("shares", 0.20, given, {}),
        ranks_step("shares_640m", 0.20, given, LARGER),
        *alone,
        links_step(given),
    ]


def steps(given: SimpleNamespace) -> list[RunStep]:
    """Returns the steps in order of importance. Symmetric memory needs two GPUs."""
    if given.large:
        return large_steps(given)
    return [
        ranks_step("table", 0.28, given, {}),
        *([] if given.one_gpu else [symmetric_step(given)]),
        ranks_step("pinned_tree", 0.10, given, TREE),
        ranks_step("pinned_ring", 0.08, given, RING),
        links_step(given),
        ranks_step("schedules", 0.23, given, {}),
        ranks_step("slots", 0.12, given, SLOTS),
    ]


class GpuRun:
    """Runs the steps one after the other, and keeps the time left."""

    def __init__(self, given: SimpleNamespace) -> None:
        self.given = given
        self.began = time.monotonic()
        self.end = self.began + given.budget_s - TABLES_S
        self.pretended = 0.0  # seconds that steps of a dry run would have taken
        self.failed: list[str] = []

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic() - self.pretended)

    def budgets(self, step: RunStep, later: list[RunStep]) -> tuple[float, float]:
        """Returns (seconds a step may measure, seconds until it is killed), by its share of the
        time left."""
        share = self.left() * step.share / (step.share + sum(one.share for one in later))
        return max(5.0, share - START_S), min(share + LATE_S, self.left())

    def one(self, step: RunStep, later: list[RunStep]) -> None:
        budget, limit = self.budgets(step, later)
        command = [word.replace("{budget}", f"{budget:.0f}") for word in step.command]
        said = " ".join([*(f"{k}={v}" for k, v in step.env.items()), shlex.join(command)])
        print(f"## {step.name}: {budget:.0f} s of {limit:.0f}: {said}", flush=True)
        if self.given.dry:
            self.pretended += limit - LATE_S if later else limit
            return
        if limit < 10:
            print(f"## {step.name}: no time left", flush=True)
            return
        began = time.monotonic()
        env = {**os.environ, **QUIET, **step.env}
        output, errors, why = run_job(command, env, limit)
        with (self.given.out / "gpu_run.log").open("a") as log:
            log.write(f"## {said}\n{output}{errors}\n")
        print("\n".join((output + errors).splitlines()[-6:])[-1500:], flush=True)
        print(f"## {step.name}: {why or 'well'}, {time.monotonic() - began:.0f} s", flush=True)
        if why:
            self.failed.append(step.name)

    def all(self) -> None:
        wanted = steps(self.given)
        for number, step in enumerate(wanted):
            if not self.given.only or step.name in self.given.only.split(","):
                self.one(step, wanted[number + 1 :])


def machine_name(gpus: int, dry: bool) -> str:
    """Returns 'h200x8', by the first GPU's name: rows of different GPUs share no file."""
    if dry or gpu.count() == 0:
        return f"h200x{gpus}"
    model = gpu.kind(0).partition(",")[0].removeprefix("NVIDIA ")
    return f"{model.partition(' ')[0].lower()}x{gpus}"


def run(given: SimpleNamespace) -> int:
    """Runs all steps and prints the tables. Returns 1 if a step failed."""
    if given.out is None and not given.dry:
        raise SystemExit("--out: wanted a folder for the rows, found none")
    given.machine = given.machine or machine_name(given.gpus, given.dry)
    given.commit, given.budget_s = given.commit or rows.commit(), given.budget_s or BUDGET_S
    if given.commit == rows.UNKNOWN and not given.dry:
        raise SystemExit(
            "wanted the commit of the build for the rows, found no file `commit` beside the "
            "package plait and no checkout above it; run a folder of `bench stage`, "
            "or name --commit"
        )
    with tempfile.TemporaryDirectory(prefix="plait-run-") as folder:
        given.out = given.out or Path(folder)
        given.out.mkdir(parents=True, exist_ok=True)
        run = GpuRun(given)
        run.all()
        if given.dry:
            print("## rows made up from predictions, to try the tables with", flush=True)
            predictions.make_up(given.out, given.gpus, given.machine, given.large)
        report = tables.report(given.out, given.gpus)
        if given.large:
            report += "\n" + tables.write_tuned(given.out, given.gpus, given.machine)
        print(report)
        with (given.out / "gpu_run.log").open("a") as log:
            log.write(report + "\n")
    if run.failed:
        print(f"steps that failed: {', '.join(run.failed)}")
    return 1 if run.failed else 0
