"""Reads the XML that NCCL writes to NCCL_TOPO_DUMP_FILE, or reads from NCCL_TOPO_FILE."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import plait
from plait.machines.facts import Gpu, Machine, Nic, model_of_device, pcie_of_speed, xml_of

SWITCH_CLASS = "0x068000"  # PCI class of an NVSwitch, in the attribute tclass of an NVLink
CPU_CLASS = "0x068001"  # of the CPU's end of an NVLink (POWER9)
GPU_CLASSES = ("0x030200", "0x030000")
BRIDGE_CLASS = "0x060400"
MOST = 2**31 - 1


def read(said: str, file: str) -> Machine:
    """Returns the facts of the <system>. Raises ParseError if the XML is broken, or contradicts
    itself."""
    if (systems := len(re.findall(r"<system\b", said))) > 1:
        raise plait.ParseError(
            f"--from {file}: wanted one <system>, the XML of one machine, found {systems}"
        )
    begin, end = said.find("<system"), said.find("</system>")
    system = xml_of(said[begin : end + len("</system>")], "NCCL", file)
    reader = _Reader(file)
    for cpu in system.iter("cpu"):
        numa = _number(cpu, "numaid", -1, file)
        if numa >= 0 and numa not in reader.machine.numa_nodes:
            reader.machine.numa_nodes.append(numa)
        reader.walk(cpu, numa, ())
    return reader.finish()


def _number(
    element: ElementTree.Element, key: str, otherwise: int, file: str, least: int = -1
) -> int:
    """Returns an attribute from `least` to MOST; `otherwise` if the element states none."""
    stated = element.get(key, "")
    if not stated:
        return otherwise
    wanted = f"--from {file}: wanted a whole number"
    try:
        found = int(stated, 0)
    except ValueError:
        raise plait.ParseError(f"{wanted} as {key} of <{element.tag}>, found {stated}") from None
    if not least <= found <= MOST:
        raise plait.ParseError(
            f"{wanted} from {least} to {MOST} as {key} of <{element.tag}>, found {stated}"
        )
    return found


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.machine = Machine("NCCL's topology XML")
        self.ends: list[list[tuple[str, int, str]]] = []  # of each GPU: target, links, class
        self.nics: list[tuple[Nic, tuple[str, ...]]] = []
        self.numbers: list[int] = []  # CUDA's number of each GPU; -1 = not stated

    def walk(self, element: ElementTree.Element, numa: int, bridges: tuple[str, ...]) -> None:
        """Visits devices; `bridges` are the PCIe switches above, the outermost first."""
        for child in element:
            if child.tag == "net":
                speed = max(0, _number(child, "speed", 0, self.file)) / 8000  # Mbit/s
                nic = Nic(child.get("name", "net"), speed, (), numa)
                if _number(child, "port", 1, self.file) <= 1:
                    self.nics.append((nic, bridges))
            elif child.tag != "pci":
                self.walk(child, numa, bridges)
            elif child.get("class") in GPU_CLASSES:
                self.add_gpu(child, numa, bridges)
            else:
                self.walk(child, numa, (*bridges, *self.bridge_of(child)))

    def bridge_of(self, pci: ElementTree.Element) -> tuple[str, ...]:
        if pci.get("class") != BRIDGE_CLASS:
            return ()
        name = pci.get("busid", "")
        if (speed := self.speed_of(pci)) > 0:
            self.machine.switch_gb_per_s[name] = speed
        return (name,)

    def speed_of(self, pci: ElementTree.Element) -> float:
        return pcie_of_speed(
            pci.get("link_speed", ""), _number(pci, "link_width", 16, self.file, 0)
        )

    def add_gpu(self, pci: ElementTree.Element, numa: int, bridges: tuple[str, ...]) -> None:
        lanes = _number(pci, "link_width", 16, self.file, 0) or 16
        model = model_of_device(pci.get("device", ""))
        speed = self.speed_of(pci)
        gpu = Gpu(numa, model, pci.get("busid", ""), speed, lanes, bridges)
        self.machine.gpus.append(gpu)
        stated = pci.find("gpu")
        self.numbers.append(-1 if stated is None else _number(stated, "dev", -1, self.file))
        self.ends.append(
            [
                (
                    link.get("target", ""),
                    _number(link, "count", 1, self.file, 1),
                    link.get("tclass", ""),
                )
                for link in pci.iter("nvlink")
            ]
        )

    def finish(self) -> Machine:
        """Orders GPUs by CUDA's number, then PCI address; finds the other ends of NVLinks."""
        gpus = self.machine.gpus
        order = sorted(range(len(gpus)), key=lambda i: (self.numbers[i], gpus[i].address))
        self.machine.gpus = [self.machine.gpus[i] for i in order]
        index = {gpu.address: i for i, gpu in enumerate(self.machine.gpus)}
        self._check_unique([f'busid="{gpu.address}"' for gpu in gpus if gpu.address])
        self._check_unique([f'dev="{number}"' for number in self.numbers if number >= 0])
        self._check_links([gpu.address for gpu in gpus])
        for src, ends in enumerate(self.ends[i] for i in order):
            for target, count, kind in ends:
                if target in index:
                    pair = (min(src, index[target]), max(src, index[target]))
                    self.machine.nvlinks[pair] = count
                elif kind == CPU_CLASS:
                    self.machine.gpus[src].host_nvlinks += count
                elif kind == SWITCH_CLASS:
                    links = self.machine.switch_links
                    links[src] = links.get(src, 0) + count
        for nic, bridges in self.nics:
            nic.gpus = self.nearest(bridges)
            self.machine.nics.append(nic)
        self.machine.share_switches()
        return self.machine.check(self.file)

    def _check_unique(self, stated: list[str]) -> None:
        for one in stated:
            if stated.count(one) > 1:
                raise plait.ParseError(
                    f"--from {self.file}: wanted one GPU with {one}, found {stated.count(one)}"
                )

    def _check_links(self, names: list[str]) -> None:
        """Raises ParseError for NVLinks between listed GPUs that the two GPUs state differently. A
        link to a GPU outside the file is no error: a job may see a part of a machine. names: the
        address of each GPU."""
        counts = {
            (name, target): count
            for name, ends in zip(names, self.ends, strict=True)
            for target, count, _ in ends
            if target in names
        }
        for (src, dst), count in counts.items():
            if src == dst:
                raise plait.ParseError(
                    f"--from {self.file}: wanted another GPU as target of <nvlink>, found the "
                    f"GPU's own busid {src}"
                )
            if (back := counts.get((dst, src), 0)) != count:
                raise plait.ParseError(
                    f"--from {self.file}: wanted the same count of <nvlink> for {src} to {dst} and "
                    f"back, found {count} and {back}"
                )

    def nearest(self, bridges: tuple[str, ...]) -> tuple[int, ...]:
        """Returns the GPUs that share the innermost bridge; empty if no GPU shares one."""
        for bridge in reversed(bridges):
            found = [i for i, gpu in enumerate(self.machine.gpus) if bridge in gpu.switches]
            if found:
                return tuple(found)
        return ()
