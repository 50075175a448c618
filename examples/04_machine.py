"""User-defined machines: two sockets with two PCIe GPUs each, and two such nodes.

    python examples/04_machine.py FOLDER     writes box.json and box2.json to FOLDER, for -T
    plait plan all_reduce -T FOLDER/box.json (and plait report, simulate, verify --all)

Without FOLDER the files go to a new temporary folder.
"""

import json
import sys
import tempfile
from pathlib import Path

import plait


def link(kind: str, src: str, dst: str, gb_per_s: float, resources: list[str]) -> dict:
    ends = {"kind": kind, "src": src, "dst": dst}
    return ends | {"gb_per_s": gb_per_s, "latency_ns": 1500, "resources": resources}


def box() -> dict:
    """Returns a topology: GPUs on PCIe to the socket's memory, a bus per direction between
    sockets."""
    sockets, gpus = range(2), range(4)
    links = []
    for gpu in gpus:
        memory, dram = f"numa{gpu // 2}", f"numa{gpu // 2}.dram"
        links.append(link("pcie", f"gpu{gpu}", memory, 25, [dram]))
        links.append(link("pcie", memory, f"gpu{gpu}", 25, [dram]))
    for one, other in ((0, 1), (1, 0)):
        bus = f"numa{one}.numa{other}.bus"
        links.append(link("bus", f"numa{one}", f"numa{other}", 40, [bus]))
    resources = [{"name": f"numa{one}.dram", "gb_per_s": 150} for one in sockets]
    resources += [{"name": name, "gb_per_s": 40} for name in ("numa0.numa1.bus", "numa1.numa0.bus")]
    return {
        "schema": "plait.topology/1",
        "name": "box",
        "source": "two sockets with two PCIe 4.0 GPUs each, figures made up",
        "devices": [{"name": f"gpu{gpu}", "numa": gpu // 2} for gpu in gpus]
        + [{"name": f"numa{one}", "numa": one} for one in sockets],
        "resources": resources,
        "links": links,
        "network": {
            "gb_per_s": 24,
            "latency_ns": 2500,
            "nics": [
                {"name": f"nic{one}", "rail": one, "affinity": [f"numa{one}"]} for one in sockets
            ],
        },
        "parameters": {"copy_launch_ns": {"value": 9000, "source": "made up"}},
    }


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="plait-"))
    for nodes in (1, 2):
        said = box()
        said["network"]["nodes"] = nodes
        text = json.dumps(said)
        topology = plait.Topology.from_json(text)
        ranks = len(topology.rank_devices())
        request = plait.Request("all_reduce", 1 << 24, "fp32", ranks=ranks)
        best = plait.ranked(topology, request)[0][0]
        print(f"{nodes} node{'s' * (nodes > 1)}, {ranks} GPUs: {best.plan.label}")
        timeline = best.timeline
        print(f"  {timeline.busbw_gb_per_s:.1f} GB/s busbw, bound by {timeline.bound_by}")
        print(f"  {str(plait.verify(best.plan)).splitlines()[0]}")
        file = folder / ("box.json" if nodes == 1 else "box2.json")
        file.write_text(text)
        print(f"  wrote {file}")


if __name__ == "__main__":
    main()
