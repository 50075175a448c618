"""The simulator held against measurement: each raw figure of the HGX H200 nodes, predicted.

Every row is a plan of what was measured, simulated with the one parameter set of
topologies/hgx-h200.json. Figures: bench programs run on nodes of 2, 4 and 8 GPUs, 2026-11.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import plait
from plait._core import simulate_together
from plait.evidence.sketch import COPY_ENGINE, Sketch, cuts, put, ring_kernel

MIB = 1 << 20


@dataclass(frozen=True)
class CalibrationRow:
    """One measured figure beside its prediction, in the same unit."""

    what: str
    unit: str
    measured: float
    predicted: float
    reason: str = ""  # where it deviates by more than 10 %

    @property
    def deviation(self) -> float:
        return self.predicted / self.measured - 1.0


@cache
def machine() -> plait.Topology:
    return plait.load_topology("hgx-h200")


def with_parameters(topology: plait.Topology, **values: float) -> plait.Topology:
    """A copy of the topology with some parameters set."""
    data = json.loads(topology.to_json())
    for key, value in values.items():
        data["parameters"][key] = {"value": value, "source": "set for one experiment"}
    return plait.Topology.from_json(json.dumps(data))


@cache
def in_one_process() -> plait.Topology:
    """The node as one process drives it: CUDA events for signals, host time for every call."""
    event_ns = machine().parameter("event_signal_ns", 1500.0)
    issue_ns = machine().parameter("host_issue_ns", 0.0)
    return with_parameters(machine(), stream_signal_ns=event_ns, issue_ns=issue_ns)


def timed_us(plan: plait.Plan, one_process: bool = False) -> float:
    """As the host sees it: the simulated time and the launch and sync around it."""
    sync_ns = machine().parameter("host_sync_ns", 0.0)
    topology = in_one_process() if one_process else machine()
    (timeline,) = simulate_together([plan], topology, one_thread=one_process)
    return (timeline.total_ns + sync_ns) / 1e3


def copies() -> list[CalibrationRow]:
    rows = []
    for mib, measured in ((16, 321.0), (64, 375.2), (256, 390.8), (1024, 395.2)):
        size = mib * MIB
        speed = size / timed_us(put(machine(), 0, 1, size)) / 1e3
        rows.append(CalibrationRow(f"copy engine, one way, {mib} MiB", "GB/s", measured, speed))
    both = put(machine(), 0, 1, 1024 * MIB, both=True)
    speed = 1024 * MIB / timed_us(both) / 1e3
    rows.append(CalibrationRow("copy engine, both ways, 1 GiB, a direction", "GB/s", 391.0, speed))
    return rows


def striped() -> list[CalibrationRow]:
    size = 1024 * MIB
    rows = []
    for share, one_way, both_ways in (
        (0.06, 420.0, 415.2),
        (0.08, 428.7, 424.0),
        (0.10, 438.0, 427.8),
        (0.11, 443.6, 387.8),
        (0.15, 336.4, 292.2),
    ):
        chunks = max(1, round(size * share / (4 * MIB)))
        for both, measured in ((False, one_way), (True, both_ways)):
            plan = put(machine(), 0, 1, size, share, chunks, both=both)
            speed = size / timed_us(plan, True) / 1e3
            way = "both ways" if both else "one way"
            rows.append(
                CalibrationRow(
                    f"direct + host path, {share:.0%} by the host, {way}",
                    "GB/s",
                    measured,
                    speed,
                    "512 MiB host buffers leave the cache; the knee comes at a smaller share",
                )
            )
    return rows


def _rotation(size: int, streams: bool, ranks: int) -> plait.Plan:
    request = plait.Request("all_to_all", size // ranks // 4, "fp32", "sum", ranks)
    sketch = Sketch(machine(), request, "rotation")
    part = size // ranks
    for k in range(1, ranks):
        for rank in range(ranks):
            peer = (rank + k) % ranks
            ops = sketch.ops(rank, COPY_ENGINE, f"stream{k if streams else 0}")
            path = sketch.direct(rank, peer)
            sketch.copy(ops, ("output", peer, rank * part, part), ("input", rank, 0, part), path)
    return sketch.plan()


def rotations() -> list[CalibrationRow]:
    rows = []
    for mib, measured in ((64, 333.7), (256, 375.4), (1024, 387.9)):
        speed = mib * MIB * 3 / 4 / timed_us(_rotation(mib * MIB, False, 4)) / 1e3
        rows.append(
            CalibrationRow(f"rotation all-to-all, 4 GPUs, {mib} MiB", "GB/s", measured, speed)
        )
    speed = 1024 * MIB * 7 / 8 / timed_us(_rotation(1024 * MIB, True, 8)) / 1e3
    rows.append(CalibrationRow("seven copy streams at once, 8 GPUs, 1 GiB", "GB/s", 247.3, speed))
    return rows


def _skeleton(size: int, pieces: int, ranks: int = 4) -> plait.Plan:
    """Rotation reduce-scatter, n-way reduction, rotation all-gather of the piece before."""
    request = plait.Request("all_reduce", size // 4, "fp32", "sum", ranks)
    sketch = Sketch(machine(), request, "skeleton")
    part = size // pieces // ranks
    reduced: dict[tuple[int, int], Any] = {}
    for piece in range(pieces + 1):
        if piece < pieces:
            arrived: dict[int, list[Any]] = {rank: [] for rank in range(ranks)}
            for k in range(1, ranks):
                for rank in range(ranks):
                    peer = (rank + k) % ranks
                    ops = sketch.ops(rank, COPY_ENGINE, "copies")
                    where = ("scratch", peer, ((piece % 2) * ranks + k) * part, part)
                    path = sketch.direct(rank, peer)
                    sketch.copy(ops, where, ("input", rank, 0, part), path)
                    arrived[peer].append(sketch.signal(rank, "copies", peer))
            for rank in range(ranks):
                ops = sketch.ops(rank, COPY_ENGINE, "reduces")
                for event in arrived[rank]:
                    Sketch.wait(ops, event)
                srcs = [("scratch", rank, k * part, part) for k in range(ranks)]
                Sketch.reduce(ops, ("output", rank, 0, part), srcs)
                reduced[(rank, piece)] = sketch.signal(rank, "reduces", rank)
        for k in range(1, ranks if piece else 1):
            for rank in range(ranks):
                peer = (rank + k) % ranks
                ops = sketch.ops(rank, COPY_ENGINE, "copies")
                if k == 1:
                    Sketch.wait(ops, reduced[(rank, piece - 1)])
                path = sketch.direct(rank, peer)
                sketch.copy(ops, ("output", peer, 0, part), ("output", rank, 0, part), path)
    return sketch.plan()


HOST_IS_LATE = (
    "pieces so small that the host's calls are what is timed; that program also creates and frees "
    "an event for each, at a cost that was not measured"
)
# GB/s busbw by MiB and pieces.
SKELETONS = {
    16: {1: 212.1, 2: 137.0, 4: 70.7},
    64: {1: 281.3, 2: 303.0, 4: 237.0, 8: 151.5, 16: 56.9},
    256: {1: 323.8, 2: 355.7, 4: 336.2, 8: 246.8, 16: 209.2},
    1024: {1: 337.2, 2: 385.4, 4: 366.8, 8: 282.3, 16: 233.2},
}
EXCHANGES = {
    16: {2: 197.8, 4: 169.3, 8: 105.9, 16: 60.4},
    64: {2: 264.1, 4: 280.3, 8: 286.4, 16: 218.1, 32: 115.5},
    256: {2: 295.7, 4: 324.4, 8: 337.0, 16: 334.2, 32: 323.9},
    1024: {2: 306.8, 4: 343.3, 8: 361.0, 16: 367.7, 32: 366.0},
}
EXCHANGES_OF_PROCESSES_US = {
    4: {2: 39.4, 4: 53.3},
    16: {2: 84.2, 4: 94.7, 8: 123.0, 16: 178.2},
    64: {2: 256.7, 4: 245.4, 8: 263.0, 16: 322.7},
    256: {2: 932.3, 4: 839.7, 8: 818.8, 16: 867.7},
    1024: {2: 3600.5, 4: 3213.4, 8: 3034.3, 16: 2998.6},
}


def skeletons() -> list[CalibrationRow]:
    return [
        CalibrationRow(
            f"copy-engine all-reduce, 4 GPUs, {_size(mib)}, {_pieces(pieces)}",
            "GB/s busbw",
            busbw,
            1.5 * mib * MIB / timed_us(_skeleton(mib * MIB, pieces), True) / 1e3,
            HOST_IS_LATE,
        )
        for mib, by_pieces in SKELETONS.items()
        for pieces, busbw in by_pieces.items()
    ]


def _size(mib: int) -> str:
    return f"{mib} MiB" if mib < 1024 else f"{mib // 1024} GiB"


def _pieces(count: int) -> str:
    return f"{count} piece{'s' if count > 1 else ''}"


def _exchange(size: int, pieces: int) -> plait.Plan:
    request = plait.Request("all_reduce", size // 4, "fp32", "sum", 2)
    sketch = Sketch(machine(), request, "exchange")
    for offset, part in cuts(size, pieces):
        for rank in range(2):
            peer = 1 - rank
            ops = sketch.ops(rank, COPY_ENGINE, "copies")
            path = sketch.direct(rank, peer)
            sketch.copy(ops, ("scratch", peer, offset, part), ("input", rank, offset, part), path)
            event = sketch.signal(rank, "copies", peer)
            reduces = sketch.ops(peer, COPY_ENGINE, "reduces")
            Sketch.wait(reduces, event)
            srcs = [("input", peer, offset, part), ("scratch", peer, offset, part)]
            Sketch.reduce(reduces, ("output", peer, offset, part), srcs)
    return sketch.plan()


def exchanges() -> list[CalibrationRow]:
    rows = [
        CalibrationRow(
            f"pairwise exchange, 2 GPUs, {_size(mib)}, {_pieces(pieces)}, one process",
            "GB/s busbw",
            busbw,
            mib * MIB / timed_us(_exchange(mib * MIB, pieces), True) / 1e3,
            HOST_IS_LATE,
        )
        for mib, by_pieces in EXCHANGES.items()
        for pieces, busbw in by_pieces.items()
    ]
    return rows + [
        CalibrationRow(
            f"pairwise exchange, 2 processes, {_size(mib)}, {_pieces(pieces)}",
            "us",
            time_us,
            timed_us(_exchange(mib * MIB, pieces)),
        )
        for mib, by_pieces in EXCHANGES_OF_PROCESSES_US.items()
        for pieces, time_us in by_pieces.items()
    ]


NCCL_US = {
    2: {64: 250.4, 256: 895.3, 1024: 3244.5, 4096: 12495.3},
    4: {64: 318.2, 256: 1181.0, 1024: 4549.0},
    8: {64: 362.2, 256: 1362.5, 1024: 5232.1, 4096: 20577.3},
}


@cache
def nccl_model_us(ranks: int, mib: int) -> float:
    plan = ring_kernel(machine(), [list(range(ranks))], mib * MIB, slice_bytes=MIB // 2)
    return plait.simulate(plan, machine()).total_ns / 1e3


def nccl_reached(ranks: int, mib: float) -> float:
    """Which part of the modelled ring's speed NCCL reaches, as measured, between sizes by log."""
    sizes = sorted(NCCL_US[ranks])
    reached = [nccl_model_us(ranks, size) / NCCL_US[ranks][size] for size in sizes]
    if mib <= sizes[0]:
        return reached[0]
    for k in range(1, len(sizes)):
        if mib <= sizes[k]:
            part = math.log(mib / sizes[k - 1]) / math.log(sizes[k] / sizes[k - 1])
            return reached[k - 1] + part * (reached[k] - reached[k - 1])
    return reached[-1]


@cache
def _with_channels() -> plait.Topology:
    """The node as NCCL's channels see it: what they copy inside a GPU."""
    return with_parameters(
        machine(), kernel_copy_gb_per_s=machine().parameter("nccl_copy_gb_per_s", 0.0)
    )


def _last_chunk_bytes(ranks: int, size: int) -> int:
    """Of all channels together: what NCCL copies out when nothing is left to send.

    A channel works in loops of a chunk a rank; the last loop shares out what is left.
    """
    channels = int(machine().parameter("nccl_channels", 1.0))
    loop = ranks * int(machine().parameter("nccl_chunk_bytes", 1.0))
    last = size // channels % loop or loop
    return channels * (last // ranks)


def nccl_us(ranks: int, mib: int) -> float:
    """NCCL's ring with its last chunk, which is copied from its buffer while no link is used."""
    size = mib * MIB
    last = _last_chunk_bytes(ranks, size)
    plan = ring_kernel(
        machine(), [list(range(ranks))], size, slice_bytes=MIB // 2, last_copy_bytes=last
    )
    return plait.simulate(plan, _with_channels()).total_ns / 1e3


def nccl() -> list[CalibrationRow]:
    return [
        CalibrationRow(
            f"NCCL 2.28.9 all-reduce (ring), {ranks} GPUs, {mib} MiB",
            "us",
            time_us,
            nccl_us(ranks, mib),
        )
        for ranks, by_size in NCCL_US.items()
        for mib, time_us in by_size.items()
    ]


def calibration_rows() -> list[CalibrationRow]:
    """Every measured figure with its prediction."""
    groups = (copies, striped, rotations, skeletons, exchanges, nccl)
    return [row for group in groups for row in group()]
