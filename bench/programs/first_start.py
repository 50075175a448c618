"""Holds the measurement of a first start to the shipped table, on GPUs that have one.

`bench_gpu_first_start` (gpu_first_start.cpp) hides the table, lets a first start measure, and times
both choices in turn. This program prints the points that differ and the goals. On fewer GPUs than
ranks, ranks share a GPU as threads of one process, and NCCL, which refuses that, is left out.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.lib import jobs, rows
from plait.bench import nccl

NEAR_SHARE = 0.95  # of points at most 5 % slower than by the shipped table
OVER_NCCL = 1.03  # most that a call may be slower than NCCL
LIMIT_S = 300.0


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


def run(given: SimpleNamespace) -> int:
    env = dict(os.environ) | jobs.QUIET
    if not env.get("PLAIT_NCCL_LIB"):
        path = nccl.library_path()
        env |= {"PLAIT_NCCL_LIB": path} if path.startswith("/") else {}
    command = [str(program_of(given.build)), f"ranks={given.ranks}", f"alone={int(given.alone)}"]
    said = jobs.output_of(command, env, LIMIT_S)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    points, whole = lines[:-1], lines[-1]
    for one in points:
        one["ratio"] = round(one["found_us"] / one["shipped_us"], 3) if one["shipped_us"] else 0.0
    rows.show([one for one in points if one["ratio"] > 1.05])
    rows.keep(given.csv, points)
    print(json.dumps(whole))
    goals = verdicts(whole)
    for text, met in goals:
        print(f"{text}: {'yes' if met else 'NO'}")
    return 0 if all(met for _, met in goals) else 1
