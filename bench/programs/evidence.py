"""Runs the checks of GPUs other than speed: accuracy, soak, killed ranks, the C API, symmetric
memory, and how much calls slow concurrent matrix products.

The build folder holds test_gpu_c_api. Tables and logs go to the output folder, a verdict a step to
standard output; the status is 1 if a step failed.
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

from bench.lib import options
from bench.lib.jobs import BENCH, QUIET, run_job, torchrun

STEPS = ("c_api", "kills", "broken", "accuracy", "symmetric", "overlap", "soak")
Job = tuple[str, float, list[str], dict[str, str], int]  # name, limit, command, env, lines shown


def jobs_of(step: str, given: SimpleNamespace) -> list[Job]:
    """Returns the jobs of a step."""
    gpus, ranks = f"{given.gpus}gpus", ["--ranks", str(given.gpus)]

    def csv(name: str) -> list[str]:
        return ["--csv", str(given.out / f"gpu_{name}_{gpus}.csv")]

    if step == "overlap":  # NCCL, then the drop-in by its own choice and under two budgets of SMs
        words = ("bench", "overlap", "--mib", "256", *csv("overlap"))
        nccl = torchrun(given.gpus, *words)
        plait = [sys.executable, "-m", "plait", "run", "--", *nccl]
        budgets = {f"plait_{budget}": {"PLAIT_SM_BUDGET": budget} for budget in ("64", "16")}
        found = [("nccl", nccl, {}), ("plait", plait, {})]
        found += [(name, plait, env) for name, env in budgets.items()]
        return [(f"overlap_{name}_{gpus}", 90, words, env, 4) for name, words, env in found]
    soak = [*BENCH, "soak", *ranks]
    rounds, seconds = given.kill_rounds, given.soak_s
    kills = [*BENCH, "kills", *ranks, "--rounds", str(rounds), *csv("kills")]
    long = [*soak, "--seconds", str(seconds), "--seed", str(given.seed), "--verbose"]
    symmetric = torchrun(given.gpus, "bench", "symmetric", *csv("symmetric"))
    jobs: dict[str, Job] = {
        "c_api": ("c_api", 90, [str(given.build / "test_gpu_c_api")], {}, 4),
        "kills": (f"kills_{gpus}", rounds * 20 + 30, kills, {}, 4),
        "broken": (f"soak_broken_{gpus}", 120, [*soak, "--seconds", "4", "--break"], {}, 4),
        "soak": (f"soak_{gpus}", seconds + 120, long, {}, 4),
        "accuracy": (
            f"accuracy_{gpus}",
            150,
            [*BENCH, "accuracy", *ranks, *csv("accuracy")],
            {},
            14,
        ),
        "symmetric": (f"symmetric_{gpus}", 150, symmetric, {}, 24),
    }
    return [jobs[step]]


def run(given: SimpleNamespace) -> int:
    """Runs the steps; `all`: each of them. With --dry prints the commands alone."""
    steps = STEPS if "all" in given.steps else given.steps
    options.check("step", given.steps, (*STEPS, "all"))
    given.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, limit_s, command, env, shown in (job for one in steps for job in jobs_of(one, given)):
        if given.dry:
            print(f"## {name}: {limit_s:.0f} s: {' '.join(command)}")
            continue
        began = time.monotonic()
        output, errors, why = run_job(command, {**os.environ, **QUIET, **env}, limit_s)
        (given.out / f"{name}.log").write_text(output + errors)
        print("\n".join(line[:1500] for line in (errors + output).splitlines()[-shown:]))
        print(f"## {name}: {why or 'well'}, {time.monotonic() - began:.0f} s", flush=True)
        failed |= bool(why)
    return int(failed)
