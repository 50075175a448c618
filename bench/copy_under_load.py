"""plait.copy between two GPUs while another process loads PCIe, beside direct-only and fixed.

    python bench/copy_under_load.py --pair 0:1 --sizes 256M,1G
    python bench/copy_under_load.py --seconds 2,6,4 --csv rows.csv   # before, during, after

A child process copies between pinned host memory and every GPU of the pair, both ways at once, in
the middle phase. In every phase rounds of a few copies each take turns: `corrected` (plait.copy as
it is), `direct` (the link alone) and `fixed` (the planner's share, held by hand), so that all three
meet the same load. Prints GB/s of each, what corrected is beside direct, its worst round and the
share it ended with.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import subprocess
import sys
import time
from typing import Any

import result_rows

import plait
from plait import gpu
from plait.bench import copies as bench_copy
from plait.bench.links import _address
from plait.bench.sizes import parse_bytes

PHASES = ("before", "during", "after")
ROUND = 6  # copies of a kind in a row
LOAD_BYTES = 64 << 20


def load(ordinals: list[int]) -> None:
    """Copies both ways between host memory and these GPUs until standard input ends."""
    areas, work = [], []
    for ordinal in ordinals:
        device = gpu.Gpu(ordinal)
        for is_out in (True, False):
            area = mmap.mmap(-1, LOAD_BYTES)
            device.pin(_address(area), LOAD_BYTES)
            areas.append(area)
            ends = (_address(area), device.allocate(LOAD_BYTES))
            work.append((device, ends if is_out else ends[::-1], device.make_stream()))
    watch = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
    print("loading", flush=True)
    copied, start = 0, time.perf_counter()
    while watch.poll() is None:
        for device, (dst, src), stream in work:
            for _ in range(4):
                device.copy_async(dst, src, LOAD_BYTES, stream)
        for device, _, stream in work:
            device.synchronize(stream)
            copied += 4 * LOAD_BYTES
    print(f"{copied / (time.perf_counter() - start) / 1e9:.1f}", flush=True)


class Load:
    """The child process that loads PCIe while this lives."""

    def __init__(self, ordinals: list[int]) -> None:
        words = [sys.executable, __file__, "--load", ",".join(map(str, ordinals))]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        if self.child.stdout is None or self.child.stdout.readline().strip() != "loading":
            raise RuntimeError("the process that loads PCIe did not start")

    def end(self) -> str:
        """GB/s that it copied, all ways together."""
        return self.child.communicate("", timeout=30)[0].strip()


class Tally:
    """What one kind of copies of one size took in a phase."""

    def __init__(self) -> None:
        self.bytes, self.seconds, self.worst_s, self.rounds = 0, 0.0, 0.0, 0

    def add(self, size: int, seconds: float) -> None:
        self.bytes += ROUND * size
        self.seconds += seconds
        self.worst_s = max(self.worst_s, seconds / ROUND)
        self.rounds += 1

    def gb_per_s(self) -> float:
        return self.bytes / max(self.seconds, 1e-9) / 1e9


def host_permille(plan: plait.Plan) -> float:
    """What of the plan's message goes through host memory."""
    return 1000 * bench_copy.route_shares(plan).get("host", 0.0)


def kinds_of(pair: bench_copy.Pair, size: int, way: str) -> dict[str, dict[str, int]]:
    """The parameters of each kind. `fixed` is what the planner gives before anything is learnt."""
    src, dst = pair.task["pair"]
    plan = pair.door.plan_for(dst, src, size, way != "one way", {})
    fixed = {"host_permille": round(host_permille(plan))}
    if sum(plan.ring_bytes) > 0:
        fixed["chunk_kib"] = plan.ring_bytes[0] // 4 >> 10
    return {"corrected": {}, "direct": {"host_permille": 0}, "fixed": fixed}


def phase_rows(
    pair: bench_copy.Pair, sizes: dict[int, dict[str, Any]], way: str, name: str, seconds: float
) -> list[dict[str, Any]]:
    """Rounds of all kinds and sizes in turn for so long."""
    src, dst = pair.task["pair"]
    tallies = {(size, kind): Tally() for size, kinds in sizes.items() for kind in kinds}
    first: dict[int, list[float]] = {size: [] for size in sizes}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for size, kinds in sizes.items():
            for kind, params in kinds.items():
                pair.wait()
                start = time.perf_counter()
                for _ in range(ROUND):
                    pair.enqueue(size, way, params, 0)
                pair.wait()
                took = time.perf_counter() - start
                tallies[size, kind].add(size, took)
                if kind == "corrected" and len(first[size]) < 8:
                    first[size].append(ROUND * size / took / 1e9)
    rows = []
    for size in sizes:
        speeds = {kind: tallies[size, kind].gb_per_s() for kind in sizes[size]}
        plan = pair.door.plan_for(dst, src, size, way != "one way", {})
        rows.append(
            {"phase": name, "way": way, "bytes": size}
            | {f"{kind}_gb_per_s": round(speed, 1) for kind, speed in speeds.items()}
            | {
                "beside_direct": round(speeds["corrected"] / speeds["direct"], 4),
                "worst_round_gb_per_s": round(size / tallies[size, "corrected"].worst_s / 1e9, 1),
                "host_permille_at_end": round(host_permille(plan), 1),
                "copies_of_each": ROUND * tallies[size, "corrected"].rounds,
                "first_rounds_gb_per_s": " ".join(f"{speed:.0f}" for speed in first[size]),
            }
        )
    return rows


def host_us_a_call(pair: bench_copy.Pair, size: int, kinds: dict[str, Any], way: str) -> str:
    """What enqueuing takes on the host, nothing else being on the streams; medians, in turn."""
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(60):
        for kind, params in kinds.items():
            pair.wait()
            start = time.perf_counter()
            pair.enqueue(size, way, params, 0)
            if number >= 10:  # plans and rings have been made
                took[kind].append(1e6 * (time.perf_counter() - start))
    return ", ".join(f"{kind} {statistics.median(times):.1f}" for kind, times in took.items())


def main() -> None:
    """Three phases, a table, perhaps a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default="0:1")
    parser.add_argument("--sizes", default="256M,1G")
    parser.add_argument("--both-ways", action="store_true")
    parser.add_argument("--seconds", default="2,6,4", help="before, during, after")
    parser.add_argument("--csv", default="")
    parser.add_argument("--load", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.load:
        load([int(word) for word in asked.load.split(",")])
        return
    ends = bench_copy.parse_pair(asked.pair)
    sizes = [parse_bytes(word) for word in asked.sizes.split(",")]
    task = {"pair": ends, "topology": "", "masks": [], "sizes": sizes, "seed": 1}
    pair = bench_copy.Pair(task)
    way = "both ways" if asked.both_ways else "one way"
    kinds = {size: kinds_of(pair, size, way) for size in sizes}
    for size in sizes:
        said = host_us_a_call(pair, size, kinds[size], way)
        print(f"# {size} bytes: host us a call: {said}", flush=True)
    rows = []
    for name, seconds in zip(PHASES, map(float, asked.seconds.split(",")), strict=True):
        loader = Load(list(ends)) if name == "during" else None
        rows += phase_rows(pair, kinds, way, name, seconds)
        if loader is not None:
            print(f"# the load copied {loader.end()} GB/s, all ways together", flush=True)
    result_rows.show(rows)
    if asked.csv:
        result_rows.keep(asked.csv, rows)
    pair.close()


if __name__ == "__main__":
    main()
