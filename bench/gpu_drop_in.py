"""Runs all programs that show the drop-in under NCCL on a machine with GPUs: tables, CSV, a plot.

    python3 bench/gpu_drop_in.py --drop-in libplait_nccl.so --gpus 4 --out results STEP...

Steps: checks, tuned, training, pairs (training by two GPUs), budgets, decode, shard, killed, cupy,
jax, alone (without the drop-in), nccl_tests (needs --programs). Jobs of two GPUs run side by side.
"""

from __future__ import annotations

import argparse
import csv
import glob
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs import run_job

ROOT = Path(__file__).resolve().parent.parent
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

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.rows, self.failures = args, [], []
        self.guard = threading.Lock()
        self.out = Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)

    def run(self, job: DropInJob) -> None:
        """Runs a job to its end."""
        env = {**os.environ, **job.env, "CUDA_VISIBLE_DEVICES": job.lane}
        if job.drop_in:
            env["LD_PRELOAD"] = self.args.drop_in
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
        with open(self.out / "drop_in.log", "a") as log:
            log.write(f"## {job.name} {' '.join(job.command)}\n{output}\n{errors}\n## {why}\n")
        print(f"## {job.name}: {why or 'well'}, {took_s:.1f} s, {len(found)} rows", flush=True)
        for row in found:
            short = {k: v for k, v in row.items() if k not in ("losses", "plait_losses", "job")}
            print("  " + json.dumps({k: brief(v) for k, v in short.items()}), flush=True)
        if why:
            self.failures.append(f"{job.name}: {why}")
            print(f"{output[-self.args.tail :]}\n{errors[-self.args.tail :]}", flush=True)

    def lanes(self, *lanes: Sequence[DropInJob]) -> None:
        """Runs lanes side by side, and the jobs of a lane in turn."""
        threads = [
            threading.Thread(target=lambda jobs=jobs: [self.run(job) for job in jobs])
            for jobs in lanes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def brief(value: object) -> object:
    """Rounds to four digits, for terminals."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def torchrun(program: str, gpus: int, *words: str) -> list[str]:
    """Returns the command of a PyTorch job on one machine."""
    head = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*head, "--nproc-per-node", str(gpus), str(ROOT / program), *words]


def library_path() -> str:
    """Returns the folders of NCCL and the CUDA runtime of this Python's wheels."""
    folders = []
    for entry in sys.path:
        folders += glob.glob(f"{entry}/nvidia/nccl/lib") + glob.glob(f"{entry}/nvidia/cu13/lib")
    return ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")])


class Steps:
    """The jobs of each step."""

    def __init__(self, runner: DropInRunner, args: argparse.Namespace) -> None:
        self.runner, self.args = runner, args
        self.all = ",".join(str(gpu) for gpu in range(args.gpus))
        self.pairs = [f"{gpu},{gpu + 1}" for gpu in range(0, args.gpus, 2)]

    def checks(self) -> None:
        """Runs every use of PyTorch, then on pretended nodes."""
        program = "tests/gpu/torch_drop_in.py"
        self.runner.run(DropInJob("checks", torchrun(program, self.args.gpus), self.all))
        order = "tests/gpu/ordered_calls.py"
        self.runner.run(DropInJob("order", torchrun(order, self.args.gpus), self.all))
        native = torchrun(order, self.args.gpus, "--native")
        self.runner.run(DropInJob("order, plait itself", native, self.all, drop_in=False))
        if self.args.gpus >= 4:
            env = {"PLAIT_NODE_SIZE": "2"}
            self.runner.run(
                DropInJob("nodes", torchrun(program, self.args.gpus), self.all, env=env)
            )
            timed = torchrun("tests/gpu/nodes_drop_in.py", self.args.gpus)
            self.runner.run(DropInJob("nodes and NCCL's own", timed, self.all, env=env))
            env = {**env, "PLAIT_ALGO": "multi_node"}
            self.runner.run(DropInJob("nodes, by name", timed, self.all, env=env))

    def tuned(self) -> None:
        """Lets a tuning table choose."""
        program = "tests/gpu/tuned_drop_in.py"
        file = str((self.runner.out / "made_up.json").resolve())
        write = [sys.executable, str(ROOT / program), "--write", file]
        write += ["--gpus", str(self.args.gpus)]
        self.runner.run(DropInJob("a table", write, self.all, drop_in=False))
        env = {"PLAIT_TUNING": file}
        self.runner.run(DropInJob("tuned", torchrun(program, self.args.gpus), self.all, env=env))

    def training(self) -> None:
        """Trains the papers' models and the transformer on all GPUs."""
        words = ["--batches", self.args.batches, *self.args.training.split()]
        command = torchrun("bench/ddp.py", self.args.gpus, *words)
        self.runner.run(DropInJob("training", command, self.all, 110))

    def training_pairs(self) -> None:
        """Trains on two GPUs, with the models spread over the pairs."""
        words = ["--batches", self.args.batches, *self.args.training.split(), "--models"]
        shares = ["resnet50,vgg16,transformer", "resnet152,densenet201"]
        self.runner.lanes(
            *(
                [DropInJob("training by 2", torchrun("bench/ddp.py", 2, *words, share), pair, 110)]
                for pair, share in zip(self.pairs, shares, strict=False)
            )
        )

    def decode(self) -> None:
        """Decodes tensor-parallel on all GPUs, then on two GPUs a hidden size."""
        if self.args.gpus > 2:
            command = torchrun("bench/decode.py", self.args.gpus)
            self.runner.run(DropInJob("decode", command, self.all))
        self.runner.lanes(
            *(
                [DropInJob("decode by 2", torchrun("bench/decode.py", 2, "--hidden", size), pair)]
                for pair, size in zip(self.pairs, ("8192", "4096"), strict=False)
            )
        )

    def shard(self) -> None:
        """Trains the transformer by FSDP."""
        words = ["--wrap", "fsdp", "--models", "transformer", "--batches", "8,32"]
        command = torchrun("bench/ddp.py", self.args.gpus, *words, *self.args.training.split())
        self.runner.run(DropInJob("fsdp", command, self.all))

    def killed(self) -> None:
        """Kills a rank: with the drop-in on all GPUs, without it on two."""
        program = [sys.executable, str(ROOT / "tests/gpu/killed_rank.py")]
        words = ["--gpus", str(self.args.gpus), "--drop-in", self.args.drop_in]
        self.runner.run(DropInJob("killed", [*program, *words], self.all, drop_in=False))
        alone = [*program, "--gpus", "2", "--limit", "8"]
        self.runner.run(DropInJob("killed, NCCL alone", alone, self.pairs[0], drop_in=False))

    def cupy(self) -> None:
        """Runs CuPy's NCCL calls."""
        command = [sys.executable, str(ROOT / "tests/gpu/cupy_drop_in.py")]
        self.runner.run(DropInJob("cupy", command, self.pairs[-1], 60))

    def jax(self) -> None:
        """Runs JAX by each entry point that reaches it: one process, and a process a GPU."""
        program = [sys.executable, str(ROOT / "tests/gpu/jax_drop_in.py")]
        for via, words in (("audit", []), ("library", []), ("audit", ["--processes", "2"])):
            run = [sys.executable, "-m", "plait.cli", "run", "--via", via, "--"]
            job = DropInJob(
                f"jax, {via}", [*run, *program, *words], self.pairs[-1], 60, drop_in=False
            )
            self.runner.run(job)

    def alone(self) -> None:
        """Runs without the drop-in, to check the `nccl` figures of other steps."""
        words = ["--batches", "32", "--models", "resnet50,transformer"]
        train = torchrun("bench/ddp.py", 2, *words, *self.args.training.split())
        decode = torchrun("bench/decode.py", 2, "--hidden", "8192")
        jobs = [DropInJob("alone", train, self.pairs[0], drop_in=False)]
        more = [DropInJob("alone", decode, self.pairs[-1], drop_in=False)]
        self.runner.lanes(jobs, more) if len(self.pairs) > 1 else self.runner.lanes([*jobs, *more])

    def budgets(self) -> None:
        """Trains with budgets that leave multiprocessors to the backward pass."""
        words = ["--batches", "32", "--models", "transformer,vgg16", *self.args.training.split()]
        command = torchrun("bench/ddp.py", 2, *words)
        self.runner.lanes(
            *(
                [DropInJob(f"budget {budget}", command, pair, env={"PLAIT_SM_BUDGET": budget})]
                for pair, budget in zip(self.pairs, ("24", "48"), strict=False)
            )
        )

    def nccl_tests(self) -> None:
        """Runs nccl-tests on two GPUs, lanes side by side, in three modes; then on all GPUs."""
        base = [sys.executable, str(ROOT / "bench/nccl_tests.py"), "--drop-in", self.args.drop_in]
        base += ["--programs", self.args.programs, "--mpiexec", self.args.mpiexec]
        runs = [("/".join(self.pairs), 2, "processes,threads,one_thread", len(self.pairs))]
        if self.args.gpus > 2:
            runs.append((self.all, self.args.gpus, "processes", 1))
        left_s = self.args.seconds
        for lanes, gpus, modes, repeat in runs:
            begin = time.monotonic()
            words = ["--lanes", lanes, "--modes", modes, "--repeat", str(repeat), "--csv"]
            words += [str(self.runner.out / f"nccl_tests_{gpus}.csv"), "--seconds", f"{left_s}"]
            command = [*base, *words, "--options=" + self.args.options]
            job = DropInJob(f"nccl-tests by {gpus}", command, self.all, left_s + 30, drop_in=False)
            self.runner.run(job)
            left_s -= time.monotonic() - begin


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
        one |= {"commit": commit, "date": time.strftime("%Y-%m-%d")}
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


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="+")
    parser.add_argument("--drop-in", required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--out", default="results")
    parser.add_argument("--commit", default="")
    parser.add_argument("--batches", default="8,32,64")
    parser.add_argument("--training", default="--steps 3 --rounds 9 --warmup 3")
    parser.add_argument("--programs", default="", help="folder of nccl-tests")
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--options", default="-b 1K -e 256M -f 4 -c 1 -n 20 -w 5 -N 3")
    parser.add_argument("--seconds", type=float, default=200, help="for nccl-tests")
    parser.add_argument(
        "--tail", type=int, default=1500, help="characters of a failed job's output"
    )
    return parser.parse_args()


def main() -> int:
    """Runs all steps. Returns 1 if one failed."""
    args = arguments()
    args.drop_in = str(Path(args.drop_in).resolve())
    os.environ["LD_LIBRARY_PATH"] = library_path()
    runner = DropInRunner(args)
    steps = Steps(runner, args)
    for name in args.steps:
        begin = time.monotonic()
        getattr(steps, "training_pairs" if name == "pairs" else name)()
        print(f"# {name}: {time.monotonic() - begin:.1f} s", flush=True)
    rows = rows_of(runner.rows, args.commit)
    with open(runner.out / "drop_in.csv", "a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if file.tell() == 0:
            writer.writeheader()
        writer.writerows(rows)
    with open(runner.out / "drop_in.jsonl", "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in runner.rows)
    try:
        plot(rows, runner.out / "drop_in.png")
    except ImportError:
        print("no matplotlib, so no plot")
    print("failed: " + "; ".join(runner.failures) if runner.failures else "all well")
    return 1 if runner.failures else 0


if __name__ == "__main__":
    sys.exit(main())
