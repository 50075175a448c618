"""Runs all programs that show the drop-in under NCCL on a machine with GPUs: tables, CSV, a plot.

Steps: checks, tuned, training, pairs (training by two GPUs), budgets, decode, shard, killed, cupy,
jax, alone (without the drop-in), nccl_tests (needs --programs). Jobs of two GPUs run side by side.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.lib import jobs, options, rows
from bench.lib.jobs import BENCH, run_job, torchrun
from bench.lib.rows import ROOT

Lanes = Iterable[Sequence["DropInJob"]]
COLUMNS = (
    *("program", "model", "batch", "gpus", "nccl_ms", "plait_ms", "nccl_per_s", "plait_per_s"),
    *("ratio", "same_bits_again", "same_bits_as_nccl", "losses_apart", "served", "passed"),
    *("drop_in", "sm_budget", "commit", "date"),
)


@dataclass
class DropInJob:
    """A command on some GPUs; the JSON lines that it prints become rows."""

    name: str
    command: list[str]
    lane: str
    limit_s: float = 50
    drop_in: bool = True
    env: dict[str, str] = field(default_factory=dict)


class DropInRunner:
    """Runs jobs, and stores their rows and logs."""

    def __init__(self, given: SimpleNamespace) -> None:
        self.given, self.rows, self.failures = given, [], []
        self.guard = threading.Lock()
        given.out.mkdir(parents=True, exist_ok=True)

    def run(self, job: DropInJob) -> None:
        """Runs a job to its end, or prints its command."""
        if self.given.dry:
            said = [*(f"{key}={value}" for key, value in job.env.items()), *job.command]
            with self.guard:  # lanes print side by side
                print(f"## {job.name} on {job.lane}: {' '.join(said)}", flush=True)
            return
        env = {**os.environ, **job.env, "CUDA_VISIBLE_DEVICES": job.lane}
        if job.drop_in:
            env["LD_PRELOAD"] = self.given.drop_in
            env.setdefault("PLAIT_DEBUG", "WARN")
        begin = time.monotonic()
        output, errors, why = run_job(job.command, env, job.limit_s, str(ROOT))
        took_s = time.monotonic() - begin
        with self.guard:
            self.keep(job, output, errors, why, took_s)

    def keep(self, job: DropInJob, output: str, errors: str, why: str, took_s: float) -> None:
        """Stores a job's rows and its log; prints the end of the output of a failed job."""
        found = []
        for line in output.splitlines():
            if line.startswith("{"):
                try:
                    more = {"job": job.name, "drop_in": job.drop_in}
                    more["sm_budget"] = job.env.get("PLAIT_SM_BUDGET", "0")
                    found.append({**json.loads(line), **more})
                except ValueError:
                    errors += f"\nnot JSON: {line[:100]}"
        self.rows += found
        with open(self.given.out / "drop_in.log", "a") as log:
            log.write(f"## {job.name} {' '.join(job.command)}\n{output}\n{errors}\n## {why}\n")
        print(f"## {job.name}: {why or 'well'}, {took_s:.1f} s, {len(found)} rows", flush=True)
        for row in found:
            short = {k: v for k, v in row.items() if k not in ("losses", "plait_losses", "job")}
            print("  " + json.dumps({k: brief(v) for k, v in short.items()}), flush=True)
        if why:
            self.failures.append(f"{job.name}: {why}")
            print(f"{output[-self.given.tail :]}\n{errors[-self.given.tail :]}", flush=True)


def brief(value: object) -> object:
    """Rounds to four digits, for terminals."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def library_path() -> str:
    """Returns the folders of NCCL and the CUDA runtime of this Python's wheels."""
    folders = []
    for entry in sys.path:
        folders += glob.glob(f"{entry}/nvidia/nccl/lib") + glob.glob(f"{entry}/nvidia/cu13/lib")
    return ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")])


class Steps:
    """The lanes of jobs of each step: lanes run side by side, the jobs of a lane in turn."""

    def __init__(self, given: SimpleNamespace) -> None:
        self.given, self.gpus = given, given.gpus
        self.all = ",".join(str(gpu) for gpu in range(given.gpus))
        self.twos = [f"{gpu},{gpu + 1}" for gpu in range(0, given.gpus, 2)]
        self.train = given.training.split()

    def on_all(self, name: str, *words: str, **how: Any) -> DropInJob:
        """A PyTorch job on all GPUs; words: the program with its options."""
        return DropInJob(name, torchrun(self.gpus, *words), self.all, **how)

    def checks(self) -> Iterator[Lanes]:
        """Runs every use of PyTorch, then on pretended nodes."""
        program, order = "tests/gpu/torch_drop_in.py", "tests/gpu/ordered_calls.py"
        lane = [self.on_all("checks", program), self.on_all("order", order)]
        lane += [self.on_all("order, plait itself", order, "--native", drop_in=False)]
        if self.gpus >= 4:
            timed, env = "tests/gpu/nodes_drop_in.py", {"PLAIT_NODE_SIZE": "2"}
            lane += [self.on_all("nodes", program, env=env)]
            lane += [self.on_all("nodes and NCCL's own", timed, env=env)]
            named = {**env, "PLAIT_ALGO": "multi_node"}
            lane += [self.on_all("nodes, by name", timed, env=named)]
        yield [lane]

    def tuned(self) -> Iterator[Lanes]:
        """Lets a tuning table choose."""
        program = "tests/gpu/tuned_drop_in.py"
        file = str((self.given.out / "made_up.json").resolve())
        write = [sys.executable, str(ROOT / program), "--write", file, "--gpus", str(self.gpus)]
        tuned = self.on_all("tuned", program, env={"PLAIT_TUNING": file})
        yield [[DropInJob("a table", write, self.all, drop_in=False), tuned]]

    def training(self) -> Iterator[Lanes]:
        """Trains the papers' models and the transformer on all GPUs."""
        words = ("--batches", self.given.batches, *self.train)
        yield [[self.on_all("training", "bench", "ddp", *words, limit_s=110)]]

    def pairs(self) -> Iterator[Lanes]:
        """Trains on two GPUs, with the models spread over the pairs."""
        words = ("--batches", self.given.batches, *self.train, "--models")
        shares = ("resnet50,vgg16,transformer", "resnet152,densenet201")
        commands = [torchrun(2, "bench", "ddp", *words, share) for share in shares]
        yield self.on_pairs("training by 2", commands, limit_s=110)

    def on_pairs(self, name: str, commands: Iterable[list[str]], **how: Any) -> Lanes:
        """A command on each pair of GPUs, side by side."""
        both = zip(self.twos, commands, strict=False)
        return [[DropInJob(name, command, pair, **how)] for pair, command in both]

    def decode(self) -> Iterator[Lanes]:
        """Decodes tensor-parallel on all GPUs, then on two GPUs a hidden size."""
        if self.gpus > 2:
            yield [[self.on_all("decode", "bench", "decode")]]
        by_size = [torchrun(2, "bench", "decode", "--hidden", size) for size in ("8192", "4096")]
        yield self.on_pairs("decode by 2", by_size)

    def shard(self) -> Iterator[Lanes]:
        """Trains the transformer by FSDP."""
        words = ("--wrap", "fsdp", "--models", "transformer", "--batches", "8,32", *self.train)
        yield [[self.on_all("fsdp", "bench", "ddp", *words)]]

    def killed(self) -> Iterator[Lanes]:
        """Kills a rank: with the drop-in on all GPUs, without it on two."""
        program = [sys.executable, str(ROOT / "tests/gpu/killed_rank.py"), "--gpus"]
        words = [str(self.gpus), "--drop-in", self.given.drop_in]
        alone = [*program, "2", "--limit", "8"]
        last = DropInJob("killed, NCCL alone", alone, self.twos[0], drop_in=False)
        yield [[DropInJob("killed", [*program, *words], self.all, drop_in=False), last]]

    def cupy(self) -> Iterator[Lanes]:
        """Runs CuPy's NCCL calls."""
        command = [sys.executable, str(ROOT / "tests/gpu/cupy_drop_in.py")]
        yield [[DropInJob("cupy", command, self.twos[-1], 60)]]

    def jax(self) -> Iterator[Lanes]:
        """Runs JAX by each entry point that reaches it: one process, and a process a GPU."""
        program = [sys.executable, str(ROOT / "tests/gpu/jax_drop_in.py")]
        lane = []
        for via, words in (("audit", []), ("library", []), ("audit", ["--processes", "2"])):
            run = [sys.executable, "-m", "plait.cli", "run", "--via", via, "--", *program, *words]
            lane.append(DropInJob(f"jax, {via}", run, self.twos[-1], 60, drop_in=False))
        yield [lane]

    def alone(self) -> Iterator[Lanes]:
        """Runs without the drop-in, to check the `nccl` figures of other steps."""
        words = ("--batches", "32", "--models", "resnet50,transformer", *self.train)
        commands = ("ddp", *words), ("decode", "--hidden", "8192")
        both = [
            DropInJob("alone", torchrun(2, "bench", *command), pair, drop_in=False)
            for command, pair in zip(commands, (self.twos[0], self.twos[-1]), strict=True)
        ]
        yield [[job] for job in both] if len(self.twos) > 1 else [both]

    def budgets(self) -> Iterator[Lanes]:
        """Trains with budgets that leave multiprocessors to the backward pass."""
        words = ("--batches", "32", "--models", "transformer,vgg16", *self.train)
        command = torchrun(2, "bench", "ddp", *words)
        yield [
            [DropInJob(f"budget {budget}", command, pair, env={"PLAIT_SM_BUDGET": budget})]
            for pair, budget in zip(self.twos, ("24", "48"), strict=False)
        ]

    def nccl_tests(self) -> Iterator[Lanes]:
        """Runs nccl-tests on two GPUs, lanes side by side, in three modes; then on all GPUs."""
        base = [*BENCH, "nccl-tests", "--drop-in", self.given.drop_in]
        base += ["--programs", self.given.programs, "--mpiexec", self.given.mpiexec]
        runs = [("/".join(self.twos), 2, "processes,threads,one_thread", len(self.twos))]
        if self.gpus > 2:
            runs.append((self.all, self.gpus, "processes", 1))
        left_s = self.given.seconds
        for lanes, gpus, modes, repeat in runs:
            begin = time.monotonic()
            words = ["--lanes", lanes, "--modes", modes, "--repeat", str(repeat), "--csv"]
            words += [str(self.given.out / f"nccl_tests_{gpus}.csv"), "--seconds", f"{left_s}"]
            command = [*base, *words, "--options=" + self.given.options]
            name = f"nccl-tests by {gpus}"
            yield [[DropInJob(name, command, self.all, left_s + 30, drop_in=False)]]
            left_s -= time.monotonic() - begin


STEPS = (
    *("checks", "tuned", "training", "pairs", "budgets", "decode", "shard", "killed", "cupy"),
    *("jax", "alone", "nccl_tests"),
)


def rows_of(found: list[dict], commit: str) -> list[dict[str, object]]:
    """Returns the rows of training and decoding, in common columns."""
    made = []
    for row in found:
        if "batch" not in row:
            continue
        decodes = row["program"] == "decode"
        one: dict[str, object] = {key: row.get(key, "") for key in COLUMNS}
        if decodes:
            one["model"] = f"hidden {row['hidden']}, {row['layers']} layers"
        for variant in ("nccl", "plait"):
            if f"{variant}_ms" not in row and f"{variant}_step_us" not in row:
                continue
            one[f"{variant}_ms"] = (
                row[f"{variant}_step_us"] / 1e3 if decodes else row[f"{variant}_ms"]
            )
            one[f"{variant}_per_s"] = row[
                f"{variant}_tokens_per_s" if decodes else f"{variant}_per_s"
            ]
        if decodes and "plait_output" in row:
            one["same_bits_as_nccl"] = row["plait_output"] == row["nccl_output"]
        counts = row.get("served") or ["", ""]
        one |= {"served": counts[0], "passed": counts[1], "drop_in": row["drop_in"]}
        one |= {"commit": commit, "date": rows.today()}
        made.append({key: brief6(value) for key, value in one.items()})
    return made


def brief6(value: object) -> object:
    """Rounds to six digits, for files."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def plot(rows: list[dict[str, object]], path: Path) -> None:
    """Plots speed with plait / speed without: a panel per program, a bar per batch size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    both = [row for row in rows if row["ratio"] != "" and row["sm_budget"] == "0"]
    panels = sorted({(str(row["program"]), int(str(row["gpus"]))) for row in both})
    if not panels:
        return
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(8, 2.6 * len(panels)), squeeze=False)
    for axis, (program, gpus) in zip(axes[:, 0], panels, strict=True):
        mine = [row for row in both if (row["program"], row["gpus"]) == (program, gpus)]
        models = list(dict.fromkeys(str(row["model"]) for row in mine))
        batches = sorted({int(str(row["batch"])) for row in mine})
        for number, batch in enumerate(batches):
            at = [m + 0.25 * (number - (len(batches) - 1) / 2) for m in range(len(models))]
            by_model = {row["model"]: row["ratio"] for row in mine if row["batch"] == batch}
            heights = [float(str(by_model.get(model, 0))) for model in models]
            bars = axis.bar(at, heights, 0.22, label=f"batch {batch}")
            axis.bar_label(bars, fmt="%.2f", fontsize=7)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks(range(len(models)), models, fontsize=8)
        axis.set_ylim(0.8, None)
        axis.set_title(f"{program}, {gpus} GPUs: speed with plait / with NCCL alone", fontsize=9)
        axis.legend(fontsize=7, ncols=3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def run(given: SimpleNamespace) -> int:
    """Runs all steps. Returns 1 if one failed."""
    options.check("step", given.steps, STEPS)
    given.drop_in = str(given.drop_in.resolve())
    os.environ["LD_LIBRARY_PATH"] = library_path()
    runner, steps = DropInRunner(given), Steps(given)
    for name in given.steps:
        begin = time.monotonic()
        for lanes in getattr(steps, name)():
            jobs.side_by_side(lanes, runner.run)
        print(f"# {name}: {time.monotonic() - begin:.1f} s", flush=True)
    if given.dry:
        return 0
    found = rows_of(runner.rows, given.commit or rows.commit())
    rows.add(given.out / "drop_in.csv", found, COLUMNS)
    with open(given.out / "drop_in.jsonl", "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in runner.rows)
    try:
        plot(found, given.out / "drop_in.png")
    except ImportError:
        print("no matplotlib, so no plot")
    print("failed: " + "; ".join(runner.failures) if runner.failures else "all well")
    return 1 if runner.failures else 0
