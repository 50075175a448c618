"""Compares the simulator with raw measurements of HGX H200 nodes.

Each row is a plan of the measured program, simulated with the parameters of
topologies/hgx-h200.json. Measured by bench programs on nodes of 2, 4 and 8 GPUs, 2026-11.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache

import plait
from plait.evidence.sketch import put, ring_kernel

MIB = 1 << 20


@dataclass(frozen=True)
class CalibrationRow:
    """A measured figure and the prediction, in the same unit."""

    what: str
    unit: str
    measured: float
    predicted: float
    reason: str = ""  # reason of a deviation above 10 %

    @property
    def deviation(self) -> float:
        return self.predicted / self.measured - 1.0


@cache
def machine() -> plait.Topology:
    return plait.load_topology("hgx-h200")


def with_parameters(topology: plait.Topology, **values: float) -> plait.Topology:
    """Returns a copy of the topology with some parameters set."""
    data = json.loads(topology.to_json())
    for key, value in values.items():
        data["parameters"][key] = {"value": value, "source": "set for one experiment"}
    return plait.Topology.from_json(json.dumps(data))


@cache
def in_one_process() -> plait.Topology:
    """Returns the node driven by a single process: CUDA events as signals, host time a call."""
    event_ns = machine().parameter("event_signal_ns", 1500.0)
    issue_ns = machine().parameter("host_issue_ns", 0.0)
    return with_parameters(machine(), stream_signal_ns=event_ns, issue_ns=issue_ns)


def timed_us(plan: plait.Plan, one_process: bool = False) -> float:
    """Returns the time on the host in us: simulated time plus launch and synchronisation."""
    sync_ns = machine().parameter("host_sync_ns", 0.0)
    topology = in_one_process() if one_process else machine()
    (timeline,) = plait.simulate_together([plan], topology, one_thread=one_process)
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
    """Returns the measured fraction of the modelled ring's speed that NCCL reaches; interpolated
    over log of size."""
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
    """Returns the node with the speed of NCCL's channels for copies inside a GPU."""
    return with_parameters(
        machine(), kernel_copy_gb_per_s=machine().parameter("nccl_copy_gb_per_s", 0.0)
    )


def _last_chunk_bytes(ranks: int, size: int) -> int:
    """Returns the bytes that all channels of NCCL copy out after the last send.

    A channel loops over a chunk a rank; the last loop splits the rest.
    """
    channels = int(machine().parameter("nccl_channels", 1.0))
    loop = ranks * int(machine().parameter("nccl_chunk_bytes", 1.0))
    last = size // channels % loop or loop
    return channels * (last // ranks)


def nccl_us(ranks: int, mib: int) -> float:
    """Returns us of NCCL's ring with the last chunk, copied while no link is in use."""
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
    """Returns all measured figures with predictions."""
    groups = (copies, striped, nccl)
    return [row for group in groups for row in group()]
