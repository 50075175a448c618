"""Collaborative all-reduce of two GPUs and the CPU (rows C).

The authors drive both GPUs from a single process with CUDA events (section III). Hence plans here
pay for events, not for flags between processes.
"""

from __future__ import annotations

from functools import cache

import plait
from plait.evidence.calibrate import machine as measured_node
from plait.evidence.calibrate import with_parameters
from plait.evidence.papers.rows import EQUAL, MB, PaperRow, grid, machine, nccl_us, order, times, us

Tuning = tuple[tuple[tuple[str, int], ...], ...]

# The threshold is "statically tuned for various message sizes and different systems": a fine grid.
PAIRWISE = grid(host_permille=(0,), host_cpu_permille=range(0, 310, 10), pieces=(4, 8, 16))
PIPELINED = grid(host_cpu_permille=(0,), host_permille=(0,), pieces=(4, 8, 16))


@cache
def one_process(name: str) -> plait.Topology:
    """Returns the machine driven by a single process, with event times measured on the H200."""
    event_ns = measured_node().parameter("event_signal_ns", 1500.0)
    return with_parameters(machine(name), stream_signal_ns=event_ns)


def tuned(
    topology: plait.Topology, request: plait.Request, tuning: Tuning
) -> list[tuple[float, plait.Plan]]:
    """Returns (us, plan) of the pairwise exchange for each usable row of a tuning table."""
    found = []
    for params in tuning:
        try:
            plan = plait.propose_one(topology, request, "pairwise", dict(params))
        except (plait.UnsupportedError, plait.InvalidArgumentError):
            continue
        found.append((us(plan, topology), plan))
    return found


@cache
def _pairwise_us(name: str, size: int, tuning: Tuning) -> float:
    request = plait.Request("all_reduce", size // 4, "fp32", "sum", 2)
    return min(time_us for time_us, _ in tuned(one_process(name), request, tuning))


def collaborative() -> list[PaperRow]:
    gain = {
        name: {
            size: nccl_us(name, size * MB, 2) / _pairwise_us(name, size * MB, PAIRWISE)
            for size in (32, 128, 512)
        }
        for name in ("daisy", "mist", "narval")
    }
    daisy = gain["daisy"]
    ahead = all(
        _pairwise_us("daisy", size * MB, PAIRWISE)
        < min(
            _pairwise_us("daisy", size * MB, PIPELINED),
            _kernel_us("daisy", size * MB),
            _ring_us("daisy", size * MB),
        )
        for size in (32, 128, 512)
    )
    return [
        times("C1", "2 A30 (daisy), 512 MB, multi-path pairwise over NCCL", 1.45, daisy[512]),
        order(
            "C2", "ahead of pipelined, kernel-only and segmented ring at 32, 128 and 512 MB", ahead
        ),
        order(
            "C2",
            "gain over NCCL grows from 32 to 512 MB, never falling by more than 1 % "
            f"({', '.join(f'{x:.2f}' for x in daisy.values())})",
            daisy[32] < daisy[512]
            and daisy[32] <= daisy[128] * (1 + EQUAL)
            and daisy[128] <= daisy[512] * (1 + EQUAL),
        ),
        *_collaborative_orders(gain),
    ]


def _collaborative_orders(gain: dict[str, dict[int, float]]) -> list[PaperRow]:
    by_host = {name: _host_part(name) for name in ("daisy", "mist")}
    gains = ", ".join(f"{name} {by[512]:.2f}" for name, by in gain.items())
    pipelined = {
        size: _pairwise_us("daisy", size * MB, PIPELINED) < _kernel_us("daisy", size * MB)
        for size in (1, 2, 4, 8, 16, 32, 64, 128)
    }
    return [
        order(
            "C3",
            f"gain at 512 MB: narval's the least ({gains})",
            gain["narval"][512] < min(gain["mist"][512], gain["daisy"][512]),
        ),
        order(
            "C3",
            "gain at 512 MB: daisy's above mist's, or explained",
            gain["daisy"][512] > gain["mist"][512] or by_host["mist"] > by_host["daisy"],
            reason=f"explained: the host path has {by_host['mist']:.0%} of the direct link's speed "
            f"on mist, {by_host['daisy']:.0%} on daisy, so mist has more to gain; the paper gives "
            "no figure for mist, and the model knows nothing that would hold it back",
        ),
        order(
            "C4",
            "copy-engine pipelines ahead from 16 to 128 MB, kernels from 1 to 8 MB (daisy)",
            all(ahead == (size >= 16) for size, ahead in pipelined.items()),
        ),
    ]


def _host_part(name: str) -> float:
    """Returns the speed of the path through the host / that of the direct link."""
    topology = machine(name)
    paths = topology.paths_between(0, 1)
    direct = max(topology.path_gb_per_s(path) for path in paths if len(path.links) == 1)
    return (
        max(topology.path_gb_per_s(path) for path in paths if path.name.startswith("host:"))
        / direct
    )


@cache
def _ring_us(name: str, size: int) -> float:
    """Returns us of the segmented ring with the best segment size."""
    topology = one_process(name)
    request = plait.Request("all_reduce", size // 4, "fp32", "sum", 2)
    plans = [
        plait.propose_one(topology, request, "ring", {"segments": segments, "lanes": 1})
        for segments in (1, 2, 4, 8)
    ]
    return min(us(plan, topology) for plan in plans)


@cache
def _kernel_us(name: str, size: int) -> float:
    """Returns us of the kernel-only version: "similar to how NCCL performs", hence NCCL's speed."""
    return nccl_us(name, size, 2)
