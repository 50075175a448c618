"""Topology template of `plait topo --new`: two sockets with PCIe GPUs.

Every figure is a guess for PCIe 4.0, marked as a guess in the source, for the user to replace.
"""

from __future__ import annotations

from typing import Any

GUESS = "a guess for PCIe 4.0: replace it by a measured figure and its source"
GPUS, SOCKETS = 4, 2
PCIE_GB_PER_S, BUS_GB_PER_S, DRAM_GB_PER_S = 25, 40, 150
PARAMETERS = {"copy_launch_ns": 9000, "kernel_launch_ns": 4000, "gpu_memory_gb_per_s": 2000}


def _link(kind: str, src: str, dst: str, gb_per_s: float, resource: str) -> dict[str, Any]:
    """Returns a direction of a link. Links with the same resource share the bandwidth."""
    ends = {"kind": kind, "src": src, "dst": dst}
    return ends | {"gb_per_s": gb_per_s, "latency_ns": 1500, "resources": [resource]}


def template(name: str) -> dict[str, Any]:
    """Returns the topology: GPUs reach the socket's memory; a bus joins the sockets."""
    links = []
    for gpu in range(GPUS):
        memory = f"numa{gpu * SOCKETS // GPUS}"
        for src, dst in ((f"gpu{gpu}", memory), (memory, f"gpu{gpu}")):
            links.append(_link("pcie", src, dst, PCIE_GB_PER_S, f"{memory}.dram"))
    buses = {(0, 1): "numa0.numa1.bus", (1, 0): "numa1.numa0.bus"}
    for (one, other), bus in buses.items():
        links.append(_link("bus", f"numa{one}", f"numa{other}", BUS_GB_PER_S, bus))
    speeds = {f"numa{one}.dram": DRAM_GB_PER_S for one in range(SOCKETS)}
    speeds |= dict.fromkeys(buses.values(), BUS_GB_PER_S)
    gpus = [{"name": f"gpu{gpu}", "numa": gpu * SOCKETS // GPUS} for gpu in range(GPUS)]
    return {
        "schema": "plait.topology/1",
        "name": name,
        "source": GUESS,
        "devices": gpus + [{"name": f"numa{one}", "numa": one} for one in range(SOCKETS)],
        "resources": [{"name": key, "gb_per_s": speed} for key, speed in speeds.items()],
        "links": links,
        "network": {
            "nodes": 1,
            "gb_per_s": 24,
            "latency_ns": 2500,
            "nics": [{"name": "nic0", "rail": 0, "affinity": ["numa0", "numa1"]}],
        },
        "parameters": {key: {"value": v, "source": GUESS} for key, v in PARAMETERS.items()},
    }
