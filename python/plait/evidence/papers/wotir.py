"""WOTIR: copies between GPUs without a link, forwarded by a relay GPU (rows W)."""

from __future__ import annotations

import json
from functools import cache

import plait
from plait.evidence.papers.rows import MB, PaperRow, machine, missing, order, us
from plait.evidence.sketch import put, rerouted


@cache
def _dgx_with_peer_copies() -> plait.Topology:
    """Returns dgx1v with peer copies over PCIe: a single driver call on any route."""
    data = json.loads(machine("dgx1v").to_json())
    data["links"].append(
        {
            "kind": "net",
            "src": "gpu0",
            "dst": "gpu7",
            "width": 1,
            "gb_per_s": 9.0,
            "latency_ns": 4000.0,
            "resources": ["gpu0.host.up", "gpu7.host.down"],
        }
    )
    return plait.Topology.from_json(json.dumps(data))


def wotir() -> list[PaperRow]:
    topology, size = machine("dgx1v"), 256 * MB
    near = size / plait.simulate(put(topology, 0, 1, size), topology).total_ns
    peer = _dgx_with_peer_copies()

    def by_pcie_us(size: int) -> float:
        return us(put(peer, 0, 7, size), peer)

    def by_route_us(size: int) -> float:
        return us(rerouted(topology, (0, 3, 7), size, MB), topology)

    sizes = [1 << power for power in range(10, 29)]
    slower = by_route_us(sizes[0]) > by_pcie_us(sizes[0])
    adaptive = all(min(by_route_us(s), by_pcie_us(s)) <= by_pcie_us(s) for s in sizes)
    return [
        PaperRow(
            "W1",
            "must",
            "copy to an NVLink neighbour (dgx1v, 0 to 1)",
            "22 GB/s",
            22.0,
            near,
            "GB/s",
        ),
        PaperRow(
            "W1",
            "must",
            "copy 0 to 7 over PCIe",
            "9 GB/s",
            9.0,
            size / by_pcie_us(size) / 1e3,
            "GB/s",
        ),
        PaperRow(
            "W1",
            "must",
            "copy 0 to 7 by the relay GPU 3, chunks of 1 MB",
            "nearly 18 GB/s",
            18.0,
            size / by_route_us(size) / 1e3,
            "GB/s",
        ),
        _route_gpus(topology),
        order(
            "W3",
            "1 KB by the route is slower than PCIe; the faster of both never is",
            slower and adaptive,
        ),
        missing(
            "W4",
            "interference on the relay GPU",
            "only the tail suffers",
            "a fluid model has no tails; to be measured on GPUs",
        ),
        missing(
            "W5",
            "training time against PCIe placement",
            "up to -34 %",
            "needs the compute times of the training runs",
        ),
    ]


def _route_gpus(topology: plait.Topology) -> PaperRow:
    routes = {
        (a, b): [p.name for p in topology.paths_between(a, b) if p.name.startswith("relay:")]
        for a in range(8)
        for b in range(8)
        if a != b and not any(len(p.links) == 1 for p in topology.paths_between(a, b))
    }
    return PaperRow(
        "W2",
        "must",
        f"pairs without a link ({len(routes)} ordered) with two relay GPUs or more",
        "all",
        None,
        None,
        holds=bool(routes) and all(len(r) >= 2 for r in routes.values()),
    )
