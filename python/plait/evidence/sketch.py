"""Hand-written plans that plait does not propose: algorithms of other libraries, raw link tests.

A Sketch collects lanes of ops and makes a Plan for the simulator.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import plait

Region = tuple[str, int, int, int]  # space, place, offset, bytes
Event = tuple[tuple[int, int, int], int]  # flag (owner, writer, index), value

COPY_ENGINE, KERNEL, CPU = "copy_engine", "kernel", "cpu"


@dataclass
class Sketch:
    """Builder of a plan. name: its label."""

    topology: plait.Topology
    request: plait.Request
    name: str
    kernel: str = ""
    relay_devices: list[int] = field(default_factory=list)
    paths: list[dict[str, Any]] = field(default_factory=list)
    lanes: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)
    words: dict[tuple[int, str, int], Event] = field(default_factory=dict)
    word_count: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.request = self.request.checked(self.topology)

    def device(self, rank: int) -> int:
        return self.request.devices[rank]

    def ops(self, rank: int, kind: str, lane: str) -> list[dict[str, Any]]:
        found = self.lanes.setdefault(
            (rank, lane), {"rank": rank, "kind": kind, "name": lane, "ops": []}
        )
        return found["ops"]

    def path(self, name: str) -> int:
        """Returns the index of a named path, added at first use."""
        for index, path in enumerate(self.paths):
            if path["name"] == name:
                return index
        found = self.topology.path(name)
        self.paths.append(
            {
                "name": found.name,
                "kind": found.name.split(":")[0],
                "devices": list(found.devices),
                "links": list(found.links),
            }
        )
        return len(self.paths) - 1

    def direct(self, src: int, dst: int) -> str:
        """Returns the name of the one-hop path between two ranks."""
        for path in self.topology.paths_between(self.device(src), self.device(dst)):
            if len(path.links) == 1:
                return path.name
        raise plait.UnsupportedError(f"wanted a direct link from rank {src} to {dst}, found none")

    def through_host(self, src: int, dst: int) -> str:
        for path in self.topology.paths_between(self.device(src), self.device(dst)):
            if path.name.startswith("host:"):
                return path.name
        raise plait.UnsupportedError(f"wanted a host path from rank {src} to {dst}, found none")

    def copy(
        self, ops: list[dict[str, Any]], dst: Region, src: Region, path: str = "", hop: int = 0
    ) -> None:
        """Adds a copy over a hop of a named path; without a path, inside a memory."""
        index = self.path(path) if path else -1
        ops.append({"op": "copy", "dst": dst, "srcs": [src], "path": index, "hop": hop})

    @staticmethod
    def reduce(ops: list[dict[str, Any]], dst: Region, srcs: list[Region]) -> None:
        ops.append({"op": "reduce", "dst": dst, "srcs": srcs, "finish": True})

    def signal(self, rank: int, lane: str, owner: int) -> Event:
        """Adds a signal of a flag of `owner`; returns the event for waits."""
        key = (rank, lane, owner)
        if key not in self.words:
            index = self.word_count.get((owner, rank), 0)
            self.word_count[(owner, rank)] = index + 1
            self.words[key] = ((owner, rank, index), 0)
        flag, value = self.words[key]
        self.words[key] = (flag, value + 1)
        self.lanes[(rank, lane)]["ops"].append({"op": "signal", "flag": flag, "value": value + 1})
        return flag, value + 1

    @staticmethod
    def wait(ops: list[dict[str, Any]], event: Event) -> None:
        ops.append({"op": "wait", "flag": event[0], "value": event[1]})

    def plan(self) -> plait.Plan:
        ranks = self.request.ranks
        room = 1 << 40  # sketches are simulated, not run
        return plait.Plan.from_json(
            json.dumps(
                {
                    "schema": "plait.plan/1",
                    "request": json.loads(self.request.to_json()),
                    "strategy": self.name,
                    "params": {},
                    "topology": self.topology.name,
                    "sum_order": "algorithm_order",
                    "kernel": self.kernel,
                    "symmetric": True,
                    "relay_devices": self.relay_devices,
                    "scratch_bytes": [room] * (ranks + len(self.relay_devices)),
                    "inbox_bytes": [room] * ranks,
                    "ring_bytes": [room] * ranks,
                    "stripes": [],
                    "paths": self.paths,
                    "lanes": [lane for lane in self.lanes.values() if lane["ops"]],
                }
            )
        )


def cuts(total: int, parts: int) -> list[tuple[int, int]]:
    """Returns (offset, bytes) of `parts` nearly equal parts of a message."""
    edges = [total * part // parts for part in range(parts + 1)]
    return [(a, b - a) for a, b in pairwise(edges) if b > a]


def put(
    topology: plait.Topology,
    src_device: int,
    dst_device: int,
    size: int,
    host_share: float = 0.0,
    chunks: int = 8,
    window: int = 1,
    both: bool = False,
) -> plait.Plan:
    """Returns a plan of `window` messages in sequence, a share of each through host memory.

    both: also the other direction, concurrently; size: bytes; share: a fraction.
    """
    request = plait.Request("copy", size, "uint8", "sum", 2, 0, 1, [src_device, dst_device])
    sketch = Sketch(topology, request, "put")
    for src, dst in ((0, 1), (1, 0)) if both else ((0, 1),):
        by_host = int(size * host_share)
        for message in range(window):
            base = message * size
            if size > by_host:
                direct = sketch.ops(src, COPY_ENGINE, "direct")
                sketch.copy(
                    direct,
                    ("scratch", dst, base, size - by_host),
                    ("input", src, base, size - by_host),
                    sketch.direct(src, dst),
                )
            if by_host:
                _by_host(sketch, src, dst, base + size - by_host, by_host, chunks)
    return sketch.plan()


def rerouted(
    topology: plait.Topology, devices: tuple[int, int, int], size: int, chunk_bytes: int
) -> plait.Plan:
    """Returns a plan of a message src -> relay GPU -> dst in chunks, as in WOTIR."""
    src, route, dst = devices
    request = plait.Request("copy", size, "uint8", "sum", 2, 0, 1, [src, dst])
    sketch = Sketch(topology, request, "rerouted", relay_devices=[route])
    labels = [topology.device_label(device) for device in devices]
    path = f"relay:{labels[0]}>{labels[1]}>{labels[2]}"
    first, second = sketch.ops(0, COPY_ENGINE, "first"), sketch.ops(1, COPY_ENGINE, "second")
    for offset, part in cuts(size, max(1, -(-size // chunk_bytes))):
        sketch.copy(first, ("scratch", 2, offset, part), ("input", 0, offset, part), path, 0)
        sketch.wait(second, sketch.signal(0, "first", 1))
        sketch.copy(second, ("output", 1, offset, part), ("scratch", 2, offset, part), path, 1)
    return sketch.plan()


def _by_host(sketch: Sketch, src: int, dst: int, base: int, size: int, chunks: int) -> None:
    path = sketch.through_host(src, dst)
    down = sketch.ops(src, COPY_ENGINE, "to host")
    up = sketch.ops(dst, COPY_ENGINE, "from host")
    for offset, part in cuts(size, chunks):
        at = base + offset
        sketch.copy(down, ("ring", src, at, part), ("input", src, at, part), path, 0)
        event = sketch.signal(src, "to host", dst)
        sketch.wait(up, event)
        sketch.copy(up, ("scratch", dst, at, part), ("ring", src, at, part), path, 1)


def ring_kernel(
    topology: plait.Topology,
    orders: list[list[int]],
    size: int,
    devices: list[int] | None = None,
    slice_bytes: int = 1 << 20,
    last_copy_bytes: int = 0,
) -> plait.Plan:
    """Returns a plan of NCCL's all-reduce: rings in a single kernel that forward each slice on
    arrival.

    orders: ranks of each ring; the message is split evenly over rings. A hop without a link goes
    through pinned host memory. last_copy_bytes: copied on each rank from buffer to output at the
    end. Source: NCCL's documentation of the ring algorithm.
    """
    ranks = len(orders[0])
    request = plait.Request("all_reduce", size // 4, "fp32", "sum", ranks, 0, 0, devices or [])
    sketch = Sketch(topology, request, "nccl_ring", kernel="ring")
    for number, (base, part) in enumerate(cuts(size // 4, len(orders))):
        _one_ring(sketch, orders[number], f"ring{number}", base * 4, part * 4, slice_bytes)
    if last_copy_bytes:
        for lane in list(sketch.lanes.values())[-ranks:]:  # each rank's last slice
            rank = lane["rank"]
            came, goes = ((space, rank, 0, last_copy_bytes) for space in ("scratch", "output"))
            sketch.copy(lane["ops"], goes, came)
    return sketch.plan()


def _one_ring(
    sketch: Sketch, order: list[int], name: str, base: int, size: int, slice_bytes: int
) -> None:
    ranks = len(order)
    shard = max(1, size // ranks)
    slices = cuts(shard, max(1, min(16, -(-shard // slice_bytes))))
    hosted: dict[int, str] = {}
    for place, rank in enumerate(order):
        neighbour = order[(place + 1) % ranks]
        try:
            sketch.direct(rank, neighbour)
        except plait.UnsupportedError:
            hosted[rank] = sketch.through_host(rank, neighbour)
    arrived: dict[tuple[int, int, int], Event] = {}
    last = 2 * (ranks - 1)
    for step in range(last + 1):
        for number, (offset, part) in enumerate(slices):
            for place, rank in enumerate(order):
                neighbour, before = order[(place + 1) % ranks], order[place - 1]
                at = base + (place - step) % ranks * shard + offset
                lane = f"{name} slice {number}"
                ops = sketch.ops(rank, KERNEL, lane)
                came = (
                    ("ring", before, at, part) if before in hosted else ("scratch", rank, at, part)
                )
                if step:
                    Sketch.wait(ops, arrived[(rank, step - 1, number)])
                if step == last:
                    if before in hosted:
                        sketch.copy(ops, ("scratch", rank, at, part), came, hosted[before], 1)
                    continue
                goes = ("ring", rank, at, part)
                if rank not in hosted:
                    goes = ("scratch", neighbour, at, part)
                mine = ("input", rank, at, part)
                if step:  # reads the received slice and writes to the next rank in a single pass
                    Sketch.reduce(ops, goes, [mine, came] if step < ranks else [came])
                else:
                    sketch.copy(ops, goes, mine, hosted.get(rank) or sketch.direct(rank, neighbour))
                arrived[(neighbour, step, number)] = sketch.signal(rank, lane, neighbour)
