"""Reads the XML of hwloc 2 and later (`lstopo --of xml --whole-io`): NUMA nodes, PCIe bridges,
GPUs, NICs, and the NVLinks that hwloc's NVML backend found."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import plait
from plait.machines.facts import Gpu, Machine, Nic, model_of, model_of_device, xml_of

NVIDIA, AMD = "10de", "1002"
GPU_CLASSES = ("0300", "0302", "0380", "1200")
MATRICES = ("NVLinkBandwidth", "XGMIBandwidth")  # names by hwloc's parts NVML and RSMI
GPU_MEMORY = "GPUMemory"  # subtype of the NUMA nodes of Grace Hopper's GPUs
PCIE_SHARE = 0.878  # of the link speed that hwloc states: 55.3 of 63.0 GB/s on HGX H200


def read(said: str, file: str) -> Machine:
    """Returns the facts of the topology. Raises ParseError if the XML is broken or has no PCI
    devices."""
    root = xml_of(said[said.find("<topology") :], "hwloc", file)
    if not root.get("version", "").startswith(("2", "3")):
        raise plait.ParseError(
            f"--from {file}: wanted XML of hwloc 2 or later, found version "
            f"{root.get('version', '1')}"
        )
    reader = _Reader(root)
    try:
        for top in root.findall("object"):
            reader.walk(top, -1, ())
        reader.order_gpus()
        reader.add_nvlinks(root)
    except (ValueError, IndexError) as error:
        raise plait.ParseError(
            f"--from {file}: wanted numbers and PCI types as hwloc writes them, found {error}"
        ) from error
    if not reader.machine.gpus:
        raise plait.ParseError(
            f"--from {file}: wanted PCI devices of GPUs, found none; write the file with "
            "`lstopo --of xml --whole-io`"
        )
    addresses = [gpu.address for gpu in reader.machine.gpus if gpu.address]
    for address in addresses:
        if addresses.count(address) > 1:
            raise plait.ParseError(
                f'--from {file}: wanted one GPU with pci_busid="{address}", found '
                f"{addresses.count(address)}"
            )
    reader.machine.share_switches()
    return reader.machine.check(file)


def _numa_of(element: ElementTree.Element) -> int:
    """Returns the first NUMA node of this object; -1 = none."""
    nodes = [
        int(child.get("os_index", "-1"))
        for child in element.findall("object")
        if child.get("type") == "NUMANode" and child.get("subtype") != GPU_MEMORY
    ]
    return min(nodes, default=-1)


def _pci_kind(element: ElementTree.Element) -> tuple[str, str]:
    """Returns class and vendor of a PCI device: ("0302", "10de")."""
    words = element.get("pci_type", "").split()
    return (words[0], words[1].strip("[]").split(":")[0]) if len(words) > 1 else ("", "")


def _is_gpu(kind: tuple[str, str], vendor: str) -> bool:
    return kind[0] in GPU_CLASSES and kind[1] == vendor


def _link_speed(element: ElementTree.Element) -> float:
    """Returns GB/s of a PCI device's link; 0 = not stated. Raises ValueError."""
    stated = element.get("pci_link_speed", "0")
    try:
        speed = float(stated)
    except ValueError:
        speed = -1.0
    if not 0 <= speed < math.inf:
        device = f'<object type="{element.get("type")}" pci_busid="{element.get("pci_busid", "")}">'
        raise ValueError(f"pci_link_speed {stated} of {device}")
    return speed


def _whole(word: str) -> int:
    """Returns a value of a matrix. Raises ValueError."""
    if not re.fullmatch("[0-9]{1,20}", word):
        raise ValueError(f"{word[:30]} among the speeds of NVLinks")
    return int(word)


class _Reader:
    def __init__(self, root: ElementTree.Element) -> None:
        kinds = [_pci_kind(one) for one in root.iter("object")]
        # A GPU inside an AMD processor is no rank beside NVIDIA's.
        self.vendor = NVIDIA if any(_is_gpu(kind, NVIDIA) for kind in kinds) else AMD
        self.machine = Machine("hwloc's XML")
        self.gpu_of: dict[int, int] = {}  # gp_index of a GPU's objects -> GPU
        self.packages: set[int] = set()  # gp_index of each CPU

    def walk(self, element: ElementTree.Element, numa: int, bridges: tuple[str, ...]) -> None:
        found = _numa_of(element)
        numa = found if found >= 0 else numa
        kind = element.get("type", "")
        if kind == "Package":
            self.packages.add(int(element.get("gp_index", "-1")))
        if kind == "NUMANode" and element.get("subtype") != GPU_MEMORY:
            node = int(element.get("os_index", "0"))
            if node not in self.machine.numa_nodes:
                self.machine.numa_nodes.append(node)
        elif kind == "Bridge" and element.get("bridge_type", "") != "0-1":
            bridges = (*bridges, self.bridge_of(element))
        elif kind == "PCIDev" and _is_gpu(_pci_kind(element), self.vendor):
            self.add_gpu(element, numa, bridges)
        elif kind == "OSDev" and element.get("name", "").startswith(("mlx", "ib", "bnxt_re")):
            self.machine.nics.append(Nic(element.get("name", ""), 0.0, (), numa))
        for child in element.findall("object"):
            self.walk(child, numa, bridges)

    def bridge_of(self, element: ElementTree.Element) -> str:
        name = element.get("pci_busid", f"bridge{element.get('gp_index', '')}")
        if (speed := _link_speed(element)) > 0:
            self.machine.switch_gb_per_s[name] = speed * PCIE_SHARE
        return name

    def order_gpus(self) -> None:
        """Orders GPUs by PCI address, as CUDA and nvidia-smi number them."""
        gpus = self.machine.gpus
        order = sorted(range(len(gpus)), key=lambda at: gpus[at].address)
        self.machine.gpus = [gpus[at] for at in order]
        place = {at: now for now, at in enumerate(order)}
        self.gpu_of = {key: place[at] for key, at in self.gpu_of.items()}

    def add_gpu(self, element: ElementTree.Element, numa: int, bridges: tuple[str, ...]) -> None:
        device = element.get("pci_type", "").split()[1].strip("[]").split(":")[1]
        infos = {info.get("name"): info.get("value", "") for info in element.iter("info")}
        model = infos.get("GPUModel") or infos.get("PCIDevice") or model_of_device(f"0x{device}")
        speed = _link_speed(element) * PCIE_SHARE
        gpu = Gpu(numa, model, element.get("pci_busid", ""), speed, 16, bridges)
        for one in element.iter("object"):
            self.gpu_of[int(one.get("gp_index", "-1"))] = len(self.machine.gpus)
        self.machine.gpus.append(gpu)

    def add_nvlinks(self, root: ElementTree.Element) -> None:
        """Reads the matrices of NVLinks (MB/s of all links of a pair, a direction). Their
        other ends are GPUs, CPUs (POWER), or ports of NVSwitches."""
        for matrix in (*root.iter("distances2hetero"), *root.iter("distances2")):
            if matrix.get("name") in MATRICES:
                self.add_matrix(matrix)

    def add_matrix(self, matrix: ElementTree.Element) -> None:
        def words(tag: str) -> list[str]:
            return " ".join(one.text or "" for one in matrix.findall(tag)).split()

        ends = [int(word.split(":")[-1]) for word in words("indexes")]
        values = [_whole(word) for word in words("u64values")]
        for row, end in enumerate(ends):
            src = self.gpu_of.get(end, -1)
            if src < 0:
                continue
            nominal = model_of(self.machine.gpus[src].model).get("nvlink_gb_per_s", 25.0)
            for other, value in zip(ends, values[row * len(ends) :], strict=False):
                dst = self.gpu_of.get(other, -1)
                if value == 0 or dst == src:
                    continue
                links = max(1, round(value / 1000 / nominal))
                if dst >= 0:
                    self.machine.nvlinks[(min(src, dst), max(src, dst))] = links
                elif other in self.packages:
                    self.machine.gpus[src].host_nvlinks = links
                else:
                    held = self.machine.switch_links
                    held[src] = held.get(src, 0) + links
