"""Runs all measurements of schedules on the GPUs of a machine, within a time budget.

    python bench/gpu_run.py --gpus 8 --out OUT              # nine minutes
    python bench/gpu_run.py --gpus 2 --one-gpu --out OUT    # steps that one GPU can run
    python bench/gpu_run.py --gpus 8 --dry                  # no GPU: the commands, and made-up rows

Steps run in order of importance, each with a share of the time; time left over goes to later steps.
A step that hangs is killed with all its processes, and the run goes on. Rows reach OUT when they
are measured, so an interrupted run loses nothing. run_tables.py prints the tables at the end, and
`python bench/run_tables.py OUT` those of an interrupted run. NVLink multicast stays off.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import run_predictions
import run_tables
from jobs import run_job
from run_rows import MEMORY_BYTES

from plait import gpu

HERE = Path(__file__).resolve().parent
BUDGET_S = 520.0  # nine minutes, less the start of Python and the tables
TABLES_S = 20.0
QUIET = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "PYTHONUNBUFFERED": "1",
}
TREE = {"NCCL_ALGO": "allreduce:tree", "NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}
RING = {"NCCL_ALGO": "allreduce:ring", "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1"}
SLOTS = {"PLAIT_DEVICE_MEMORY": str(MEMORY_BYTES)}
START_S = 22.0  # a job's start and end: contexts, communicators
LATE_S = 8.0  # grace of a job that should have ended, then it is killed


@dataclass(frozen=True)
class RunStep:
    """A program of the run. {budget} in the command: its time budget in seconds."""

    name: str
    share: float  # share of the run's time
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def ranks_step(
    name: str, share: float, given: argparse.Namespace, env: Mapping[str, str]
) -> RunStep:
    command = [sys.executable, str(HERE / "run_ranks.py"), "--section", name]
    command += ["--ranks", str(1 if given.one_gpu else given.gpus), "--budget-s", "{budget}"]
    command += ["--csv", str(given.out / f"gpu_run_{name}_{given.machine}.csv")]
    command += ["--most-mib", str(given.most_mib), "--commit", given.commit]
    return RunStep(name, share, tuple(command), env)


def symmetric_step(given: argparse.Namespace) -> RunStep:
    csv = given.out / f"gpu_symmetric_{given.machine}.csv"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(1 if given.one_gpu else given.gpus)]
    command += [str(HERE / "symmetric.py"), "--csv", str(csv), "--budget-s", "{budget}"]
    return RunStep("symmetric", 0.11, tuple(command))


def links_step(given: argparse.Namespace) -> RunStep:
    csv = given.out / f"gpu_links_{given.machine}.csv"
    command = [str(given.build / "bench_links"), "--gpus", str(given.gpus)]
    mib = [str(one) for one in (1024, 4096, 256) if one <= given.most_mib] or [str(given.most_mib)]
    command += ["--mib", ",".join(mib), "--budget-s", "{budget}", "--csv", str(csv)]
    return RunStep("links", 0.13, tuple(command))


def steps(given: argparse.Namespace) -> list[RunStep]:
    """Returns the steps in order of importance. Symmetric memory needs two GPUs."""
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

    def __init__(self, given: argparse.Namespace) -> None:
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, required=True, help="ranks, a GPU each")
    parser.add_argument("--out", type=Path, help="an empty folder; --dry makes one of its own")
    parser.add_argument("--build", type=Path, default=HERE.parent / "build" / "gpu")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S)
    parser.add_argument("--most-mib", type=int, default=4096, help="the largest message")
    parser.add_argument("--only", default="", help="steps by commas")
    parser.add_argument("--machine", default="", help="name in file names; default: h200xGPUS")
    parser.add_argument("--one-gpu", action="store_true", help="links by threads, else one rank")
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args()
    given.machine = given.machine or machine_name(given.gpus, given.dry)
    given.commit = commit()
    if given.out is None and not given.dry:
        parser.error("--out: wanted a folder for the rows, found none")
    return given


def machine_name(gpus: int, dry: bool) -> str:
    """Returns 'h200x8', by the first GPU's name: rows of different GPUs share no file."""
    if dry or gpu.count() == 0:
        return f"h200x{gpus}"
    model = gpu.kind(0).partition(",")[0].removeprefix("NVIDIA ")
    return f"{model.partition(' ')[0].lower()}x{gpus}"


def commit() -> str:
    """Returns the commit of the programs, from the file next to copied programs or from git."""
    carried = HERE.parent / "build" / "run" / "commit"
    if carried.exists():
        return carried.read_text().strip()
    command = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> int:
    """Runs all steps and prints the tables. Returns 1 if a step failed."""
    given = arguments()
    with tempfile.TemporaryDirectory(prefix="plait-run-") as folder:
        given.out = given.out or Path(folder)
        given.out.mkdir(parents=True, exist_ok=True)
        run = GpuRun(given)
        run.all()
        if given.dry:
            print("## rows made up from predictions, to try the tables with", flush=True)
            run_predictions.make_up(given.out, given.gpus, given.machine)
        tables = run_tables.report(given.out, given.gpus)
        print(tables)
        with (given.out / "gpu_run.log").open("a") as log:
            log.write(tables + "\n")
    if run.failed:
        print(f"steps that failed: {', '.join(run.failed)}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
