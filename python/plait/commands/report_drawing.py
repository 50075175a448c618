"""Draws the machine of the report's page as SVG: switches above the ranks, host memory and the
network below, and each link as broad as its use at the size that the reader picks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from plait.commands.report_html import text, two_widths
from plait.commands.report_machine import NETWORK, Box, Edge, Node

ORDER = ("hub", "rank", "pcie", "host", "net")
STEPS = ("not used", "up to 25 %", "up to 50 %", "up to 75 %", "more")
MANY = 8  # cells of a row; more take the whole width of the page


def step(percent: int) -> int:
    """Returns the class of a use: 0 = not used, 4 = more than 75 %."""
    return min(4, -(-percent // 25))


@dataclass(frozen=True)
class Look:
    """Sizes in SVG units along the layers (thick, gap) and along the ranks (cell)."""

    is_wide: bool
    cell: float
    thick: Mapping[str, float]
    gap: Mapping[str, float]
    arc: float


def _look(node: Node, is_wide: bool) -> Look:
    if is_wide:
        room = 690.0 if node.cells <= MANY else 1050.0
        thick = {"hub": 30.0, "rank": 34.0, "pcie": 26.0, "host": 36.0, "net": 28.0}
        gap = {"hub": 62.0, "rank": 60.0, "pcie": 50.0, "host": 56.0, "net": 0.0}
        return Look(True, min(150.0, room / node.cells), thick, gap, 25.0)
    thick = {"hub": 26.0, "rank": 52.0, "pcie": 24.0, "host": 74.0, "net": 24.0}
    gap = {"hub": 52.0, "rank": 52.0, "pcie": 46.0, "host": 46.0, "net": 0.0}
    return Look(False, 48.0, thick, gap, 21.0)


@dataclass
class _Canvas:
    """Places of a node's layers, and the parts of its drawing: lines lie below boxes, figures
    above."""

    node: Node
    look: Look
    use: Mapping[str, int]
    turn_at: float = 0.0  # not 0: mirror the layers around this place
    lines: list[str] = field(default_factory=list)
    boxes: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start: dict[str, float] = {}
        at = 6.0 if self.look.is_wide else 12.0
        arcs = [self.span(edge) for edge in self.node.arcs()]
        if arcs:
            at += self.look.arc * max(arcs) + 10
        for layer in ORDER:
            if not self.node.in_layer(layer):
                continue
            self.start[layer] = at
            at += self.look.thick[layer]
            if layer == "host":
                at += 20 * max((self.span(edge) - 1 for edge in self.buses()), default=0)
            at += self.look.gap[layer]
        last = max(self.start, key=lambda layer: self.start[layer])
        self.length = at - self.look.gap[last] + 6

    def ordered(self, layer: str) -> list[str]:
        return [box.key for box in sorted(self.node.in_layer(layer), key=lambda box: box.u)]

    def span(self, edge: Edge) -> int:
        """Returns how many places apart the ends of an edge within a layer are."""
        places = self.ordered(self.node.boxes[edge.first].layer)
        return abs(places.index(edge.first) - places.index(edge.second))

    def buses(self) -> list[Edge]:
        """Returns the links between host memories to draw: of many, neighbours and those used."""
        found = self.node.buses()
        if len(found) <= 6:
            return found
        return [edge for edge in found if self.span(edge) == 1 or self.use.get(edge.key)]

    def at(self, u: float, v: float) -> tuple[float, float]:
        v = 2 * self.turn_at - v if self.turn_at else v
        along = 8 + u * self.look.cell
        return (along, v) if self.look.is_wide else (v, along)

    def edge(
        self, edge: Edge, points: str, label: tuple[float, float], anchor: str = "middle"
    ) -> None:
        percent = self.use.get(edge.key, 0)
        names = [self.node.boxes[end].label for end in (edge.first, edge.second)]
        tip = f"{' - '.join(names)}: {edge.gb_per_s:g} GB/s a direction"
        shown = f"{percent} %" if percent else ""
        self.lines.append(
            f'<path class="edge u{step(percent)}" data-use="{edge.key}" d="{points}" '
            f'data-tip="{text(tip)}"/>'
        )
        x, y = label
        self.figures.append(
            f'<text class="share" data-use="{edge.key}" x="{x:.1f}" y="{y + 4:.1f}" '
            f'text-anchor="{anchor}">{shown}</text>'
        )

    def draw(self) -> None:
        for edge in self.node.arcs():
            self._arc(edge)
        for edge in self.buses():
            self._bus(edge)
        for edge in self.node.straight():
            self._straight(edge)
        for box in self.node.boxes.values():
            if not (box.key == NETWORK and self.turn_at):
                self._box(box)

    def _arc(self, edge: Edge) -> None:
        one, two = (self.node.boxes[end].u for end in (edge.first, edge.second))
        v = self.start["rank"]
        self._bow(edge, (one, two), v, v - self.look.arc * self.span(edge))

    def _bus(self, edge: Edge) -> None:
        boxes = sorted(
            (self.node.boxes[end] for end in (edge.first, edge.second)), key=lambda box: box.u
        )
        v, thick = self.start["host"], self.look.thick["host"]
        if self.span(edge) > 1:
            low = v + thick
            self._bow(edge, (boxes[0].u, boxes[1].u), low, low + 20 * (self.span(edge) - 1))
            return
        ends = boxes[0].u + boxes[0].width / 2, boxes[1].u - boxes[1].width / 2
        (x1, y1), (x2, y2) = (self.at(u, v + thick / 2) for u in ends)
        right, up = (0, 11) if self.look.is_wide else (24, 0)
        label = ((x1 + x2) / 2 + right, (y1 + y2) / 2 - up)
        self.edge(edge, f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", label)

    def _bow(self, edge: Edge, ends: tuple[float, float], v: float, top: float) -> None:
        """Draws a curve whose middle is at `top`."""
        far = v + (top - v) * 4 / 3
        points = [self.at(ends[0], v), self.at(ends[0], far), self.at(ends[1], far)]
        points.append(self.at(ends[1], v))
        (x, y), *rest = points
        curve = " ".join(f"{a:.1f} {b:.1f}" for a, b in rest)
        at_x, at_y = self.at(sum(ends) / 2, top)
        self.edge(edge, f"M{x:.1f} {y:.1f}C{curve}", (at_x, at_y))

    def _straight(self, edge: Edge) -> None:
        upper, lower = sorted(
            (self.node.boxes[end] for end in (edge.first, edge.second)),
            key=lambda box: ORDER.index(box.layer),
        )
        u = min((upper, lower), key=lambda box: box.width).u
        if upper.layer == "rank" and NETWORK in self.node.boxes:
            u += 0.17 if lower.layer == "net" else -0.12
        ends = [
            max(box.u - box.width / 2 + 0.02, min(box.u + box.width / 2 - 0.02, u))
            for box in (upper, lower)
        ]
        v1 = self.start[upper.layer] + self.look.thick[upper.layer]
        v2 = self.start[lower.layer]
        (x1, y1), (x2, y2) = self.at(ends[0], v1), self.at(ends[1], v2)
        middle = v2 - self.look.gap["host"] / 2 if lower.layer == "net" else (v1 + v2) / 2
        x, y = self.at(sum(ends) / 2, middle)
        label, anchor = ((x + 8, y), "start") if self.look.is_wide else ((x, y - 11), "middle")
        self.edge(edge, f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", label, anchor)

    def _box(self, box: Box) -> None:
        v, thick = self.start[box.layer], self.look.thick[box.layer]
        corners = [
            self.at(box.u - box.width / 2, v),
            self.at(box.u + box.width / 2, v + thick),
        ]
        left, right = sorted(x for x, _ in corners)
        top, low = sorted(y for _, y in corners)
        shows_use = box.layer == "host" and box.names
        percent = self.use.get(box.key, 0) if shows_use else 0
        self.boxes.append(
            f'<rect class="box {box.layer}" x="{left:.1f}" y="{top:.1f}" rx="5" '
            f'width="{right - left:.1f}" height="{low - top:.1f}"/>'
        )
        x, y = (left + right) / 2, (top + low) / 2
        of_layer = [one.label for one in self.node.in_layer(box.layer)]
        widest = max(of_layer, key=len)
        lines = _fitted(box.label, right - left, low - top, widest)
        is_upright = self.look.is_wide or box.layer in ("rank", "host")
        turned = "" if is_upright else f' transform="rotate(-90 {x:.1f} {y:.1f})"'
        if not is_upright:
            lines = [box.label]
        is_aside = shows_use and self.look.is_wide and right - left > 130
        y -= 7 * (len(lines) - 1 + int(bool(shows_use and not is_aside)))
        for line in lines:
            self.boxes.append(
                f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle"{turned}>{text(line)}'
                "</text>"
            )
            y += 14
        if shows_use:
            shown = f"{percent} %" if percent else ""
            at = f'x="{right - 10:.1f}" y="{y - 10:.1f}" text-anchor="end"'
            below = f'x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle"'
            self.boxes.append(
                f'<text class="share inside" data-use="{box.key}" {at if is_aside else below}>'
                f"{shown}</text>"
            )


def _fitted(label: str, width: float, height: float, widest: str) -> list[str]:
    """Returns the label in one line or two, or its last words, such that `widest` fits too."""
    if 7 * len(widest) < width:
        return [label]
    parts = label.split(" ", 1)
    if height > 40 and 7 * max(map(len, widest.split(" ", 1))) < width:
        return parts
    for cut in range(1, widest.count(" ") + 1):
        if 7 * len(widest.split(" ", cut)[-1]) < width:
            return [label.split(" ", cut)[-1]]
    return [parts[-1]]


def draw(drawn: list[Node], use: Mapping[str, int]) -> str:
    """Returns the picture of one or two nodes, wide and for phones. use: percents by key."""
    wide = _svg([drawn], use, True)
    narrow = _svg([[node] for node in drawn], use, False)
    return two_widths(wide, narrow)


def _svg(pictures: Iterable[list[Node]], use: Mapping[str, int], is_wide: bool) -> str:
    made = []
    for nodes in pictures:
        first = _Canvas(nodes[0], _look(nodes[0], is_wide), use)
        canvases = [first]
        length = first.length
        if len(nodes) > 1:
            middle = first.start["net"] + first.look.thick["net"] / 2
            canvases.append(_Canvas(nodes[1], first.look, use, middle))
            length = 2 * middle
        breadth = first.look.cell * first.node.cells + 16
        width, height = (breadth, length) if is_wide else (length, breadth)
        for canvas in canvases:
            canvas.draw()
        parts = [part for canvas in canvases for part in canvas.lines]
        parts += [part for canvas in canvases for part in canvas.boxes]
        parts += [part for canvas in canvases for part in canvas.figures]
        most = width if is_wide else 1.3 * width
        made.append(
            f'<svg class="machine" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
            f'aria-label="the machine" style="max-width:{most:.0f}px">{"".join(parts)}</svg>'
        )
    return "".join(made)


def legend() -> str:
    """Returns the meaning of the links' widths."""
    return (
        '<ul class="legend">'
        + "".join(
            f'<li><svg class="sample" viewBox="0 0 34 12" aria-hidden="true"><path class="edge '
            f'u{number}" d="M1 6L33 6"/></svg> {said}</li>'
            for number, said in enumerate(STEPS)
        )
        + "</ul>"
    )
