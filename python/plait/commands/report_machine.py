"""The machine of the report's page: its devices and links as boxes and edges, and the part of a
call in which each is busy. report_drawing.py draws them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean
from typing import Any

import plait
from plait.timeline_rows import names_of

SWITCH, NETWORK = "switch", "network"
Add = Callable[[str, str, Iterable[str], float], None]  # an edge's ends, resources, GB/s


@dataclass(frozen=True)
class Box:
    """A device or a switch. u, width: place along the ranks, in cells; names: its resources."""

    key: str
    layer: str  # "hub", "rank", "pcie", "host", "net"
    label: str
    u: float
    width: float
    names: tuple[str, ...] = ()


@dataclass
class Edge:
    """A link, both directions. names: resources of the simulator, whose largest share counts."""

    first: str
    second: str
    gb_per_s: float
    names: set[str] = field(default_factory=set)

    @property
    def key(self) -> str:
        return f"{self.first}-{self.second}"


@dataclass(frozen=True)
class Node:
    """The part of a machine that is drawn: a node with ranks."""

    number: int
    cells: int
    boxes: dict[str, Box]
    edges: list[Edge]

    def in_layer(self, layer: str) -> list[Box]:
        return [box for box in self.boxes.values() if box.layer == layer]

    def arcs(self) -> list[Edge]:
        """Returns the edges between two ranks."""
        return [edge for edge in self.edges if self._layers(edge) == {"rank"}]

    def straight(self) -> list[Edge]:
        return [edge for edge in self.edges if len(self._layers(edge)) == 2]

    def buses(self) -> list[Edge]:
        """Returns the edges between two host memories."""
        return [edge for edge in self.edges if self._layers(edge) == {"host"}]

    def _layers(self, edge: Edge) -> set[str]:
        return {self.boxes[edge.first].layer, self.boxes[edge.second].layer}


def nodes(topology: plait.Topology, ranks: int) -> list[Node]:
    """Returns the nodes that hold the first ranks."""
    facts = _Facts(topology, ranks)
    numbers = dict.fromkeys(facts.devices[place].node for place in facts.places)
    return [_node(facts, number) for number in numbers]


def shares(timeline: plait.Timeline) -> dict[str, float]:
    """Returns the part of the call in which each used resource is busy."""
    total = max(timeline.total_ns, 1e-9)
    return {load.name: load.busy_ns / total for load in timeline.resources if load.bytes}


def busiest(names: Iterable[str], of: Mapping[str, float]) -> int:
    """Returns the largest share of the resources, in percent."""
    return round(100 * max((of.get(name, 0.0) for name in names), default=0.0))


def use_of(node: Node, of: Mapping[str, float]) -> dict[str, int]:
    """Returns the percent of each edge and box of a node that is used."""
    found = {edge.key: busiest(edge.names, of) for edge in node.edges}
    found |= {box.key: busiest(box.names, of) for box in node.boxes.values()}
    return {key: percent for key, percent in found.items() if percent}


def in_words(name: str) -> str:
    """Returns a resource in words: 'gpu0.nvlink.out' -> 'NVLink out of GPU 0'."""
    if several := re.fullmatch(r"(.*) and (\d+) alike", name):
        return f"{in_words(several[1])} and {several[2]} alike"
    if ", " in name:
        return " and ".join(in_words(one) for one in name.split(", "))
    number = r"(\d[\d.,]*)"
    for pattern, words in (
        (rf"gpu{number}\.nvlink\.(out|in)", r"NVLink \2 of GPU \1"),
        (rf"gpu{number}\.host\.up", r"GPU \1 to host memory"),
        (rf"gpu{number}\.host\.down", r"host memory to GPU \1"),
        (rf"gpu{number}\.host\.both", r"GPU \1 and host memory"),
        (rf"gpu{number}\.memory", r"memory of GPU \1"),
        (rf"numa{number}\.numa{number}\.bus", r"bus from host memory \1 to \2"),
        (rf"numa{number}\.dram.*", r"host memory \1"),
        (rf"switch{number}\.(up|down)", r"PCIe switch \1 \2"),
        (rf"cpu{number}\.core", r"core \1"),
        (rf"cpu{number}\.dram", r"memory of core \1"),
        (rf"nic{number}\.(out|in)", r"NIC \1 \2"),
        (rf"nvlink:{number}>{number}", r"NVLink \1 to \2"),
    ):
        if re.fullmatch(pattern, name):
            said = re.sub(pattern, words, name).replace("in of", "into").replace("..", " to ")
            return re.sub(r"GPU (\d+(?: to|,))", r"GPUs \1", said)
    return name


def sentence(of: Mapping[str, float]) -> str:
    """Returns the busiest links in words; links that are alike share a name."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name, share in of.items():
        kind = re.sub(r"\d+", "#", name)
        groups.setdefault((kind, round(100 * share)), []).append(name)
    top = sorted(groups.items(), key=lambda item: -item[0][1])[:3]
    said = [f"{in_words(names_of(names))}: {percent} %" for (_, percent), names in top if percent]
    return f"Busiest are {'; '.join(said)}." if said else "No link is busy for 1 % of the call."


class _Facts:
    """Values of a topology that every access would copy."""

    def __init__(self, topology: plait.Topology, ranks: int) -> None:
        self.topology = topology
        self.devices = topology.devices
        self.links = topology.links
        self.names = [resource.name for resource in topology.resources]
        self.speeds = {one.name: one.gb_per_s for one in topology.resources}
        self.places = topology.rank_devices()[:ranks]
        self.used = Counter(one for link in self.links for one in {*link.resources})
        hosts = {i for i, device in enumerate(self.devices) if device.kind == "host"}
        self.buses = {
            self.names[one]
            for link in self.links
            if link.src in hosts and link.dst in hosts
            for one in link.resources
            if ".dram" not in self.names[one]
        }

    def key(self, device: int) -> str:
        one = self.devices[device]
        return f"{one.kind}{one.index}"


def _node(facts: _Facts, number: int) -> Node:
    ranks = [place for place in facts.places if facts.devices[place].node == number]
    hosts = [
        i
        for i, device in enumerate(facts.devices)
        if device.kind == "host" and device.node == number
    ]
    edges = _edges(facts, {*ranks}, {*hosts})
    boxes = _boxes(facts, ranks, hosts, edges)
    known = [edge for edge in edges.values() if {edge.first, edge.second} <= {*boxes}]
    return Node(number, max(len(ranks), len(hosts)), boxes, known)


def _edges(facts: _Facts, ranks: set[int], hosts: set[int]) -> dict[tuple[str, str], Edge]:
    """Returns the edges of a node: between ranks, to its switches, host memories, network."""
    edges: dict[tuple[str, str], Edge] = {}

    def add(first: str, second: str, names: Iterable[str], speed: float) -> None:
        pair = (first, second) if (second, first) not in edges else (second, first)
        edge = edges.setdefault(pair, Edge(*pair, speed))
        edge.names |= {*names}

    for link in facts.links:
        names = [facts.names[one] for one in link.resources]
        ends = {link.src, link.dst}
        if link.kind == "net":
            _add_net(facts, link, names, ranks, add)
        elif not ends <= ranks | hosts:
            continue
        elif ends <= ranks:
            src, dst = facts.key(link.src), facts.key(link.dst)
            if not names or all(facts.used[one] == 1 for one in link.resources):
                labels = [facts.topology.device_label(one) for one in (link.src, link.dst)]
                add(src, dst, names or [f"{link.kind}:{'>'.join(labels)}"], link.gb_per_s)
            elif link.kind == "nvlink":
                add(src, SWITCH, names[:1], facts.speeds[names[0]])
                add(dst, SWITCH, names[-1:], facts.speeds[names[-1]])
        elif ends <= hosts:
            add(facts.key(link.src), facts.key(link.dst), names, link.gb_per_s)
        elif not facts.buses & {*names}:  # else the way over the bus to the far host memory
            _add_host(facts, link, names, ranks, add)
    return edges


def _add_net(facts: _Facts, link: Any, names: list[str], ranks: set[int], add: Add) -> None:
    """Adds the edges of a link between nodes: a NIC stands for its GPU, or its host memory."""
    first, last = (names[0], names[-1]) if names else ("", "")
    for end, name in ((link.src, first), (link.dst, last)):
        if end not in ranks:
            continue
        owner = end
        nic = re.fullmatch(r"nic(\d+)\.\w+", name)
        if nic:
            owners = [
                device.affinity
                for device in facts.devices
                if device.kind == "nic" and device.index == int(nic[1])
            ]
            owner = owners[0][0] if owners and owners[0] else end
        speed = facts.speeds.get(name, link.gb_per_s)
        add(facts.key(owner), NETWORK, [name or f"net:{link.src}>{link.dst}"], speed)


def _add_host(facts: _Facts, link: Any, names: list[str], ranks: set[int], add: Add) -> None:
    """Adds the edge of a rank and its host memory, through a PCIe switch if there is one."""
    rank, host = (link.src, link.dst) if link.src in ranks else (link.dst, link.src)
    shared = [name for name in names if re.match(r"switch\d+\.", name)]
    own = [name for name in names if ".dram" not in name and name not in shared]
    if shared:
        switch = shared[0].split(".")[0]
        add(facts.key(rank), switch, own, link.gb_per_s)
        add(switch, facts.key(host), shared, facts.speeds[shared[0]])
    else:
        add(facts.key(rank), facts.key(host), own, link.gb_per_s)


def _boxes(
    facts: _Facts, ranks: list[int], hosts: list[int], edges: dict[tuple[str, str], Edge]
) -> dict[str, Box]:
    """Returns the boxes of a node; devices that share a link stand near each other."""
    cells = max(len(ranks), len(hosts))
    boxes: dict[str, Box] = {}

    def add(box: Box) -> None:
        boxes[box.key] = box

    each = cells / max(1, len(ranks))
    for turn, rank in enumerate(ranks):
        device = facts.devices[rank]
        name = "core" if device.kind == "cpu" else "GPU"
        memory = (f"gpu{device.index}.memory", f"node{device.node}.gpu{device.index}.memory")
        label = f"{name} {device.index}"
        add(Box(facts.key(rank), "rank", label, (turn + 0.5) * each, 0.62, memory))
    ends = {end for pair in edges for end in pair}
    for name in sorted(end for end in ends if re.fullmatch(r"switch\d+", end)):
        of = [boxes[end] for pair in edges if name in pair for end in pair if end in boxes]
        of = [box for box in of if box.layer == "rank"]
        add(_above(of, Box(name, "pcie", "PCIe switch", 0, 0)))
    _add_hosts(facts, hosts, edges, boxes, cells)
    if SWITCH in ends:
        of = [box for box in boxes.values() if box.layer == "rank"]
        add(_above(of, Box(SWITCH, "hub", "NVSwitch", 0, 0)))
    if NETWORK in ends:
        add(Box(NETWORK, "net", "network between nodes", cells / 2, cells - 0.38))
    return boxes


def _above(of: list[Box], box: Box) -> Box:
    """Returns the box with the place of all boxes of `of`."""
    left = min(one.u - one.width / 2 for one in of)
    right = max(one.u + one.width / 2 for one in of)
    return Box(box.key, box.layer, box.label, (left + right) / 2, right - left, box.names)


def _add_hosts(
    facts: _Facts,
    hosts: list[int],
    edges: dict[tuple[str, str], Edge],
    boxes: dict[str, Box],
    cells: int,
) -> None:
    """Adds host memories: below their ranks, or side by side if some have no ranks."""
    made = []
    for host in hosts:
        key = facts.key(host)
        near = [boxes[end] for pair in edges if key in pair for end in pair if end in boxes]
        names = tuple(name for name in facts.names if name.startswith(f"numa{key[4:]}.dram"))
        label = f"host memory {key[4:]}" if len(hosts) > 1 else "host memory"
        box = Box(key, "host", label, 0, 0, names)
        made.append(_above(near, box) if near else box)
    in_place = sorted(made, key=lambda box: box.u)
    apart = all(one.u + one.width / 2 < two.u - two.width / 2 for one, two in pairwise(in_place))
    if not apart or not all(box.width for box in made):
        each = cells / len(made)
        order = sorted(made, key=lambda box: int(box.key[4:]))
        made = [
            Box(box.key, box.layer, box.label, (turn + 0.5) * each, 0.8 * each, box.names)
            for turn, box in enumerate(order)
        ]
    for box in made:
        boxes[box.key] = box


def alike(one: Node, two: Node, used: Iterable[tuple[dict[str, int], dict[str, int]]]) -> bool:
    """True if two nodes have the same boxes and links, and are used alike at each size."""
    if [*map(_shape, one.boxes.values())] != [*map(_shape, two.boxes.values())]:
        return False
    return all(
        sorted(first.values()) == sorted(second.values())
        and abs(mean(first.values() or [0]) - mean(second.values() or [0])) < 1
        for first, second in used
    )


def _shape(box: Box) -> tuple[str, float, float]:
    return box.layer, box.u, box.width
