"""Direct send/recv all-reduce compared with MPI libraries' algorithms, 16 to 64 nodes (rows D)."""

from __future__ import annotations

import plait
from plait.evidence.papers.nodes import time_us as nccl_us
from plait.evidence.papers.rounds import staged_us, time_us
from plait.evidence.papers.rows import MB, PaperRow, machine, missing, order


def direct_sendrecv() -> list[PaperRow]:
    vista, size = machine("vista"), 64 * MB
    direct = time_us(vista, 64, size, "direct")
    rows = []
    for other, name, latency in (
        ("reduce_scatter_all_gather", "reduce-scatter-all-gather", 9),
        ("ring", "ring", 38),
        ("recursive_doubling", "recursive doubling", 64),
    ):
        ratio = time_us(vista, 64, size, other) / direct
        rows.append(
            PaperRow(
                "D1",
                "must",
                f"64 GPUs, vista, 64 MB: direct over {name}",
                f"{latency} % lower latency",
                1 / (1 - latency / 100),
                ratio,
                reason=""
                if ratio > 1
                else "both move the same bytes, and the model gives neither "
                "an advantage: within 10 % of the claim, but not ahead",
            )
        )
    rows += _direct_clusters()
    rows += _staged(vista)
    naive, overlapped = (time_us(vista, 64, size, f"direct_{way}") for way in ("naive", "overlap"))
    what = f"naive {naive:.0f} > overlapped {overlapped:.0f} > fused {direct:.0f} us"
    rows.append(order("D5", what, naive > overlapped > direct))
    return rows


def _staged(vista: plait.Topology) -> list[PaperRow]:
    rows = []
    for algorithm, name, claimed in (
        ("direct", "direct", 34.0),
        ("reduce_scatter_all_gather", "reduce-scatter-all-gather", 46.0),
        ("ring", "ring", 98.0),
    ):
        rows.append(
            PaperRow(
                "D4",
                "must",
                f"CPU staging, 16 GPUs, vista, 8 KB: {name}",
                f"{claimed:.0f} us",
                claimed,
                staged_us(vista, 16, 8192, algorithm),
                "us",
            )
        )
    rows.append(
        missing(
            "D4",
            "CPU staging, 16 GPUs, vista, 8 KB: reduce-scatter",
            "49 us",
            'the talk calls it "RS" and says no more of it',
        )
    )
    ratio = staged_us(vista, 32, 16384, "reduce_scatter_all_gather") / staged_us(
        vista, 32, 16384, "direct"
    )
    rows.append(
        PaperRow(
            "D4",
            "must",
            "CPU staging, 32 GPUs, vista, 16 KB: direct over reduce-scatter-all-gather",
            "57 against 67 us",
            67 / 57,
            ratio,
        )
    )
    return rows


BY_NIC = (
    "by either algorithm a rank sends 28 of 32 shards over its NIC in each phase; the model gives "
    "direct's smaller messages no gain, and its batches wait for their slowest"
)


def _why_not_nccl(topology: plait.Topology, size: int) -> str:
    link = topology.path_gb_per_s(topology.paths_between(*topology.rank_devices()[:5:4])[0])
    least = 2 * 28 / 32 * size / link / 1e3
    return (
        f"direct takes {least:.0f} us by the NICs' speed alone, so the talk's NCCL was slower "
        "still; by its own tables it is not"
    )


def _direct_clusters() -> list[PaperRow]:
    rows = []
    for number, name, size, over, latency in (
        ("D2", "cardinal", 32 * MB, "the MPI algorithm", 18),
        ("D2", "cardinal", 32 * MB, "NCCL", 10),
        ("D2", "cardinal", 8 * MB, "NCCL", 37),
        ("D3", "delta-ai", 2 * MB, "the MPI algorithm", 35),
        ("D3", "delta-ai", 32 * MB, "NCCL", 23),
    ):
        topology = machine(name)
        by_nccl = over == "NCCL"
        peer = (
            nccl_us(topology, size, "library")
            if by_nccl
            else time_us(topology, 32, size, "reduce_scatter_all_gather")
        )
        # The throttle is the talk's own parameter; its examples have 4.
        direct = min(time_us(topology, 32, size, "direct", throttle) for throttle in (4, 8, 16))
        rows.append(
            PaperRow(
                number,
                "show",
                f"32 GPUs, {name}, {size // MB} MB: direct over {over}",
                f"{latency} % lower latency",
                1 / (1 - latency / 100),
                peer / direct,
                reason=_why_not_nccl(topology, size) if by_nccl else BY_NIC,
            )
        )
    return rows
