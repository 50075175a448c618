"""`plait topo --measure`: bandwidth of this machine's GPU links, alone and together.

Copy engines copy between every pair of GPUs, over pinned host memory, and along relay and host
paths through a small ring. Each path is measured alone, both ways, with all GPUs at once, and with
all paths of a pair at once (cut as by plait.copy). Results are a table and a topology that any
command takes (-T FILE, PLAIT_TOPOLOGY).
"""

from __future__ import annotations

import datetime
import itertools
import json
import mmap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import plait
from plait import gpu
from plait.copies import copies
from plait.outputs import provenance

COPY_BYTES = 256 << 20  # per copy; long enough to hide the start
TIMED_S = 0.06  # s a figure, at least
CHUNK_BYTES, SLOTS = 2 << 20, 4  # of the ring: its 8 MiB stay in the last-level cache

Enqueue = Callable[[int], None]  # enqueues n copies


@dataclass(frozen=True)
class LinkRate:
    """One bandwidth. path: plait's name; how: alone, both ways, all together."""

    path: str
    how: str
    gb_per_s: float


class GpuMachine:
    """This machine's GPUs, driven by a single process: buffers, streams and pinned host memory."""

    def __init__(self) -> None:
        count = gpu.count()
        if count == 0:
            raise plait.NoDeviceError(f"wanted GPUs to measure, found none: {gpu.why_none()}")
        self.gpus = [gpu.Gpu(ordinal) for ordinal in range(count)]
        self.sources = [one.allocate(COPY_BYTES) for one in self.gpus]
        self.targets = [one.allocate(COPY_BYTES) for one in self.gpus]
        self.streams = [[one.make_stream() for _ in range(4)] for one in self.gpus]
        self.host = [mmap.mmap(-1, 2 * COPY_BYTES) for _ in self.gpus]
        self.pinned = [address_of(area) for area in self.host]
        for one, area in zip(self.gpus, self.pinned, strict=True):
            one.pin(area, 2 * COPY_BYTES)
        self.events = [[one.make_event() for _ in range(2 * SLOTS)] for one in self.gpus]
        self.reach = {
            (a, b): self.gpus[a].can_reach(self.gpus[b])
            for a, b in itertools.permutations(range(count), 2)
        }
        for (a, b), can in self.reach.items():
            if can:
                self.gpus[a].enable_peer(self.gpus[b])

    def close(self) -> None:
        """Frees all memory."""
        for number, one in enumerate(self.gpus):
            one.unpin(self.pinned[number])
            one.release(self.sources[number])
            one.release(self.targets[number])
            for stream in self.streams[number]:
                one.end_stream(stream)
            for event in self.events[number]:
                one.end_event(event)

    def wait(self) -> None:
        for one, streams in zip(self.gpus, self.streams, strict=True):
            for stream in streams:
                one.synchronize(stream)

    def gb_per_s(self, transfers: list[Enqueue]) -> float:
        """Returns the total GB/s of concurrent transfers of COPY_BYTES a copy."""
        repeats = 1
        while True:
            self.wait()
            start = time.perf_counter()
            for enqueue in transfers:
                enqueue(repeats)
            self.wait()
            elapsed_s = time.perf_counter() - start
            if elapsed_s >= TIMED_S:
                return len(transfers) * repeats * COPY_BYTES / elapsed_s / 1e9
            repeats = max(repeats * 2, int(repeats * TIMED_S * 1.2 / max(elapsed_s, 1e-6)))

    def _copies(self, on: int, stream: int, dst: int, src: int) -> Enqueue:
        """Returns a transfer: copies of COPY_BYTES by GPU `on`, on a stream of that GPU."""

        def enqueue(times: int) -> None:
            for _ in range(times):
                self.gpus[on].copy_async(dst, src, COPY_BYTES, self.streams[on][stream])

        return enqueue

    def direct(self, src: int, dst: int) -> Enqueue:
        return self._copies(src, 0, self.targets[dst], self.sources[src])

    def up(self, src: int) -> Enqueue:
        return self._copies(src, 1, self.pinned[src], self.sources[src])

    def down(self, dst: int) -> Enqueue:
        return self._copies(dst, 2, self.targets[dst], self.pinned[dst] + COPY_BYTES)

    def through(self, src: int, dst: int, middle: int | None) -> Enqueue:
        """Returns a transfer of chunks from src through a ring in host memory or GPU `middle` to
        dst.

        A slot is free for the next chunk once the last chunk has left, as in a plan.
        """
        ring = self.pinned[src] if middle is None else self.targets[middle]
        came, gone = self.events[src][:SLOTS], self.events[dst][SLOTS:]
        in_stream, out_stream = self.streams[src][1], self.streams[dst][2]
        first, last = self.gpus[src], self.gpus[dst]

        def enqueue(times: int) -> None:
            for chunk in range(times * (COPY_BYTES // CHUNK_BYTES)):
                slot = chunk % SLOTS
                at = chunk * CHUNK_BYTES % COPY_BYTES
                if chunk >= SLOTS:
                    first.wait_event(in_stream, gone[slot])
                first.copy_async(
                    ring + slot * CHUNK_BYTES, self.sources[src] + at, CHUNK_BYTES, in_stream
                )
                first.record(came[slot], in_stream)
                last.wait_event(out_stream, came[slot])
                last.copy_async(
                    self.targets[dst] + at, ring + slot * CHUNK_BYTES, CHUNK_BYTES, out_stream
                )
                last.record(gone[slot], out_stream)

        return enqueue

    def every_path(self, src: int, dst: int, without: tuple[str, ...] = ()) -> Enqueue:
        """Returns a transfer over all paths of the pair, with the shares of plait.copy."""
        by_paths = copies("", without)

        def enqueue(times: int) -> None:
            for _ in range(times):
                by_paths.copy(
                    self.targets[dst],
                    self.sources[src],
                    COPY_BYTES,
                    self.streams[dst][3],
                    self.streams[src][3],
                )

        return enqueue

    def every_path_both_ways(self, one: int, other: int) -> Enqueue:
        """Returns a transfer of half the bytes each way."""
        by_paths = copies()
        sides = [[self.targets[n], self.sources[n], self.streams[n][3]] for n in (one, other)]

        def enqueue(times: int) -> None:
            for _ in range(times):
                by_paths.exchange(sides[0], sides[1], COPY_BYTES // 2)

        return enqueue


def address_of(area: mmap.mmap) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def _cases(node: GpuMachine) -> Iterator[tuple[str, str, list[Enqueue]]]:
    """Yields (path, how, concurrent transfers)."""
    count = len(node.gpus)
    pairs = [pair for pair, can in node.reach.items() if can]
    for a, b in pairs:
        yield f"nvlink:{a}>{b}", "alone", [node.direct(a, b)]
    for a, b in pairs:
        if a < b:
            yield f"nvlink:{a}-{b}", "both ways", [node.direct(a, b), node.direct(b, a)]
    for a in range(count):
        yield f"host:{a}>numa", "alone", [node.up(a)]
        yield f"host:numa>{a}", "alone", [node.down(a)]
        yield f"host:{a}-numa", "both ways", [node.up(a), node.down(a)]
    if count < 2:
        return
    everyone = range(count)
    if len(pairs) == count * (count - 1):
        ring = [node.direct(a, (a + 1) % count) for a in everyone]
        yield "nvlink", "all together", ring
    yield "host up", "all together", [node.up(a) for a in everyone]
    yield "host down", "all together", [node.down(a) for a in everyone]
    yield (
        "host up and down",
        "all together",
        [way for a in everyone for way in (node.up(a), node.down(a))],
    )
    yield "host:0>numa>1", "ring of 8 MiB", [node.through(0, 1, None)]
    if node.reach[0, 1]:
        yield (
            "nvlink:0>1 + host:0>numa>1",
            "together, equal bytes",
            [node.direct(0, 1), node.through(0, 1, None)],
        )
    if count > 2 and node.reach[0, 2] and node.reach[2, 1]:
        yield "relay:0>2>1", "alone", [node.through(0, 1, 2)]
    for a, b in pairs:
        if a < b:
            yield f"{a}>{b}", "every path", [node.every_path(a, b)]
            yield f"{a}-{b}", "every path, both ways", [node.every_path_both_ways(a, b)]
    if node.reach[0, 1]:
        masked = node.every_path(0, 1, ("nvlink:0-1",))
        yield "0>1 without nvlink:0-1", "every path", [masked]


def measure(progress: Callable[[int, int], None] | None = None) -> list[LinkRate]:
    """Measures all links of this machine; some seconds for 8 GPUs. progress(done, of)."""
    node = GpuMachine()
    try:
        cases = list(_cases(node))
        rows = []
        for number, (path, how, transfers) in enumerate(cases):
            node.gb_per_s(transfers)  # the first use of a path sets it up
            rows.append(LinkRate(path, how, node.gb_per_s(transfers)))
            if progress is not None:
                progress(number + 1, len(cases))
        return rows
    finally:
        node.wait()
        node.close()


def _figure(rows: list[LinkRate], path: str, how: str) -> float | None:
    return next((row.gb_per_s for row in rows if (row.path, row.how) == (path, how)), None)


def measured_topology(topology: plait.Topology, rows: list[LinkRate]) -> plait.Topology:
    """Returns the topology with measured bandwidths.

    A link gets the bandwidth of a copy alone. A shared resource (PCIe of a GPU, host memory) gets
    the total of all users together.
    """
    facts = json.loads(topology.to_json())
    gpus = sum(device["name"].startswith("gpu") for device in facts["devices"])
    names: dict[str, float] = {}
    for number in range(gpus):
        for resource, path, how in (
            ("up", f"host:{number}>numa", "alone"),
            ("down", f"host:numa>{number}", "alone"),
            ("both", f"host:{number}-numa", "both ways"),
        ):
            if (found := _figure(rows, path, how)) is not None:
                names[f"gpu{number}.host.{resource}"] = found
    for resource, path in (
        ("numa0.dram.write", "host up"),
        ("numa0.dram.read", "host down"),
        ("numa0.dram", "host up and down"),
    ):
        found = _figure(rows, path, "all together")
        # One or two GPUs do not saturate host memory: keep the given figure.
        if found is not None and gpus > 2:
            names[resource] = found
    for resource in facts["resources"]:
        if resource["name"] in names:
            resource["gb_per_s"] = round(names[resource["name"]], 1)
    _set_links(facts, rows)
    now = datetime.datetime.now(datetime.timezone.utc)
    facts["source"] = f"measured by plait {plait.__version__} on {now:%Y-%m-%d}"
    return plait.Topology.from_json(json.dumps(facts))


def _set_links(facts: dict[str, Any], rows: list[LinkRate]) -> None:
    def number_of(device: str) -> str:
        return device.removeprefix("gpu") if device.startswith("gpu") else "numa"

    alone = {row.path: row.gb_per_s for row in rows if row.how == "alone"}
    ports: dict[str, float] = {}  # a switch port has the bandwidth of the fastest link
    for link in facts["links"]:
        src, dst = number_of(link["src"]), number_of(link["dst"])
        kind = "host" if "numa" in (src, dst) else "nvlink"
        if (found := alone.get(f"{kind}:{src}>{dst}")) is None:
            continue
        link["gb_per_s"] = round(found, 1)
        for resource in link["resources"]:
            if kind == "nvlink":
                ports[resource] = max(ports.get(resource, 0.0), link["gb_per_s"])
    for resource in facts["resources"]:
        resource["gb_per_s"] = ports.get(resource["name"], resource["gb_per_s"])


def as_json(topology: plait.Topology, rows: list[LinkRate]) -> str:
    """Returns JSON of the rates, the machine, and the topology made of both."""
    facts = provenance(topology) | {
        "gpus": [gpu.Gpu(ordinal).name for ordinal in range(gpu.count())],
        "measured": [asdict(row) for row in rows],
        "topology": json.loads(measured_topology(topology, rows).to_json()),
    }
    return json.dumps(facts, indent=1)
