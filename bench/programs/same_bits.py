"""Compares plait's same bits on GPUs with plain NCCL and with NCCL as serving programs pin NCCL.

Steps: decode (hf-decode), all_reduce (`plait bench`), train (train-twice). Lines of JSON and logs
go to the output folder. The status is 1 if a variant failed, or if two runs of a bitwise variant
differ.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

from bench.lib import options
from bench.lib.jobs import QUIET, run_job, torchrun

STEPS = ("decode", "all_reduce", "train")
PLAIT = (sys.executable, "-m", "plait", "run")
# SGLang 0.5.23 and vLLM 0.33.0 in their deterministic modes, as their sources set them.
SGLANG = {
    "NCCL_ALGO": "allreduce:tree",
    "NCCL_MIN_NCHANNELS": "8",
    "NCCL_MAX_NCHANNELS": "8",
}
VLLM = {
    "NCCL_LAUNCH_MODE": "GROUP",
    "NCCL_COLLNET_ENABLE": "0",
    "NCCL_P2P_NET_DISABLE": "1",
    "NCCL_MIN_NCHANNELS": "1",
    "NCCL_MAX_NCHANNELS": "1",
    "NCCL_PROTO": "Simple",
    "NCCL_ALGO": "ring,tree;allreduce:tree",
    "NCCL_NTHREADS": "1",
}
VARIANTS = {  # command before the job, environment of the job
    "nccl": ((), {}),
    "plait": ((*PLAIT, "--"), {}),
    "bitwise": ((*PLAIT, "--bitwise", "--"), {}),
    "bitwise_again": ((*PLAIT, "--bitwise", "--"), {}),
    "sglang": ((), SGLANG),
    "vllm": ((), VLLM),
}


class Comparison:
    """Runs jobs, and keeps whether one failed."""

    def __init__(self, given: SimpleNamespace) -> None:
        self.given, self.failed = given, False

    def job(self, name: str, command: list[str], env: dict[str, str]) -> list[dict[str, object]]:
        """Returns the lines of JSON of a job."""
        if self.given.dry:
            words = [*(f"{key}={value}" for key, value in env.items()), *command]
            print(f"## {name}: {' '.join(words)}")
            return []
        whole = {**os.environ, **QUIET, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **env}
        output, errors, why = run_job(command, whole, self.given.limit_s)
        (self.given.out / f"{name}.log").write_text(output)
        (self.given.out / f"{name}.err").write_text(errors)
        lines = [line for line in output.splitlines() if line.startswith("{")]
        print(*lines, f"## {name}: {why or 'well'}", sep="\n", flush=True)
        if why:
            print("\n".join(errors.splitlines()[-5:]))
            self.failed = True
        return [json.loads(line) for line in lines]

    def variants(self, step: str, *words: str) -> None:
        """Runs a program by all variants; both bitwise runs must have the same hashes."""
        prefix, found = f"{step}_{self.given.gpus}gpus", {}
        for variant, (before, env) in VARIANTS.items():
            job = torchrun(self.given.gpus, "bench", *words, "--variant", f"{prefix}_{variant}")
            found[variant] = self.job(f"{prefix}_{variant}", [*before, *job], env)
        if self.given.dry:
            return
        with (self.given.out / f"gpu_{prefix}.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for rows in found.values() for row in rows)
        one, other = ([row["hash"] for row in found[name]] for name in ("bitwise", "bitwise_again"))
        same = bool(one) and one == other
        print(f"## {prefix}: {'the same bits' if same else f'{one} and {other}'} in both runs")
        self.failed |= not same

    def decode(self) -> None:
        words = ("--model", self.given.model, "--batches", self.given.batches)
        self.variants("decode", "hf-decode", *words, "--steps", str(self.given.steps_of or 128))

    def train(self) -> None:
        self.variants("train", "train-twice", "--steps", str(self.given.steps_of or 50))

    def all_reduce(self) -> None:
        gpus = str(self.given.gpus)
        for pins, env in {"none": {}, "sglang": SGLANG, "vllm": VLLM}.items():
            csv = self.given.out / f"gpu_pinned_{pins}_{gpus}gpus.csv"
            command = [sys.executable, "-m", "plait", "bench", "all_reduce", "-g", gpus]
            command += ["--against", "nccl", "-b", "1K", "-e", "1G", "-f", "4", "-d", "bf16"]
            self.job(f"pinned_{pins}_{gpus}gpus", [*command, "--csv", str(csv)], env)


def run(given: SimpleNamespace) -> int:
    steps = STEPS if "all" in given.steps else given.steps
    options.check("step", given.steps, (*STEPS, "all"))
    given.out.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(given)
    for step in steps:
        getattr(comparison, step)()
    return int(comparison.failed)
