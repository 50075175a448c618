"""A machine's facts as other tools state them, and the topology that they give.

Facts state how devices are connected. Speeds that no fact states come from gpu_models.json and from
shares of nominal speed; the topology's source says so.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import re
from typing import Any
from xml.etree import ElementTree

import plait

# GB/s that one lane carries, by generation of PCIe. 5.0: measured on HGX H200 (55.3 of 63.0 GB/s
# for 16 lanes). 4.0: as in topologies/daisy.json. The others: the same shares of nominal speed.
LANE_GB_PER_S = {1: 0.2, 2: 0.39, 3: 0.77, 4: 1.5625, 5: 3.456, 6: 6.9}
GENERATION_OF_GT = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
NET_SHARE = 0.96
NVLINK_NS, PCIE_NS, BUS_NS, NET_NS = 700, 1500, 500, 2500
MOST_GPUS = 64
MOST_DEPTH = 100  # of elements inside elements; files of NCCL and hwloc have about 20


@dataclasses.dataclass
class Gpu:
    numa: int = -1  # NUMA node; -1 = unknown
    model: str = ""  # "NVIDIA L40S"; empty = unknown
    address: str = ""  # PCI address
    host_gb_per_s: float = 0.0  # speed of its PCIe link; 0 = by model
    lanes: int = 16
    switches: tuple[str, ...] = ()  # PCIe switches between the GPU and its root port
    host_nvlinks: int = 0  # NVLinks to the CPU, in the place of PCIe (POWER)


@dataclasses.dataclass
class Nic:
    name: str
    gb_per_s: float  # nominal; 0 = unknown
    gpus: tuple[int, ...] = ()  # the nearest GPUs; empty = those of its NUMA node
    numa: int = -1


@dataclasses.dataclass
class Machine:
    """Facts of a file. Pairs of `nvlinks` are (smaller index, larger index)."""

    source: str
    gpus: list[Gpu] = dataclasses.field(default_factory=list)
    nvlinks: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    switch_links: dict[int, int] = dataclasses.field(default_factory=dict)  # NVLinks to NVSwitch
    switch_gb_per_s: dict[str, float] = dataclasses.field(default_factory=dict)  # upstream ports
    numa_nodes: list[int] = dataclasses.field(default_factory=list)
    nics: list[Nic] = dataclasses.field(default_factory=list)

    def check(self, file: str) -> Machine:
        """Returns the machine; raises ParseError if it has no GPU or too many."""
        if not self.gpus:
            raise plait.ParseError(f"--from {file}: wanted a GPU or more, found none")
        if len(self.gpus) > MOST_GPUS:
            raise plait.ParseError(
                f"--from {file}: wanted at most {MOST_GPUS} GPUs of one machine, found "
                f"{len(self.gpus)}"
            )
        return self

    def share_switches(self) -> None:
        """Forgets switches with a single GPU: their upstream port is that GPU's own link."""
        users: dict[str, int] = {}
        for gpu in self.gpus:
            for switch in gpu.switches:
                users[switch] = users.get(switch, 0) + 1
        names = {name: f"switch{i}" for i, name in enumerate(n for n in users if users[n] > 1)}
        for gpu in self.gpus:
            gpu.switches = tuple(names[name] for name in gpu.switches if name in names)
        speeds = self.switch_gb_per_s
        self.switch_gb_per_s = {names[name]: speeds[name] for name in names if name in speeds}


def xml_of(said: str, tool: str, file: str) -> ElementTree.Element:
    """Returns the root element of a tool's XML. Raises ParseError for XML that is broken, or too
    deep for readers that call themselves for each element."""
    try:
        root = ElementTree.fromstring(said)
    except ElementTree.ParseError as error:
        raise plait.ParseError(f"--from {file}: wanted XML of {tool}, found {error}") from error
    level, depth = list(root), 1
    while level:
        level, depth = [child for element in level for child in element], depth + 1
        if depth > MOST_DEPTH:
            raise plait.ParseError(
                f"--from {file}: wanted XML of {tool} with at most {MOST_DEPTH} elements inside "
                "each other, found more"
            )
    return root


def _gpu_models() -> dict[str, Any]:
    """Returns gpus/models.json, which the core reads too (docs/tune.md has its keys)."""
    file = importlib.resources.files("plait.machines").joinpath("gpu_models.json")
    read: dict[str, Any] = json.loads(file.read_text())
    return read


GPU_MODELS = _gpu_models()
NVLINK_SHARE: float = GPU_MODELS["share_of_nominal"]
BUS_GB_PER_S: float = GPU_MODELS["bus_gb_per_s"]
DRAM_GB_PER_S: float = GPU_MODELS["dram_gb_per_s"]


def models() -> list[dict[str, Any]]:
    """Returns the rows of GPUs with figures; the first whose words stand in a GPU's name counts."""
    return [row for row in GPU_MODELS["models"] if "memory_gb_per_s" in row]


def model_of(name: str) -> dict[str, Any]:
    """Returns the row whose words stand in a GPU's name; an empty row if the name is unknown."""

    def words(text: str) -> str:
        return f" {' '.join(re.split('[^a-z0-9]+', text.lower()))} "

    for row in models():
        if words(row["name"]) in words(name):
            return row
    return {}


def model_of_device(device: str) -> str:
    """Returns the model of a PCI device number ("0x2330"); empty if unknown."""
    found = [row["name"] for row in models() if device.lower() in row.get("devices", ())]
    return f"NVIDIA {found[0]}" if found else ""


def pcie_gb_per_s(generation: int, lanes: int) -> float:
    return LANE_GB_PER_S[generation] * lanes


def pcie_of_speed(speed: str, lanes: int) -> float:
    """Returns GB/s of a link as the kernel states it ("16.0 GT/s PCIe"); 0 = unknown."""
    words = speed.split()
    try:
        generation = GENERATION_OF_GT[float(words[0])]
    except (IndexError, KeyError, ValueError):
        return 0.0
    return pcie_gb_per_s(generation, lanes)


class _Writer:
    """Makes the JSON of a topology; every speed is written once, as a resource."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.rows = [model_of(gpu.model) for gpu in machine.gpus]
        self.resources: dict[str, float] = {}
        self.links: list[dict[str, Any]] = []
        stated = sorted({*machine.numa_nodes, *(gpu.numa for gpu in machine.gpus)} - {-1})
        self.nodes = stated or [0]

    def resource(self, name: str, gb_per_s: float) -> str:
        self.resources.setdefault(name, round(gb_per_s, 3))
        return name

    def link(self, kind: str, ends: tuple[str, str], width: int, speed: float, ns: int) -> None:
        src, dst = ends
        one = {"kind": kind, "src": src, "dst": dst, "width": width, "gb_per_s": round(speed, 3)}
        self.links.append(one | {"latency_ns": ns})

    def nvlinks(self) -> None:
        count = len(self.machine.gpus)
        for src in range(count):
            for dst in range(count):
                if src == dst:
                    continue
                direct = self.machine.nvlinks.get((min(src, dst), max(src, dst)), 0)
                ports = [self.machine.switch_links.get(gpu, 0) for gpu in (src, dst)]
                nominal = self.rows[src].get("nvlink_gb_per_s", 25.0)
                width = direct or min(ports)
                if width == 0:
                    continue
                speed = width * nominal * NVLINK_SHARE
                self.link("nvlink", (f"gpu{src}", f"gpu{dst}"), width, speed, NVLINK_NS)
                if not direct:
                    self.links[-1]["resources"] = [
                        self.resource(f"gpu{src}.nvlink.out", ports[0] * nominal * NVLINK_SHARE),
                        self.resource(f"gpu{dst}.nvlink.in", ports[1] * nominal * NVLINK_SHARE),
                    ]

    def host_link_of(self, index: int) -> tuple[str, int, float]:
        """Returns kind, width and GB/s of a GPU's link to host memory."""
        gpu, row = self.machine.gpus[index], self.rows[index]
        if gpu.host_nvlinks:
            speed = gpu.host_nvlinks * row.get("nvlink_gb_per_s", 25.0) * NVLINK_SHARE
            return "nvlink", gpu.host_nvlinks, speed
        if "host_gb_per_s" in row:
            return row["host_kind"], row["host_width"], row["host_gb_per_s"]
        return "pcie", gpu.lanes, gpu.host_gb_per_s or pcie_gb_per_s(row.get("pcie", 4), gpu.lanes)

    def host_links(self) -> None:
        for index, gpu in enumerate(self.machine.gpus):
            node = f"numa{gpu.numa if gpu.numa in self.nodes else self.nodes[0]}"
            kind, width, speed = self.host_link_of(index)
            dram = self.resource(f"{node}.dram", max(DRAM_GB_PER_S, speed))
            for direction in ("up", "down"):
                ends = (f"gpu{index}", node) if direction == "up" else (node, f"gpu{index}")
                self.link(kind, ends, width, speed, PCIE_NS)
                used = [self.resource(f"gpu{index}.host.{direction}", speed), dram]
                for switch in gpu.switches:
                    port = self.machine.switch_gb_per_s.get(switch, speed)
                    used.append(self.resource(f"{switch}.{direction}", port))
                self.links[-1]["resources"] = used

    def buses(self) -> None:
        for src in self.nodes:
            for dst in self.nodes:
                if src != dst:
                    bus = self.resource(f"numa{src}.numa{dst}.bus", BUS_GB_PER_S)
                    ends = (f"numa{src}", f"numa{dst}")
                    self.link("bus", ends, 1, BUS_GB_PER_S, BUS_NS)
                    self.links[-1]["resources"] = [bus]

    def network(self) -> dict[str, Any] | None:
        """Returns the section of the NICs, if their speed is known and each GPU has one."""
        nics = [nic for nic in self.machine.nics if nic.gb_per_s > 0]
        if not nics:
            return None
        top = max(nic.gb_per_s for nic in nics)
        listed: list[dict[str, Any]] = []
        reached: set[int] = set()
        for nic in nics:
            near = nic.gpus or tuple(
                i for i, gpu in enumerate(self.machine.gpus) if gpu.numa == nic.numa
            )
            if nic.gb_per_s < top or not near:
                continue
            affinity = [f"gpu{gpu}" for gpu in near]
            number = len(listed)
            listed.append({"name": f"nic{number}", "rail": number, "affinity": affinity})
            reached.update(near)
        if reached != set(range(len(self.machine.gpus))):
            return None
        return {"nodes": 1, "gb_per_s": round(top * NET_SHARE, 3), "latency_ns": NET_NS} | {
            "nics": listed
        }

    def devices(self) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        for index, gpu in enumerate(self.machine.gpus):
            one: dict[str, Any] = {"name": f"gpu{index}", "numa": gpu.numa}
            made.append(one | {k: v for k in ("model", "address") if (v := getattr(gpu, k))})
        return made + [
            {"name": f"numa{node}", "numa": node, "model": "host memory"} for node in self.nodes
        ]

    def parameters(self) -> dict[str, Any]:
        """Returns those of the shipped machine with this GPU, and the GPU's own memory speed."""
        row = self.rows[0]
        made: dict[str, Any] = {}
        if "like" in row:
            stated = json.loads(plait.load_topology(row["like"]).to_json()).get("parameters", {})
            made = {
                name: one | {"source": f"as {row['like']}: {one['source']}"}
                for name, one in stated.items()
            }
        if row:
            source = f"data sheet of {row['name']}, nominal"
            made["gpu_memory_gb_per_s"] = {"value": row["memory_gb_per_s"], "source": source}
        return made


def as_json(machine: Machine, name: str) -> dict[str, Any]:
    """Returns the topology of a machine's facts as its file has it (docs/topology.md). `source`
    says which tool stated the facts and what is a guess."""
    made = _Writer(machine)
    made.nvlinks()
    made.host_links()
    made.buses()
    source = f"{machine.source}; speeds by data sheet and the shares that HGX H200 reaches"
    unknown = sorted({gpu.model or "not stated" for gpu in machine.gpus if not model_of(gpu.model)})
    if unknown:
        source += f"; GPU model {', '.join(unknown)}: PCIe 4.0 x16 and NVLinks of 25 GB/s guessed"
    source += f"; host memory of {DRAM_GB_PER_S:g} GB/s and buses of {BUS_GB_PER_S:g} GB/s guessed"
    said = {
        "schema": "plait.topology/1",
        "name": name,
        "source": f"{source}; none was measured here",
        "devices": made.devices(),
        "resources": [{"name": key, "gb_per_s": speed} for key, speed in made.resources.items()],
        "links": made.links,
        "parameters": made.parameters(),
    }
    if (network := made.network()) is not None:
        said["network"] = network
    return said
