"""Holds the measurement of a first start to the shipped table, on GPUs that have one.

`bench_gpu_first_start` (gpu_first_start.cpp) hides the table, lets a first start measure, and times
both choices in turn. This program prints where the first start's time went, the points that
differ, and the goals. On fewer GPUs than ranks, ranks share a GPU as threads of one process, and
NCCL, which refuses that, is left out. --through-host disables direct access for both libraries.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.lib import jobs, rows
from plait.bench import nccl

NEAR_SHARE = 0.95  # of points at most 5 % slower than by the shipped table
OVER_NCCL = 1.03  # most that a call may be slower than NCCL
LIMIT_S = 300.0
TIMED = re.compile(
    r"timed \d+ ways of \w+ of \d+ bytes (beside NCCL|alone): (\d+) us to prepare, (\d+) us until "
    r"all ranks had, (\d+) us to run"
)
BYTES = re.compile(r"\w+ of \d+ bytes: ")
LAP = re.compile(r"(\d+) us ([^,]+)")


def program_of(build: Path) -> Path:
    """Returns the program of a build folder."""
    program = build / "bench_gpu_first_start"
    if not program.is_file():
        raise SystemExit(f"wanted {program}, found none: ninja -C {build} bench_gpu_first_start")
    return program


def verdicts(whole: dict[str, Any]) -> list[tuple[str, bool]]:
    """Returns the goals, and whether each is met."""
    share, most = whole["at_most_5_percent_slower"], whole["worst_against_nccl"]
    found = [
        (f"first start in {whole['first_start_s']} s: at most 3", whole["first_start_s"] <= 3.0),
        (f"{share:.1%} of points at most 5 % slower: at least 95 %", share >= NEAR_SHARE),
    ]
    if whole["nccl"]:
        found.append((f"{most} times NCCL's at worst: at most 1.03", most <= OVER_NCCL))
    return found


def spent(said: str) -> list[str]:
    """Returns where the first start's time went: one line a step with the number of times, the sum
    and the longest, then the lines of the opening and of the end."""
    steps: dict[str, list[int]] = {}
    once: list[str] = []
    for line in said.splitlines():
        text = line.partition(" PLAIT ")[2].partition(" ")[2].strip()
        timed = TIMED.match(text)
        if text.startswith(("a bench:", "the end of a bench:", "measured ")):
            once.append(text)
        elif timed:
            for step, us in zip(("prepare", "wait", "run"), timed.groups()[1:], strict=True):
                steps.setdefault(f"{timed[1]}: {step}", []).append(int(us))
        elif BYTES.match(text):
            for us, step in LAP.findall(text):
                steps.setdefault(step, []).append(int(us))
    lines = [
        f"{step}: {len(all_us)} times, {sum(all_us) / 1e3:.1f} ms, longest {max(all_us) / 1e3:.1f}"
        for step, all_us in steps.items()
    ]
    return lines + once


def run(given: SimpleNamespace) -> int:
    env = dict(os.environ) | jobs.QUIET | {"PLAIT_DEBUG": "EXPLAIN"}
    if not env.get("PLAIT_NCCL_LIB"):
        path = nccl.library_path()
        env |= {"PLAIT_NCCL_LIB": path} if path.startswith("/") else {}
    if given.through_host:
        env["NCCL_P2P_DISABLE"] = "1"
    command = [str(program_of(given.build)), f"ranks={given.ranks}", f"alone={int(given.alone)}"]
    output, said, why = jobs.run_job(command, env, LIMIT_S)
    if why:
        raise SystemExit(f"{' '.join(command)}: {why}\n{said[-2000:]}")
    if given.log:
        Path(given.log).write_text(said)
    print("\n".join(spent(said)))
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    points, whole = lines[:-1], lines[-1]
    for one in points:
        one["ratio"] = round(one["found_us"] / one["shipped_us"], 3) if one["shipped_us"] else 0.0
    rows.show([one for one in points if one["ratio"] > 1.05])
    rows.keep(given.csv, points)
    print(json.dumps(whole))
    if given.through_host and not whole["through_host"]:
        raise SystemExit("wanted calls through host memory, found calls over links: build again")
    goals = verdicts(whole)
    for text, met in goals:
        print(f"{text}: {'yes' if met else 'NO'}")
    return 0 if all(met for _, met in goals) else 1
