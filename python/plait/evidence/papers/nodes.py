"""Collectives over several nodes (rows M11 and N).

Libraries between nodes have their own price tables (docs/simulator.md). Machines of rows N are not
shipped; this module builds them with the papers' figures.
"""

from __future__ import annotations

import json
import math
from functools import cache

import plait
from plait.evidence.papers.rows import MB, PaperRow, machine, missing, order, times, us

OF_ALL = ("all_reduce", "broadcast", "reduce")  # have one message, not a block per rank


def time_us(
    topology: plait.Topology, size: int, strategy: str, what: str = "all_reduce", **params: int
) -> float:
    """Returns us of a strategy on all ranks; size: bytes by nccl-tests' convention."""
    ranks = len(topology.rank_devices())
    count = max(1, size // 4 // (1 if what in OF_ALL else ranks))
    request = plait.Request(what, count, "fp32", "sum", ranks, 0, 1)
    return us(plait.propose_one(topology, request, strategy, params), topology)


def best_us(topology: plait.Topology, size: int, strategy: str, what: str = "all_reduce") -> float:
    """Returns us with the best number of pieces."""
    return min(time_us(topology, size, strategy, what, pieces=pieces) for pieces in (1, 4, 16))


@cache
def cpu_nodes(nodes: int, ranks: int, nics: int) -> plait.Topology:
    """Returns nodes of CPU ranks with NICs of 100 Gb/s, each for every nics-th rank.

    Typical figures: a core copies 5 GB/s and sums 6 GB/s of traffic, a socket's memory has 80 GB/s.
    """
    devices = [{"name": f"cpu{rank}", "numa": 0} for rank in range(ranks)]
    links = [
        {
            "kind": "shm",
            "src": f"cpu{one}",
            "dst": f"cpu{other}",
            "gb_per_s": 5,
            "latency_ns": 300,
            "resources": ["numa0.dram"],
        }
        for one in range(ranks)
        for other in range(ranks)
        if one != other
    ]
    figures = {"net_latency_ns": 1500, "mpi_call_ns": 500, "kernel_launch_ns": 0, "signal_ns": 200}
    figures |= {"cpu_copy_gb_per_s": 5, "gpu_reduce_gb_per_s": 6, "gpu_memory_gb_per_s": 80}
    near = [[f"cpu{rank}" for rank in range(ranks) if rank % nics == nic] for nic in range(nics)]
    network = {
        "nodes": nodes,
        "gb_per_s": 11.9,
        "latency_ns": 1500,
        "nics": [
            {"name": f"nic{nic}", "rail": nic, "affinity": ranks_of}
            for nic, ranks_of in enumerate(near)
        ],
    }
    whole = {
        "schema": "plait.topology/1",
        "name": f"{nodes} nodes of {ranks} CPU ranks",
        "devices": [*devices, {"name": "numa0"}],
        "resources": [{"name": "numa0.dram", "gb_per_s": 80}],
        "links": links,
        "network": network,
        "parameters": {key: {"value": v, "source": "typical"} for key, v in figures.items()},
    }
    return plait.Topology.from_json(json.dumps(whole))


def multi_node() -> list[PaperRow]:
    return [*_mist(), *_lanes(), *_libraries()]


def _mist() -> list[PaperRow]:
    """Rows of MVAPICH2-GDR, modelled as a flat MPI all-reduce, since the paper names no
    algorithm."""
    size, rows, ahead, gain = 64 * MB, [], True, {}
    for nodes, claim, claimed in ((2, "1.18x", 1.18), (4, "comparable", 1.0)):
        mist = machine(f"mist-{nodes}")
        flat = time_us(mist, size, "library", mpi=1)
        leaders = time_us(mist, size, "leaders", pieces=1, mpi=1)
        ahead &= time_us(mist, size, "library", mpi=0) < min(flat, leaders)
        gain[nodes] = leaders / best_us(mist, size, "leaders")
        rows.append(
            PaperRow(
                "M11",
                "show",
                f"{nodes} mist nodes, 64 MB, leaders in one piece over flat MPI",
                claim,
                claimed,
                flat / leaders,
                reason=""
                if nodes == 2
                else "in one piece the network rests while nodes sum, and leaders send as "
                "much as a flat ring; what MVAPICH2-GDR does is not stated",
            )
        )
    rows.append(order("M11", "NCCL ahead of both, 2 and 4 nodes", ahead, "show"))
    pieces = ", ".join(f"{nodes} nodes {by:.2f}x" for nodes, by in gain.items())
    what = f"leaders in pieces, which the paper leaves to later, ahead of one piece ({pieces})"
    rows.append(order("M11", what, min(gain.values()) > 1, "show"))
    mist = machine("mist-2")
    flat = time_us(mist, size, "library", mpi=1)
    in_one = flat / time_us(mist, size, "multi_node", pieces=1, mpi=1)
    what = "2 mist nodes, 64 MB: a shard a rail, over flat MPI (M11's peer)"
    rows.append(times("N1", what, 1.18, in_one, "show"))
    in_pieces = flat / time_us(mist, size, "multi_node", pieces=16, mpi=1)
    what = f"the same in 16 pieces ahead of one piece ({in_pieces:.2f}x over flat MPI)"
    rows.append(order("N1", what, in_pieces > in_one, "show"))
    return rows


def _lanes() -> list[PaperRow]:
    """Rows of CPU ranks: lanes, leaders, segments."""
    two = cpu_nodes(32, 2, 2)
    lanes = time_us(two, 16 * MB, "multi_node", rails=1) / time_us(two, 16 * MB, "multi_node")
    eight = cpu_nodes(8, 8, 1)
    leaders = max(
        time_us(eight, size, "multi_node", rails=1) / time_us(eight, size, "multi_node")
        for size in (MB // 16, MB // 4, MB, 4 * MB, 16 * MB)
    )
    one, segmented = (
        time_us(eight, 64 * MB, "multi_node", rails=1, pieces=pieces) for pieces in (1, 16)
    )
    return [
        PaperRow(
            "N2",
            "show",
            "32 nodes x 2 CPU ranks, 16 MB: both lanes over one",
            "over 2x (36 nodes, over native MPI)",
            2.0,
            lanes,
            reason="lanes do not speed up the part in a node; what the native MPI lost besides is "
            "not stated",
        ),
        PaperRow(
            "N3",
            "show",
            "8 nodes x 8 CPU ranks, 64 KB to 16 MB: 8 leaders a node over one, at best",
            "up to 3.5x (28 to 64 ranks a node)",
            3.5,
            leaders,
            reason="plans have 64 ranks at most, so 8 a node: fewer sum beside each other",
        ),
        missing(
            "N4",
            "all-gather over several HCAs, 1,024 processes",
            "62 % better than HPC-X",
            "plans have 64 ranks at most, and what HPC-X runs is not stated",
        ),
        order(
            "N5",
            f"8 nodes x 8 CPU ranks, 64 MB: segments ahead of one ({one / segmented:.2f}x)",
            segmented < one,
            "show",
        ),
    ]


def _libraries() -> list[PaperRow]:
    delta, whats = machine("delta-ai"), ("all_reduce", "all_gather", "reduce_scatter")
    equal = math.prod(
        time_us(delta, 1024 * MB, "library", what) / best_us(delta, 1024 * MB, "multi_node", what)
        for what in whats
    ) ** (1 / len(whats))
    beyond = "plans have 64 ranks at most"
    rows = [
        PaperRow(
            "N6",
            "show",
            "8 nodes of delta-ai, 1 GB, geometric mean of 3 collectives, rails over NCCL alone",
            "about equal",
            1.0,
            equal,
        ),
        missing("N6", "over GPU-aware MPI", "17x", "what these libraries stage is not stated"),
        missing("N7", "2,048 GPUs, over NCCL and RCCL", "up to 5.7x and 168x", beyond),
        missing(
            "N8",
            "several CPU processes a GPU drive lanes between nodes",
            "1.77x over NCCL",
            "plans have no ranks that share a GPU",
        ),
    ]
    for nodes in (2, 8, 64):
        ring, tree = 6.6 + 2 * (nodes - 1) * 2.7, 6.8 + 2 * math.log2(nodes) * 5.0
        label = "tree" if tree < ring else "ring"
        alone = machine(f"vista-{nodes}")
        launch = alone.parameter("kernel_launch_ns", 0) / 1e3 + 2 * _tell_us(alone)
        rows.append(
            PaperRow(
                "N9",
                "show",
                f"NCCL's all-reduce of 8 bytes, {nodes} nodes of one GPU: LL by {label}",
                f"{min(ring, tree):.1f} us by tuning.cc",
                min(ring, tree),
                time_us(alone, 8, "library") - launch,
                "us",
            )
        )
    return [*rows, _horovod()]


def _tell_us(topology: plait.Topology) -> float:
    """Returns us of a dependency between two streams."""
    return topology.parameter("signal_ns", 1000.0) / 1e3


def _horovod() -> PaperRow:
    """Row of Horovod: NCCL inside nodes, MPI between nodes on host buffers."""
    nodes, size = machine("hgx-h200-2"), 64 * MB
    by_host = min(nodes.path_gb_per_s(p) for p in nodes.paths_between(0, 1) if "host" in p.name)
    horovod = time_us(nodes, size, "multi_node", pieces=1, mpi=1) + 2 * size / 8 / by_host / 1e3
    ours = best_us(nodes, size, "multi_node")
    what = f"2 nodes of hgx-h200, 64 MB: ahead of Horovod's hierarchical ({horovod / ours:.2f}x)"
    return order("N10", what, ours < horovod, "show")
