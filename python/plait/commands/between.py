"""Ranks of a launcher and the transport between nodes, for commands under mpiexec."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import plait
from plait import _core

SHORT, LONG = 8, 16 << 20  # bytes of a message
TURNS = 20
NICS = Path("/sys/class/infiniband")


def is_launched() -> bool:
    """Returns whether a launcher has started several ranks, this rank included."""
    return bool(_core.options_from_environment().ranks > 1)


def ranks() -> int:
    """Returns the number of ranks that the launcher has started."""
    return int(_core.options_from_environment().ranks)


def ranks_or(otherwise: int) -> int:
    """Returns the launcher's number of ranks, or `otherwise` without a launcher."""
    return ranks() if is_launched() else otherwise


def is_first() -> bool:
    """Returns whether this rank prints."""
    return not is_launched() or _core.options_from_environment().rank == 0


def nics() -> list[str]:
    """Returns state and rate of each InfiniBand or RoCE port."""
    found = []
    for port in sorted(NICS.glob("*/ports/*")):
        try:
            facts = [(port / name).read_text().strip() for name in ("state", "rate")]
        except OSError as error:
            facts = [str(error)]
        found.append(f"{port.parent.parent.name}: {', '.join(facts)}")
    return found


def join(topology: str = "", masks: Sequence[str] = ()) -> plait.Communicator:
    """Makes a communicator of all ranks of the launcher, over the launcher's library."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
    else:
        from mpi4py import MPI

        MPI.Get_version()
    return plait.init(device=-1, arrive_s=60.0, topology=topology, masks=masks)


def nodes_of(comm: plait.Communicator) -> list[list[int]]:
    """Returns the ranks of each node."""
    devices = comm.plan_for(plait.Request("all_reduce", 1, ranks=comm.ranks)).request.devices
    nodes: dict[int, list[int]] = {}
    for rank, device in enumerate(devices):
        nodes.setdefault(comm.topology.devices[device].node, []).append(rank)
    return list(nodes.values())


def place_of(comm: plait.Communicator) -> str:
    """Returns a line on the nodes and the transport."""
    nodes = nodes_of(comm)
    if len(nodes) == 1:
        return f"{comm.ranks} ranks on one node"
    return f"{shape_of(nodes)}, {comm.transport} between them"


def shape_of(nodes: list[list[int]]) -> str:
    sizes = ", ".join(str(len(ranks)) for ranks in nodes)
    rails = min(len(ranks) for ranks in nodes)
    return f"{len(nodes)} nodes of {sizes} ranks, {rails} rail{'s' if rails > 1 else ''}"


def _exchange_s(comm: plait.Communicator, peer: int | None, size: int) -> float:
    """Returns s of an exchange with the peer, both ways at once; ranks without a peer idle."""
    mine = np.full(size, comm.rank, np.uint8)
    times = []
    comm.barrier()
    for _ in range(TURNS if size == SHORT else 3):
        began = time.perf_counter()
        if peer is not None and comm.exchange_with(mine, peer)[-1] != peer:
            raise plait.Error(f"rank {peer}'s message came with other bytes")
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measured(comm: plait.Communicator, nodes: list[list[int]]) -> str:
    """Measures rails between the first two nodes: one with short messages, all with long
    messages."""
    rails = dict(zip(nodes[0], nodes[1], strict=False))
    peers = rails | {there: here for here, there in rails.items()}
    peer = peers.get(comm.rank)
    first = comm.rank in (nodes[0][0], nodes[1][0])
    short_s = _exchange_s(comm, peer if first else None, SHORT)
    long_s = _exchange_s(comm, peer, LONG)
    replies = [one.decode().split() for one in comm.exchange(f"{short_s} {long_s}".encode())]
    rates = [f"{LONG / float(replies[rank][1]) / 1e9:.2f}" for rank in rails]
    return (
        f"{1e6 * float(replies[nodes[0][0]][0]):.0f} us for {SHORT} bytes; {LONG >> 20} MiB at "
        f"{', '.join(rates)} GB/s each way on the rails, all at once"
    )
