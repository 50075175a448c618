"""Measures the memory and the set-up time of communicators, by NCCL alone and with the drop-in, in
one run.

The program makes process groups of all ranks one after the other: each gets a first call of 8 B,
then calls of up to 1 MiB. Then each gets calls of 256 MiB, which allocate its large arena. Rank 0
prints a JSON line a stage: MB of its GPU in use since the variant's start, milliseconds (median of
the groups so far, of the slowest rank), and plait's memory by part. New communicators stay on NCCL
in the variant `nccl` and attach in the variant `plait`. Then groups of both variants are made in
turn, called once and destroyed, since NCCL's time depends on the groups that exist already. The
last lines compare both variants with the goals. No other program may use the GPU meanwhile.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from bench.lib import rows, torch_jobs
from bench.lib.drop_in import leave_new, memory_mb, served

MIB = 1 << 20
LARGE_CALLS = 20  # the large arena is allocated during the first of them
SMALL, LARGE = "calls of up to 1 MiB", "calls of 256 MiB"
# Most of NCCL alone, with all groups: memory by stage, and times of making a group.
GOALS = {SMALL: 0.5, LARGE: 0.8}
TIMES = {"made": 1.0, "first call of 8 B": 1.0}


def used_mb() -> float:
    """Returns the MB of this rank's GPU in use by all programs."""
    torch.cuda.synchronize()
    dist.barrier()
    free, whole = torch.cuda.mem_get_info()
    return (whole - free) / 1e6


def timed_ms(work: Callable[[], Any]) -> tuple[Any, float]:
    """Returns the result of `work`, and its milliseconds on the slowest rank."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return result, torch_jobs.slowest([1e3 * (time.perf_counter() - begin)])[0]


class Variant:
    """The stages of one variant."""

    def __init__(self, name: str, groups: int, say: Callable[[dict[str, Any]], None]) -> None:
        self.name, self.number, self.say = name, groups, say
        self.groups: list[Any] = []
        self.ms: dict[str, list[float]] = {}
        self.before = used_mb()
        self.totals: dict[str, float] = {}

    def row(self, stage: str) -> None:
        mb = round(used_mb() - self.before, 1)
        row: dict[str, Any] = {"variant": self.name, "groups": len(self.groups), "stage": stage}
        row["mb"] = mb
        if stage in self.ms:
            row["ms"] = round(statistics.median(self.ms[stage]), 2)
        row |= {"parts_mb": memory_mb() if self.name == "plait" else {}, "served": served()}
        self.say(row)
        self.totals[stage] = mb

    def time(self, stage: str, work: Callable[[], Any]) -> Any:
        result, ms = timed_ms(work)
        self.ms.setdefault(stage, []).append(ms)
        return result

    def make_group(self, values: torch.Tensor) -> None:
        shown = len(self.groups) in (0, self.number - 1)
        self.groups.append(self.time("made", dist.new_group))
        if shown:
            self.row("made")
        group = self.groups[-1]
        self.time("first call of 8 B", lambda: dist.all_reduce(values[:2], group=group))
        if shown:
            self.row("first call of 8 B")
        size = 4
        while size <= values.numel():
            dist.all_reduce(values[:size], group=group)
            size *= 2
        if shown:
            self.row(SMALL)

    def call_large(self, group: Any, values: torch.Tensor) -> None:
        self.time("first call of 256 MiB", lambda: dist.all_reduce(values, group=group))
        for _ in range(LARGE_CALLS):
            dist.all_reduce(values, group=group)
        if group is self.groups[0]:
            self.row(LARGE + " by one of them")

    def run(self, small: torch.Tensor, large: torch.Tensor) -> None:
        for _ in range(self.number):
            self.make_group(small)
        for group in self.groups:
            self.call_large(group, large)
        self.row("first call of 256 MiB")
        self.row(LARGE)
        for group in self.groups:
            dist.destroy_process_group(group)
        self.row("all given back")


def times_in_turn(groups: int, values: torch.Tensor) -> dict[str, dict[str, list[float]]]:
    """Returns milliseconds of making a group and of its first call, by variant."""
    ms: dict[str, dict[str, list[float]]] = {}
    for _ in range(groups):
        for name in ("nccl", "plait"):
            leave_new(name == "nccl")
            group, made = timed_ms(dist.new_group)
            _, first = timed_ms(partial(dist.all_reduce, values[:2], group=group))
            for stage, one in zip(TIMES, (made, first), strict=True):
                ms.setdefault(name, {}).setdefault(stage, []).append(one)
            dist.destroy_process_group(group)
    return ms


def compared(
    nccl: Variant, plait: Variant, ms: dict[str, dict[str, list[float]]]
) -> list[dict[str, Any]]:
    """Returns a row a goal: plait's figure over that of NCCL alone. ms: of times_in_turn()."""
    found = []
    for stage, goal in GOALS.items():
        ratio = plait.totals[stage] / max(nccl.totals[stage], 0.1)
        found.append({"memory": stage, "ratio": round(ratio, 3), "goal": goal})
    for stage, goal in TIMES.items():
        medians = [statistics.median(ms[name][stage]) for name in ("nccl", "plait")]
        row = {"time": stage, "nccl_ms": round(medians[0], 2), "plait_ms": round(medians[1], 2)}
        found.append(row | {"ratio": round(medians[1] / medians[0], 3), "goal": goal})
    return found


def run(given: SimpleNamespace) -> None:
    """Measures both variants, NCCL first."""
    leave_new(True)
    device = torch_jobs.join()
    lines: list[dict[str, Any]] = []

    def say(row: dict[str, Any]) -> None:
        lines.append(row)
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)

    small, large = (torch.zeros(mib * MIB // 4, device=device) for mib in (1, given.large_mib))
    dist.all_reduce(small)  # loads NCCL's kernels, which later groups share
    say({"variant": "both", "groups": 0, "stage": "context and buffers", "mb": round(used_mb(), 1)})
    variants = []
    for name in ("nccl", "plait"):
        leave_new(name == "nccl")
        variants.append(Variant(name, given.groups, say))
        variants[-1].run(small, large)
    for row in compared(*variants, times_in_turn(given.groups, small)):
        say(row)
    if dist.get_rank() == 0 and given.csv:
        columns = ("variant", "groups", "stage", "mb", "ms", "parts_mb", "served")
        rows.keep(given.csv, [row for row in lines if "variant" in row], columns)
    dist.destroy_process_group()
