"""`plait bench copy --pair 0:1`: a message over every path at once, in a single process.

Copies in a single direction and in both at once are checked on random data with poisoned outputs,
and timed on memory that no cache holds. Compared with the pair's short path (the link, or host
memory without a link) and, with --against nccl, NCCL's send and receive. --interference measures
how relaying slows down a relay GPU's work on local memory.
"""

from __future__ import annotations

import mmap
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import plait
from plait import gpu, outputs
from plait.bench.links import address_of
from plait.bench.nccl import NcclPair
from plait.copies import copies

BUFFER_BYTES = 1 << 30  # offsets rotate through the buffer, so that no copy hits a cache
PERIOD = 16_777_259  # prime: period of the random bytes
GUARD = 256  # bytes behind each output that must stay untouched
TIMED_S = 0.15  # s a figure, at most (and at least one copy)
WAYS = ("one way", "both ways")
SHARE_NAMES = {
    "host": "host_permille",
    "relay": "relay_permille",
    "gpu": "relay",
    "chunk_kib": "chunk_kib",
    "lanes": "lanes",
    "batch": "batch",
}
FIELDS = ("bytes", "way", "paths", "alone_us", "in_row_us", "gb_per_s", "short_gb_per_s", "wrong")
NCCL_FIELDS = ("nccl_alone_us", "nccl_in_row_us", "nccl_gb_per_s", "nccl_wrong", "nccl_ratio")
Params = dict[str, int] | None  # parameters of plait.copy; None = NCCL


def parse_pair(text: str) -> tuple[int, int]:
    """Parses '0:1' as (0, 1): from GPU 0 to GPU 1."""
    try:
        src, dst = (int(word) for word in text.split(":"))
    except ValueError:
        src = dst = -1
    if src < 0 or dst < 0 or src == dst:
        raise plait.InvalidArgumentError(
            f"--pair: wanted two GPUs such as 0:1 (from 0 to 1), found {text!r}"
        )
    return src, dst


def parse_shares(text: str) -> dict[str, int]:
    """Parses 'host=110,relay=200,gpu=2' (thousandths) as parameters of strategy striped."""
    params = {}
    for word in filter(None, text.split(",")):
        name, _, value = word.partition("=")
        if name not in SHARE_NAMES or not value.lstrip("-").isdigit():
            raise plait.InvalidArgumentError(
                f"--shares: wanted {', '.join(f'{one}=N' for one in SHARE_NAMES)} by commas "
                f"(thousandths of the message), found {word!r}"
            )
        params[SHARE_NAMES[name]] = int(value)
    return params


def route_shares(plan: plait.Plan) -> dict[str, float]:
    """Returns each route's fraction of the message, in the order of the plan's stripes."""
    total = plan.request.message_bytes() or 1
    parts: dict[str, int] = {}
    for route, _, size in plan.stripes:
        parts[route] = parts.get(route, 0) + size
    return {route: size / total for route, size in parts.items()}


def paths_text(plan: plait.Plan) -> str:
    """Returns the shares as text: 'nvlink 89.1 % + host 10.9 %'."""
    return " + ".join(f"{route} {100 * part:.1f} %" for route, part in route_shares(plan).items())


class GpuBuffers:
    """A GPU of the pair: buffers, stream and expected contents."""

    def __init__(self, ordinal: int, size: int, seed: int) -> None:
        self.gpu = gpu.Gpu(ordinal)
        self.size = size
        self.input = self.gpu.allocate(size + GUARD)
        self.output = self.gpu.allocate(size + GUARD)
        self.stream = self.gpu.make_stream()
        generator = np.random.Generator(np.random.SFC64(seed))
        self.base = generator.integers(0, 256, PERIOD, dtype=np.uint8)
        for at in range(0, size, PERIOD):
            part = self.base[: min(PERIOD, size - at)]
            self.gpu.copy(self.input + at, part.ctypes.data, part.nbytes)

    def close(self) -> None:
        self.gpu.synchronize(self.stream)
        self.gpu.end_stream(self.stream)
        self.gpu.release(self.input)
        self.gpu.release(self.output)

    def input_bytes(self, lo: int, hi: int) -> np.ndarray[Any, Any]:
        """Returns bytes lo..hi of the input, as loaded."""
        start = lo % PERIOD
        rounds = (start + hi - lo + PERIOD - 1) // PERIOD
        return np.tile(self.base, rounds)[start : start + hi - lo]

    def poison(self, offset: int, size: int) -> None:
        self.gpu.fill(self.output + offset, 0xAB, size + GUARD, self.stream)


class GpuPair:
    """Two GPUs of this process, and copies between them."""

    def __init__(self, task: dict[str, Any]) -> None:
        src, dst = task["pair"]
        found = gpu.count()
        if max(src, dst) >= found:
            why = gpu.why_none() or f"they are numbered 0 to {found - 1}"
            raise plait.NoDeviceError(f"wanted GPUs {src} and {dst}, found {found}: {why}")
        self.task = task
        self.nccl = NcclPair((src, dst)) if task.get("against") else None
        self.copier = copies(task["topology"], task["masks"])
        size = max(BUFFER_BYTES, max(task["sizes"]))
        self.src, self.dst = (
            GpuBuffers(src, size, task["seed"]),
            GpuBuffers(dst, size, task["seed"] + 1),
        )
        self.area = mmap.mmap(-1, 64 << 20)
        self.dst.gpu.pin(address_of(self.area), 64 << 20)

    def close(self) -> None:
        self.wait()
        if self.nccl is not None:
            self.nccl.leave()
        self.dst.gpu.unpin(address_of(self.area))
        self.src.close()
        self.dst.close()

    def wait(self) -> None:
        for side in (self.src, self.dst):
            side.gpu.synchronize(side.stream)

    def enqueue(self, size: int, way: str, params: Params, offset: int) -> None:
        """Enqueues a copy src -> dst, or a copy each way."""
        src, dst = self.src, self.dst
        if params is None:
            assert self.nccl is not None
            moves = [(0, src.input + offset, dst.output + offset)]
            if way != "one way":
                moves.append((1, dst.input + offset, src.output + offset))
            self.nccl.copy(moves, size, (src.stream, dst.stream))
            return
        if way == "one way":
            self.copier.copy(
                dst.output + offset, src.input + offset, size, dst.stream, src.stream, params
            )
            return
        here, there = (
            [side.output + offset, side.input + offset, side.stream] for side in (src, dst)
        )
        self.copier.exchange(here, there, size, params)

    def offsets(self, size: int) -> Iterator[int]:
        """Yields offsets in the buffers, rotating, each different from the last."""
        step = (size + 4095) // 4096 * 4096
        while True:
            yield from range(0, max(self.src.size - size, 0) + 1, max(step, 4096))

    def wrong(self, size: int, way: str, params: Params) -> int:
        """Makes a call with poisoned outputs; returns the number of wrong bytes."""
        pairs = [(self.src, self.dst)] + ([(self.dst, self.src)] if way != "one way" else [])
        offset = min(self.src.size - size, 4099)  # an odd alignment if possible
        for _, target in pairs:
            target.poison(offset, size)
        self.enqueue(size, way, params, offset)
        self.wait()
        return sum(self._compare(source, target, offset, size) for source, target in pairs)

    def _compare(self, source: GpuBuffers, target: GpuBuffers, offset: int, size: int) -> int:
        wrong, step = 0, 64 << 20
        area = np.frombuffer(self.area, np.uint8)
        for at in range(0, size + GUARD, step):
            count = min(step, size + GUARD - at)
            target.gpu.copy(area.ctypes.data, target.output + offset + at, count)
            inside = max(0, min(count, size - at))
            expected = source.input_bytes(offset + at, offset + at + inside)
            if not np.array_equal(area[:inside], expected):
                wrong += int(np.sum(area[:inside] != expected))
            wrong += int(np.sum(area[inside:count] != 0xAB))
        return wrong

    def seconds(self, size: int, way: str, params: Params, iters: int) -> list[float]:
        """Returns median s of (a copy that the host waits for, a copy in a row of several)."""
        offset = self.offsets(size)

        def timed(times: int) -> float:
            self.wait()
            start = time.perf_counter()
            for _ in range(times):
                self.enqueue(size, way, params, next(offset))
            self.wait()
            return (time.perf_counter() - start) / times

        timed(2)
        one = timed(1)
        times = max(3, min(iters, int(TIMED_S / max(one, 1e-9))))
        alone = statistics.median(timed(1) for _ in range(times))
        in_row = max(2, min(10 * iters, int(TIMED_S / 3 / max(alone, 1e-9))))
        return [alone, statistics.median(timed(in_row) for _ in range(3))]


def bench(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the facts of the run, then a row for each size and direction."""
    pair = GpuPair(task)
    try:
        facts = {"gpu": pair.src.gpu.name, "driver": gpu.driver_version(), "gpus": gpu.count()}
        if pair.nccl is not None:
            facts |= {"nccl": pair.nccl.version, "library": pair.nccl.path}
        yield facts
        if task["interference"]:
            yield from interference(pair)
            return
        for size in task["sizes"]:
            for way in WAYS:
                yield _row(pair, size, way)
    finally:
        pair.close()


def _row(pair: GpuPair, size: int, way: str) -> dict[str, Any]:
    task = pair.task
    src, dst = task["pair"]
    both = way != "one way"
    planned = paths_text(pair.copier.plan_for(dst, src, size, both, task["params"]))
    figures = _figures(pair, size, way, task["params"])
    # The host share adapts to copy times: report the share in use now.
    paths = paths_text(pair.copier.plan_for(dst, src, size, both, task["params"]))
    shown = paths if paths == planned else f"{paths} (began as {planned})"
    row: dict[str, Any] = {"bytes": size, "way": way, "paths": shown, **figures}
    short = min(pair.seconds(size, way, short_path(pair, size), task["iters"]))
    row["short_gb_per_s"] = size / short / 1e9
    if pair.nccl is not None:
        by_nccl = _figures(pair, size, way, None)
        row |= {f"nccl_{name}": value for name, value in by_nccl.items()}
        row["nccl_ratio"] = row["gb_per_s"] / by_nccl["gb_per_s"]
    return row


def _figures(pair: GpuPair, size: int, way: str, params: Params) -> dict[str, float]:
    """Returns times, best GB/s of each direction, and wrong bytes before and after timing."""
    wrong = pair.wrong(size, way, params) if pair.task["check"] else 0
    alone, in_row = pair.seconds(size, way, params, pair.task["iters"])
    if pair.task["check"]:
        wrong += pair.wrong(size, way, params)
    gb_per_s = size / min(alone, in_row) / 1e9
    return {
        "alone_us": alone * 1e6,
        "in_row_us": in_row * 1e6,
        "gb_per_s": gb_per_s,
        "wrong": wrong,
    }


def short_path(pair: GpuPair, size: int) -> dict[str, int]:
    """Returns params for the pair's link alone, or host memory alone without a link."""
    src, dst = pair.task["pair"]
    try:
        pair.copier.plan_for(dst, src, size, False, {"host_permille": 0})
    except plait.UnsupportedError:
        return {"host_permille": 1000}
    return {"host_permille": 0}


def interference(pair: GpuPair) -> Iterator[dict[str, Any]]:
    """Yields the slowdown of a relay GPU's triad while relaying, and of the copies."""
    src, dst = pair.task["pair"]
    route = next((one for one in range(gpu.count()) if one not in (src, dst)), None)
    if route is None:
        raise plait.NoDeviceError(
            f"wanted a third GPU to relay from {src} to {dst}, found {gpu.count()} GPUs"
        )
    from plait._core import Triad

    size = max(pair.task["sizes"])
    params = {"relay_permille": 1000, "relay": route, **pair.task["params"]}
    device, triad = gpu.Gpu(route), Triad(route, 1 << 29)
    stream = device.make_stream()
    begin, end = device.make_event(), device.make_event()

    def triad_s(rounds: int) -> float:
        device.record(begin, stream)
        triad.enqueue(rounds, stream)
        device.record(end, stream)
        return device.elapsed_s(begin, end) / rounds

    triad_s(4)
    rounds = max(8, int(0.1 / triad_s(20)))
    marks = [pair.src.gpu.make_event() for _ in range(2)]
    for way in WAYS:
        copy_s = pair.seconds(size, way, params, pair.task["iters"])[1]
        alone = statistics.median(triad_s(rounds) for _ in range(3))
        beside, copy_beside_s = [], []
        for _ in range(3):
            pair.wait()
            device.record(begin, stream)
            triad.enqueue(rounds, stream)
            device.record(end, stream)
            start, count = time.perf_counter(), 0
            while not device.is_done(stream):  # copies until the triad ends, two in flight
                if count >= 2:
                    pair.src.gpu.elapsed_s(marks[count % 2], marks[count % 2])
                pair.enqueue(size, way, params, 0)
                pair.src.gpu.record(marks[count % 2], pair.src.stream)
                count += 1
            pair.wait()
            copy_beside_s.append((time.perf_counter() - start) / max(count, 1))
            beside.append(device.elapsed_s(begin, end) / rounds)
        slow = statistics.median(beside)
        yield {
            "bytes": size,
            "way": way,
            "paths": f"relay:{route} 100.0 %",
            "gb_per_s": size / copy_s / 1e9,
            "gb_per_s_beside": size / statistics.median(copy_beside_s) / 1e9,
            "triad_gb_per_s": triad.bytes_per_round / alone / 1e9,
            "triad_gb_per_s_beside": triad.bytes_per_round / slow / 1e9,
            "triad_slower_percent": 100 * (slow / alone - 1),
        }
    device.synchronize(stream)


def header(facts: dict[str, Any], task: dict[str, Any]) -> str:
    """Returns the head of a table: machine, run and columns."""
    src, dst = task["pair"]
    first = (
        f"# plait {plait.__version__}, copies {src}>{dst} of one process, {facts['gpus']} x "
        f"{facts['gpu']}, CUDA driver {facts['driver']}; GB/s of each direction; cold buffers"
    )
    if task["masks"]:
        first += f"; without {', '.join(task['masks'])}"
    if task["interference"]:
        return first
    beside = ""
    if facts.get("nccl"):
        first += f"; NCCL {facts['nccl']} ({facts['library']})"
        beside = f" | {'NCCL us':>10} {'in a row':>10} {'GB/s':>7} {'#wrong':>6} {'x':>6}"
    return (
        f"{first}\n#{'bytes':>11} {'way':>10} {'alone us':>10} {'in a row':>10} {'GB/s':>7} "
        f"{'short':>7} {'x':>6} {'#wrong':>6}{beside}  paths"
    )


def line(row: dict[str, Any]) -> str:
    """Returns a row as text."""
    if "triad_gb_per_s" in row:
        return (
            f"{row['bytes']:>12} {row['way']:>10}: {row['paths']}, copies {row['gb_per_s']:.1f} "
            f"GB/s alone, {row['gb_per_s_beside']:.1f} beside; triad on the relay GPU "
            f"{row['triad_gb_per_s']:.0f} GB/s alone, {row['triad_gb_per_s_beside']:.0f} beside: "
            f"{row['triad_slower_percent']:.1f} % slower"
        )
    times = row["gb_per_s"] / row["short_gb_per_s"]
    return (
        f"{row['bytes']:>12} {row['way']:>10} {row['alone_us']:>10.1f} {row['in_row_us']:>10.1f} "
        f"{row['gb_per_s']:>7.1f} {row['short_gb_per_s']:>7.1f} {times:>6.3f} {row['wrong']:>6}"
        f"{_nccl_part(row)}  {row['paths']}"
    )


def _nccl_part(row: dict[str, Any]) -> str:
    if "nccl_ratio" not in row:
        return ""
    return (
        f" | {row['nccl_alone_us']:>10.1f} {row['nccl_in_row_us']:>10.1f} "
        f"{row['nccl_gb_per_s']:>7.1f} {row['nccl_wrong']:>6} {row['nccl_ratio']:>6.3f}"
    )


def write_csv(file: str, facts: dict[str, Any], task: dict[str, Any], rows: list[Any]) -> None:
    """Writes the rows, with machine and run in comment lines."""
    said = facts | {"pair": "{}:{}".format(*task["pair"]), "without": " ".join(task["masks"])}
    fields = FIELDS + (NCCL_FIELDS if task.get("against") else ())
    if rows and "wrong" not in rows[0]:  # rows of --interference
        fields = tuple(rows[0])
    outputs.write_csv(file, said, fields, rows)
