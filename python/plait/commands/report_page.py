"""Writes a self-contained HTML page on a machine: links, predictions, measurements, evidence.

Combines topology, simulation and bench/results/*.csv. The page has inline SVG and a short script,
and loads nothing.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import plait
from plait import ways, what_runs
from plait.bench.sizes import bandwidth
from plait.commands.report_timeline import draw_timeline
from plait.evidence.results import Curves, measurements
from plait.outputs import human_bytes

SIZES = tuple(1 << power for power in range(12, 31, 2))
MOST_CURVES = 6
PALETTE = (
    *("#1b6ca8", "#d1495b", "#2e8b57", "#8e5ea2", "#c78100", "#556270"),
    *("#00a0b0", "#ad1457", "#8bc34a", "#5d4037", "#ff7043", "#9e9e9e"),
)

STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em;border-bottom:1px solid #ddd}
table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ddd;padding:3px 7px}
th{background:#f4f4f4;text-align:left}.number{text-align:right}.no{background:#fdeaea}
.wide{overflow-x:auto}svg{max-width:100%;height:auto}svg text{font:11px system-ui,sans-serif}
svg[aria-label=topology]{width:640px}
.on-line{fill:#444;paint-order:stroke;stroke:#fff;stroke-width:4px}
#tip{position:fixed;background:#222;color:#fff;padding:3px 8px;border-radius:3px;font-size:12px;
display:none;pointer-events:none;max-width:40em}
@media(max-width:700px){.wide svg{max-width:none;width:700px}.wide td{min-width:5em}}
"""
SCRIPT = """
const tip=document.getElementById('tip');
document.querySelectorAll('[data-tip]').forEach(e=>{
e.addEventListener('mousemove',m=>{tip.textContent=e.dataset.tip;tip.style.display='block';
tip.style.left=Math.min(m.clientX+12,innerWidth-320)+'px';tip.style.top=(m.clientY+12)+'px'});
e.addEventListener('mouseleave',()=>{tip.style.display='none'})});
"""


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def draw_topology(topology: plait.Topology) -> str:
    """Returns SVG: each node's ranks on a circle, host memories inside, links with GB/s."""
    outer = topology.rank_devices()
    place = _places(topology, outer)
    colours = {"nvlink": "#2e8b57", "pcie": "#c78100", "bus": "#8e5ea2", "net": "#1b6ca8"}
    height = 620 + 18 * len({link.kind for link in topology.links})
    parts = [f'<svg viewBox="0 0 600 {height}" role="img" aria-label="topology">']
    drawn, labels = set(), []
    few = len(topology.links) <= 40
    for link in topology.links:
        pair = (min(link.src, link.dst), max(link.src, link.dst), link.kind)
        if pair in drawn:
            continue
        drawn.add(pair)
        (x1, y1), (x2, y2) = place[link.src], place[link.dst]
        label = f"{link.kind} {topology.device_label(link.src)} - {topology.device_label(link.dst)}"
        parts.append(
            f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" '
            f'stroke="{colours.get(link.kind, "#888")}" stroke-width="{1.5 if few else 0.8}" '
            f'data-tip="{_text(label)}: {link.gb_per_s:g} GB/s, {link.latency_ns:g} ns"/>'
        )
        if few:
            x, y = x1 + 0.42 * (x2 - x1), y1 + 0.42 * (y2 - y1)
            labels.append(
                f'<text class="on-line" x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">'
                f"{link.gb_per_s:g}</text>"
            )
    parts += labels  # drawn above all lines
    for device, (x, y) in place.items():
        fill = "#e8f1f8" if device in outer else "#f6efe2"
        name = topology.device_label(device)
        parts.append(
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="21" fill="{fill}" stroke="#555" '
            f'data-tip="{_text(name)} {_text(topology.devices[device].model)}"/>'
            f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{_text(name)}</text>'
        )
    return "".join(parts) + _legend(topology, colours) + "</svg>"


def _places(topology: plait.Topology, outer: list[int]) -> dict[int, tuple[float, float]]:
    """Returns the position of each device: nodes form a square, each has a circle."""
    nodes = sorted({device.node for device in topology.devices})
    across = math.ceil(math.sqrt(len(nodes)))
    room = 600 / across
    place: dict[int, tuple[float, float]] = {}
    for number, node in enumerate(nodes):
        here = [i for i, device in enumerate(topology.devices) if device.node == node]
        inner = [i for i in here if i not in outer]
        x, y = room * (number % across + 0.5), room * (number // across + 0.5)
        ranks = [i for i in here if i in outer]
        few = 0.15 if len(inner) > 1 else 0.0
        # Memories lie between the directions of two ranks, so that links do not overlap.
        between = math.pi / max(1, len(ranks))
        for devices, part, first in ((ranks, 0.4, 0.0), (inner, few, between)):
            for turn, device in enumerate(devices):
                angle = 2 * math.pi * turn / len(devices) - math.pi / 2 + first
                place[device] = (
                    x + room * part * math.cos(angle),
                    y + room * part * math.sin(angle),
                )
    return place


def _legend(topology: plait.Topology, colours: dict[str, str]) -> str:
    """Returns SVG: each kind of link with speeds."""
    parts = []
    for row, kind in enumerate(sorted({link.kind for link in topology.links})):
        speeds = [link.gb_per_s for link in topology.links if link.kind == kind]
        low, high = min(speeds), max(speeds)
        label = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        y = 620 + 18 * row
        parts.append(
            f'<rect x="8" y="{y - 6}" width="14" height="4" fill="{colours.get(kind, "#888")}"/>'
            f'<text x="28" y="{y}">{_text(kind)}: {label} GB/s</text>'
        )
    return "".join(parts)


def predictions(
    topology: plait.Topology, collective: str, ranks: int, sizes: Iterable[int] = SIZES
) -> Curves:
    """Returns engine or strategy -> [(message bytes, busbw GB/s)], at its best parameters."""
    curves: Curves = {}
    for size in sizes:
        request = plait.Request(collective, max(1, size // 4), "fp32", "sum", ranks, 0, ranks > 1)
        best: dict[str, float] = {}
        for plan in plait.propose(topology, request)[0]:
            speed = plait.simulate(plan, topology).busbw_gb_per_s
            best[plan.strategy] = max(speed, best.get(plan.strategy, 0.0))
        for runs in what_runs.engines(topology, request):
            if runs.predicted_us:
                best[runs.engine] = bandwidth(request, runs.predicted_us / 1e6)["busbw"]
        for name, speed in best.items():
            curves.setdefault(name, []).append((size, speed))
    return curves


def draw_curves(predicted: Curves, measured: Curves) -> str:
    """Returns SVG: busbw over message size, both logarithmic; measured curves are dashed.

    Draws measured strategies and the best of the others, one colour each. Leaves out measurements
    without a prediction, except NCCL.
    """
    measured = {
        name: points
        for name, points in measured.items()
        if name.removesuffix(" (measured)") in ("NCCL", *predicted)
    }
    was_measured = {name.removesuffix(" (measured)") for name in measured}
    top = sorted(
        predicted.items(),
        key=lambda item: (item[0] not in was_measured, -max(speed for _, speed in item[1])),
    )
    curves = [(name, points, "") for name, points in top[:MOST_CURVES]]
    curves += [(name, sorted(points), "5 4") for name, points in sorted(measured.items())]
    names = dict.fromkeys(name.removesuffix(" (measured)") for name, _, _ in curves)
    colours = dict(zip(names, PALETTE * len(names), strict=False))
    points = [point for _, line, _ in curves for point in line if point[1] > 0]
    if not points:
        return "<p>Nothing to draw: no strategy takes this request.</p>"
    low_x, high_x = (math.log2(pick(size for size, _ in points)) for pick in (min, max))
    high_y = math.log10(max(speed for _, speed in points)) + 0.1
    low_y = max(math.log10(min(speed for _, speed in points)), high_y - 4)
    span_x = max(high_x - low_x, 1e-9)

    def at(size: float, speed: float) -> tuple[float, float]:
        x = 60 + 620 * (math.log2(size) - low_x) / span_x
        return x, 380 - 350 * max(0.0, math.log10(max(speed, 1e-9)) - low_y) / (high_y - low_y)

    parts = ['<svg viewBox="0 0 900 430" role="img" aria-label="bandwidth">']
    for decade in range(math.ceil(low_y), math.floor(high_y) + 1):
        y = at(2**low_x, 10.0**decade)[1]
        parts.append(f'<line x1="60" x2="680" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="52" y="{y + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>')
    for power in range(math.ceil(low_x), math.floor(high_x) + 1, max(1, round(span_x / 9))):
        x = at(2**power, 1)[0]
        label = human_bytes(2**power)
        parts.append(f'<text x="{x:.0f}" y="400" text-anchor="middle">{label}</text>')
    parts.append('<text x="60" y="18">busbw GB/s</text>')
    for number, (name, line, dash) in enumerate(curves):
        colour = colours[name.removesuffix(" (measured)")]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>'
        )
        for size, speed in line:
            x, y = at(size, speed)
            tip = f"{name}: {human_bytes(size)} {speed:.1f} GB/s"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}" '
                f'data-tip="{_text(tip)}"/>'
            )
        y = 30 + 18 * number
        parts.append(
            f'<line x1="694" x2="713" y1="{y + 2}" y2="{y + 2}" stroke="{colour}" '
            f'stroke-width="3" stroke-dasharray="{dash}"/>'
        )
        parts.append(f'<text x="718" y="{y + 6}">{_text(name)}</text>')
    return "".join(parts) + "</svg>"


def _wide(drawn: str) -> str:
    """Wraps a drawing that scrolls sideways on narrow screens."""
    return f'<div class="wide">{drawn}</div>'


def _table(head: Iterable[str], rows: Iterable[tuple[bool, Iterable[object]]]) -> str:
    """Returns an HTML table. rows: (holds, cells); rows that do not hold are marked."""
    parts = ["<table><tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"]
    for holds, cells in rows:
        said = "".join(f"<td>{_text(cell)}</td>" for cell in cells)
        parts.append(f'<tr class="{"yes" if holds else "no"}">{said}</tr>')
    return _wide("".join(parts) + "</table>")


def evidence_table(rows: list[Any]) -> str:
    body = []
    for row in rows:
        simulated = "" if row.simulated is None else f"{row.simulated:.3g} {row.unit}"
        deviation = "" if row.deviation is None else f"{100 * row.deviation:+.1f} %"
        holds = "yes" if row.ok else "no"
        cells = (row.id, row.kind, row.what, row.claim, simulated, deviation, holds, row.reason)
        body.append((row.ok, cells))
    head = ("id", "kind", "experiment", "claim", "simulated", "deviation", "holds", "reason")
    return _table(head, body)


def figures_table(rows: list[Any]) -> str:
    body = []
    for row in rows:
        deviates = abs(row.deviation) > 0.10
        figures = (f"{row.measured:.5g}", f"{row.predicted:.5g}", f"{100 * row.deviation:+.1f} %")
        cells = (row.what, row.unit, *figures, row.reason if deviates else "")
        body.append((not deviates, cells))
    return _table(("figure", "unit", "measured", "predicted", "deviation", "reason"), body)


def _bandwidth(collective: str, ranks: int, predicted: Curves, measured: Curves) -> str:
    what = "Lines: predicted, of each engine and of each strategy's best parameters."
    return (
        f"<h2>{_text(collective)}, {ranks} ranks: bandwidth by size</h2><p>{what}"
        + (
            " Dashed: measured, in a graph where that was faster.</p>"
            if measured
            else " Nothing was measured.</p>"
        )
        + _wide(draw_curves(predicted, measured))
    )


@dataclass(frozen=True)
class ReportData:
    """Contents of a page. Curves are by ranks."""

    topology: plait.Topology
    request: plait.Request
    runs: what_runs.Runs
    timeline: plait.Timeline
    predicted: dict[int, Curves]
    measured: dict[int, Curves]
    evidence: list[Any] | None  # rows of plait.evidence.papers
    figures: list[Any] | None  # of plait.evidence.calibrate

    def as_json(self) -> dict[str, Any]:
        """Returns a dict with the keys of docs/report.md."""

        def rows(found: list[Any] | None) -> list[dict[str, Any]] | None:
            if found is None:
                return None
            return [{**asdict(row), "deviation": row.deviation} for row in found]

        evidence = rows(self.evidence)
        for row, said in zip(self.evidence or [], evidence or [], strict=True):
            said["ok"] = row.ok
        return {
            "plait": plait.__version__,
            "topology": json.loads(self.topology.to_json()),
            "collective": self.request.collective,
            "bytes": 4 * self.request.count,
            "ranks": self.request.ranks,
            "runs": self.runs.as_json(),
            "simulated_us": self.timeline.total_ns / 1e3,
            "lower_bound_us": self.timeline.lower_bound_ns / 1e3,
            "busbw_gb_per_s": self.timeline.busbw_gb_per_s,
            "bound_by": self.timeline.bound_by,
            "predicted": self.predicted,
            "measured": self.measured,
            "evidence": evidence,
            "figures": rows(self.figures),
        }


def gathered(
    topology: plait.Topology,
    collective: str = "all_reduce",
    size: int = 64 << 20,
    results: Path | None = None,
    evidence: list[Any] | None = None,
    figures: list[Any] | None = None,
) -> ReportData:
    """Collects the contents of a page. results: folder of recorded rows."""
    ranks = min(len(topology.rank_devices()), 16)
    request = plait.Request(collective, size // 4, "fp32", "sum", ranks, 0, int(ranks > 1))
    runs = ways.chosen(topology, request)
    measured = measurements(results, topology.name, collective) if results else {}
    measured.setdefault(ranks, {}).update(measured.pop(0, {}))  # files without a number of ranks
    predicted = {count: predictions(topology, collective, count) for count in sorted(measured)}
    timeline = plait.simulate(runs.plan, topology)
    return ReportData(
        topology, request, runs, timeline, predicted, measured, evidence, figures or None
    )


def page(
    topology: plait.Topology,
    collective: str = "all_reduce",
    size: int = 64 << 20,
    results: Path | None = None,
    evidence: list[Any] | None = None,
) -> str:
    """Returns the page that write_report writes. evidence: rows of plait.evidence.papers."""
    return html_of(gathered(topology, collective, size, results, evidence))


def html_of(found: ReportData) -> str:
    """Returns the page as HTML."""
    topology, runs, timeline = found.topology, found.runs, found.timeline
    collective, size = found.request.collective, 4 * found.request.count
    curves = (
        _bandwidth(collective, count, found.predicted[count], found.measured[count])
        for count in found.predicted
    )
    sections = [
        f"<h1>plait: {_text(topology.name)}</h1><p>{_text(topology.source)}</p>",
        "<h2>Links (GB/s a direction)</h2>" + draw_topology(topology),
        *curves,
        f"<h2>{_text(runs.title)} at {human_bytes(size)}</h2><p>{timeline.total_ns / 1e3:.1f} us, "
        f"{timeline.busbw_gb_per_s:.1f} GB/s busbw, bound by {_text(timeline.bound_by)}, "
        f"{100 * timeline.lower_bound_ns / max(timeline.total_ns, 1e-9):.0f} % of what this "
        "machine allows.</p>" + _wide(draw_timeline(timeline, runs.plan)),
    ]
    if found.evidence is not None:
        sections.append("<h2>Evidence</h2>" + evidence_table(found.evidence))
    if found.figures:
        sections.append("<h2>Measured figures, predicted</h2>" + figures_table(found.figures))
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>plait: {_text(topology.name)}</title><style>{STYLE}</style></head><body>"
        + "".join(sections)
        + f'<div id="tip"></div><script>{SCRIPT}</script></body></html>\n'
    )


def of_machine(
    topology: plait.Topology, with_evidence: bool = True, done: Callable[[], None] = lambda: None
) -> ReportData:
    """Collects the contents of a page on a machine; measured rows come from bench/results, if
    present. done: called after each of the papers' experiments."""
    from plait.evidence.calibrate import calibration_rows, machine
    from plait.evidence.papers import paper_rows

    results = Path("bench/results")
    evidence = paper_rows(done=done) if with_evidence else None
    figures = calibration_rows() if with_evidence and topology.name == machine().name else None
    found = results if results.is_dir() else None
    return gathered(topology, results=found, evidence=evidence, figures=figures)
