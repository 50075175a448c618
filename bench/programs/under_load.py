"""Times large calls while another process loads PCIe, with and without a share through the host.

In the middle phase a child process copies between pinned host memory and these GPUs, in both
directions at once. In every phase rounds of a few calls take turns, so that all three kinds meet
the same load: `corrected` is plait's own correction of the share, `direct` uses the links alone,
`fixed` keeps the share that is best with PCIe idle. Every sum is checked. Prints GB/s of each kind
(of each direction, or busbw), corrected over direct, and the worst round of corrected.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import plait
from bench.lib import jobs, rows, variants
from plait import gpu
from plait.bench import copies as bench_copy
from plait.bench.links import address_of
from plait.bench.sizes import parse_bytes

PHASES = ("before", "during", "after")
ROUND = 6  # calls of a kind in a row
LOAD_BYTES = 64 << 20


def load(ordinals: list[int]) -> None:
    """Copies in both directions between host memory and these GPUs until standard input ends."""
    areas, work = [], []
    for ordinal in ordinals:
        device = gpu.Gpu(ordinal)
        for is_out in (True, False):
            area = mmap.mmap(-1, LOAD_BYTES)
            device.pin(address_of(area), LOAD_BYTES)
            areas.append(area)
            ends = (address_of(area), device.allocate(LOAD_BYTES))
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


class PcieLoad:
    """A child process that loads PCIe as long as this object lives."""

    def __init__(self, ordinals: list[int]) -> None:
        words = [*jobs.BENCH, "under-load", "--load", ",".join(map(str, ordinals))]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        if self.child.stdout is None or self.child.stdout.readline().strip() != "loading":
            raise RuntimeError("the process that loads PCIe did not start")

    def end(self) -> str:
        """Ends the load, and returns the GB/s that it copied, all directions together."""
        return self.child.communicate("", timeout=30)[0].strip()


class CopyWork:
    """plait.copy between two GPUs of this process. `fixed`: the planner's first share."""

    prints = True

    def __init__(self, pair: tuple[int, int], sizes: list[int], both_ways: bool) -> None:
        self.gpus, self.direction = list(pair), bench_copy.WAYS[both_ways]
        task = {"pair": pair, "topology": "", "masks": [], "sizes": sizes, "seed": 1}
        self.pair = bench_copy.GpuPair(task)
        self.kinds = {size: self._kinds(size) for size in sizes}
        for size in sizes:
            print(f"# {size} bytes: host us a call: {self._host_us(size)}", flush=True)

    def _planned(self, size: int) -> plait.Plan:
        src, dst = self.gpus
        return self.pair.copier.plan_for(dst, src, size, self.direction != "one way", {})

    def _kinds(self, size: int) -> dict[str, dict[str, int]]:
        plan = self._planned(size)
        fixed = {"host_permille": round(1000 * bench_copy.route_shares(plan).get("host", 0.0))}
        if sum(plan.ring_bytes) > 0:
            fixed["chunk_kib"] = plan.ring_bytes[0] // 4 >> 10
        return {"corrected": {}, "direct": {"host_permille": 0}, "fixed": fixed}

    def _host_us(self, size: int) -> str:
        """Returns the median us that the host takes to enqueue on idle streams, kinds in turn."""

        def enqueued_us(kind: str) -> float:
            self.pair.wait()
            start = time.perf_counter()
            self.pair.enqueue(size, self.direction, self.kinds[size][kind], 0)
            return 1e6 * (time.perf_counter() - start)

        calls = {kind: partial(enqueued_us, kind) for kind in self.kinds[size]}
        took = variants.medians(variants.taken(calls, 50, 10))  # plans and rings are made by then
        return ", ".join(f"{kind} {us:.1f}" for kind, us in took.items())

    def going(self, end: float) -> bool:
        """True while time is left."""
        return time.perf_counter() < end

    def moved(self, size: int) -> int:
        """Returns the bytes of a call that count."""
        return size

    def round(self, size: int, kind: str) -> float:
        """Returns the seconds of ROUND calls."""
        self.pair.wait()
        start = time.perf_counter()
        for _ in range(ROUND):
            self.pair.enqueue(size, self.direction, self.kinds[size][kind], 0)
        self.pair.wait()
        return time.perf_counter() - start

    def facts(self, size: int) -> dict[str, Any]:
        """Returns further columns of a row."""
        share = bench_copy.route_shares(self._planned(size)).get("host", 0.0)
        return {"way": self.direction, "host_permille_at_end": round(1000 * share, 1)}

    def barrier(self) -> None:
        """Does nothing: copies have one process."""

    def close(self) -> None:
        self.pair.close()


class ReduceWork:
    """all_reduces of a torchrun job: two ranks use copy engines, more use kernels."""

    def __init__(self, sizes: list[int]) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("gloo")
        self.comm = plait.init()
        rank, ranks = self.comm.rank, self.comm.ranks
        self.gpus, self.prints = list(range(ranks)), rank == 0
        engine, best = ("copy_exchange", 90) if ranks == 2 else ("tiled", 180)
        params = {"corrected": {}, "direct": {"host_permille": 0}, "fixed": {"host_permille": best}}
        self.engine, self.kinds = engine, dict.fromkeys(sizes, params)
        self.data = {}
        for size in sizes:
            drawn = [self._draw(size, of) for of in range(ranks)]
            self.data[size] = (
                drawn[rank],
                self.torch.empty_like(drawn[0]),
                sum(drawn[1:], drawn[0]),
            )

    def _draw(self, size: int, rank: int) -> Any:
        source = self.torch.Generator(device="cuda").manual_seed(1000 + rank)
        return self.torch.randn(size // 4, device="cuda", generator=source)

    def going(self, end: float) -> bool:
        """True while time is left by rank 0's clock."""
        going = self.torch.tensor(float(time.perf_counter() < end))
        self.dist.broadcast(going, 0)
        return bool(going)

    def moved(self, size: int) -> int:
        return size * 2 * (self.comm.ranks - 1) // self.comm.ranks

    def round(self, size: int, kind: str) -> float:
        """Returns the seconds of ROUND calls on the slowest rank. Raises RuntimeError for a wrong
        result."""
        torch, (source, output, expected) = self.torch, self.data[size]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        output.fill_(float("nan"))
        torch.cuda.synchronize()
        self.dist.barrier()
        begin.record()
        for _ in range(ROUND):
            params = self.kinds[size][kind]
            self.comm.all_reduce(source, out=output, strategy=self.engine, params=params)
        end.record()
        end.synchronize()
        self.comm.check()
        if not torch.equal(output, expected):
            raise RuntimeError(f"wrong sum of {size} bytes, {kind}")
        took = torch.tensor(begin.elapsed_time(end) / 1e3, dtype=torch.float64)
        self.dist.all_reduce(took, op=self.dist.ReduceOp.MAX)
        return float(took)

    def facts(self, size: int) -> dict[str, Any]:
        return {}

    def barrier(self) -> None:
        self.dist.barrier()

    def close(self) -> None:
        del self.comm
        self.dist.destroy_process_group()


def phase_rows(work: CopyWork | ReduceWork, name: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Yields the rows of a phase: rounds of all kinds and sizes in turn for `seconds`."""
    took: dict[tuple[int, str], list[float]] = {}
    end = time.perf_counter() + seconds
    while work.going(end):
        for size, kinds in work.kinds.items():
            for kind in kinds:
                took.setdefault((size, kind), []).append(work.round(size, kind))
    for size, kinds in work.kinds.items():

        def speed(seconds: float, rounds: int = 1, moved: int = work.moved(size)) -> float:
            return ROUND * rounds * moved / seconds / 1e9

        speeds = {kind: speed(sum(took[size, kind]), len(took[size, kind])) for kind in kinds}
        corrected = took[size, "corrected"]
        yield (
            {"phase": name, "bytes": size}
            | {f"{kind}_gb_per_s": round(one, 1) for kind, one in speeds.items()}
            | {
                "beside_direct": round(speeds["corrected"] / speeds["direct"], 4),
                "worst_round_gb_per_s": round(speed(max(corrected)), 1),
                "calls_of_each": ROUND * len(corrected),
                "first_rounds_gb_per_s": " ".join(f"{speed(one):.0f}" for one in corrected[:8]),
            }
            | work.facts(size)
        )


def run(given: SimpleNamespace) -> None:
    """Runs three phases, prints the table, and writes the file if one is named."""
    if given.load:
        load([int(word) for word in given.load.split(",")])
        return
    sizes = [parse_bytes(word) for word in given.sizes.split(",")]
    work: CopyWork | ReduceWork
    if "RANK" in os.environ:
        work = ReduceWork(sizes)
    else:
        work = CopyWork(bench_copy.parse_pair(given.pair), sizes, given.both_ways)
    found: list[dict[str, Any]] = []
    for name, seconds in zip(PHASES, map(float, given.seconds.split(",")), strict=True):
        loader = PcieLoad(work.gpus) if name == "during" and work.prints else None
        work.barrier()
        found += phase_rows(work, name, seconds)
        if loader is not None:
            print(f"# the load copied {loader.end()} GB/s, all ways together", flush=True)
    work.close()
    if work.prints:
        rows.show(found)
        rows.keep(given.csv, found)
