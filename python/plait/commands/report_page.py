"""Writes a self-contained HTML page on a machine: what calls run there, beside NCCL, the links they
use, what is left to gain; then a timeline, recorded rows, evidence.

Combines topology, simulation, tuning tables and bench/results/*.csv. The page has inline SVG and a
short script, and loads nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import plait
from plait import by_size, ways, what_runs
from plait.bench.sizes import bandwidth
from plait.by_size import BySize
from plait.commands import report_drawing as drawing
from plait.commands import report_gain as gain
from plait.commands import report_machine as parts
from plait.commands import report_nccl as nccl
from plait.commands import report_sizes
from plait.commands.plan import usual_ranks
from plait.commands.report_html import code, figure, in_words, table, text, time_text
from plait.commands.report_style import SCRIPT, STYLE
from plait.commands.report_timeline import draw_timeline
from plait.evidence.results import Curves, measurements
from plait.outputs import human_bytes

SIZES = tuple(1 << power for power in range(10, 31, 2))
MOST_RANKS = 16
MOST_NODES = 2  # drawn


def evidence_table(rows: list[Any]) -> str:
    body, fails = [], []
    for row in rows:
        simulated = "" if row.simulated is None else f"{row.simulated:.3g} {row.unit}"
        deviation = "" if row.deviation is None else f"{100 * row.deviation:+.1f} %"
        holds = "yes" if row.ok else "no"
        cells = (row.id, row.kind, row.what, row.claim, simulated, deviation, holds, row.reason)
        body.append([text(cell) for cell in cells])
        fails.append(not row.ok)
    head = ("id", "kind", "experiment", "claim", "simulated", "deviation", "holds", "reason")
    return table(head, body, fails, "claims")


def figures_table(rows: list[Any]) -> str:
    body, fails = [], []
    for row in rows:
        deviates = abs(row.deviation) > 0.10
        figures = (f"{row.measured:.5g}", f"{row.predicted:.5g}", f"{100 * row.deviation:+.1f} %")
        cells = (row.what, row.unit, *figures, row.reason if deviates else "")
        body.append([text(cell) for cell in cells])
        fails.append(deviates)
    return table(("figure", "unit", ">measured", ">predicted", ">deviation", "reason"), body, fails)


@dataclass(frozen=True)
class ReportData:
    """Contents of a page. timelines: of what runs, by message bytes; curves are by ranks."""

    found: BySize
    timelines: dict[int, plait.Timeline]
    beside_nccl: nccl.Comparison
    request: plait.Request  # of the timeline
    runs: what_runs.Runs
    timeline: plait.Timeline
    measured: dict[int, Curves]
    evidence: list[Any] | None  # rows of plait.evidence.papers
    figures: list[Any] | None  # of plait.evidence.calibrate

    @property
    def topology(self) -> plait.Topology:
        return self.found.machine

    def as_json(self) -> dict[str, Any]:
        """Returns a dict with the keys of docs/report.md."""

        def rows(found: list[Any] | None) -> list[dict[str, Any]] | None:
            if found is None:
                return None
            return [{**asdict(row), "deviation": row.deviation} for row in found]

        evidence = rows(self.evidence)
        for row, said in zip(self.evidence or [], evidence or [], strict=True):
            said["ok"] = row.ok
        lines = self.found.lines().items()
        predicted = {name: [(s, way.busbw) for s, way in of.items()] for name, of in lines}
        return {
            "plait": plait.__version__,
            "topology": json.loads(self.topology.to_json()),
            "collective": self.request.collective,
            "bytes": 4 * self.request.count,
            "ranks": self.request.ranks,
            "opening": opening(self),
            "by_size": self.found.as_json(),
            "beside_nccl": self.beside_nccl.as_json(),
            "use": {size: parts.shares(one) for size, one in self.timelines.items()},
            "least_us": {size: one.lower_bound_ns / 1e3 for size, one in self.timelines.items()},
            "runs": self.runs.as_json(),
            "simulated_us": self.timeline.total_ns / 1e3,
            "lower_bound_us": self.timeline.lower_bound_ns / 1e3,
            "busbw_gb_per_s": self.timeline.busbw_gb_per_s,
            "bound_by": self.timeline.bound_by,
            "predicted": {self.request.ranks: predicted},
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
    done: Callable[[], None] = lambda: None,
) -> ReportData:
    """Collects the contents of a page. results: folder of recorded rows; done: called after each
    size."""
    ranks = min(usual_ranks(topology), MOST_RANKS)
    found = by_size.predict(topology, collective, ranks, SIZES, done=done)
    timelines = {
        one: plait.simulate(of_size.runs.plan, topology) for one, of_size in found.ways.items()
    }
    request = plait.Request(collective, size // 4, "fp32", "sum", ranks, 0, int(ranks > 1))
    known = found.ways.get(size)
    runs = known.runs if known else ways.chosen(topology, request)
    timeline = timelines.get(size) or plait.simulate(runs.plan, topology)
    measured = measurements(results, topology.name, collective) if results else {}
    if unknown := measured.pop(0, {}):  # of files without a number of ranks
        measured.setdefault(ranks, {}).update(unknown)
    compared = nccl.compare(found)
    return ReportData(
        *(found, timelines, compared, request, runs, timeline),
        *(measured, evidence, figures or None),
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


def ranks_in_words(topology: plait.Topology, ranks: int) -> str:
    """Returns '8 NVIDIA H200', '16 NVIDIA H200 on 2 nodes' or '4 CPU ranks'."""
    devices = [topology.devices[place] for place in topology.rank_devices()[:ranks]]
    nodes = len({device.node for device in devices})
    if any(device.kind != "gpu" for device in devices):
        said = f"{ranks} CPU rank{'s' if ranks > 1 else ''}"
    else:
        models = Counter(device.model or "GPU" for device in devices)
        said = in_words(f"{count} {model}" for model, count in models.items())
    return f"{said} on {nodes} nodes" if nodes > 1 else said


def opening(found: ReportData) -> str:
    """Returns one sentence: what a reader gets on this machine."""
    sizes = [*found.found.ways]
    first, last = (found.found.ways[size].running for size in (sizes[0], sizes[-1]))
    who = ranks_in_words(found.topology, found.request.ranks)
    name = found.request.collective
    what = "a sum over all ranks (all_reduce)" if name == "all_reduce" else f"plait's {name}"
    small, large = human_bytes(sizes[0]), human_bytes(sizes[-1])
    if found.runs.why_not:
        return (
            f"plait does not run on {who}, since {found.runs.why_not}: all that follows is what "
            f"the simulator predicts for a machine that plait's kernels do not serve, where {what} "
            f"of {small} would take {time_text(first.us)}, and of {large} {time_text(last.us)}."
        )
    known = found.beside_nccl
    mixed = nccl.PREDICTED if known.measured_us() else ""  # said of times that are not measured
    small_us, large_us = (
        time_text(us) + (f" ({kind})" if kind == mixed else "")
        for us, kind in (_known_us(found)[size] for size in (sizes[0], sizes[-1]))
    )
    said = f"On {who} {what} of {small} takes {small_us}, and of {large} {large_us}"
    if known.itself:
        return f"{said}, as predicted: between these nodes calls of all sizes run NCCL itself."
    if not known.rows:
        on_cpus = "CPU" in who
        return f"{said}, as predicted{'' if on_cpus else '; how fast NCCL is here is not known'}."
    return f"{said}: plait is {nccl.in_spans(known.rows, sizes)}, {known.kind}."


def _gains(found: ReportData) -> list[gain.Gain]:
    return gain.gains(found.found, found.timelines, found.beside_nccl)


def _known_us(found: ReportData) -> dict[int, tuple[float, str]]:
    """Returns the time of a call at each size and its kind: measured beside NCCL if known, else
    predicted."""
    return {row.size: (row.us, row.kind) for row in _gains(found)}


def _tiles(found: ReportData) -> str:
    """Returns figures: a small and a large call, beside NCCL, beside the least time."""
    times = _known_us(found)
    (first, (first_us, first_kind)), *_, (last, (last_us, last_kind)) = times.items()
    request = found.found.ways[last].runs.plan.request
    best = max(_gains(found), key=lambda row: row.share)
    tiles = [
        (time_text(first_us), f"for {human_bytes(first)}, {first_kind}"),
        (
            f"{figure(bandwidth(request, last_us / 1e6)['busbw'])} GB/s",
            f"through each rank's links at {human_bytes(last)} (busbw), {last_kind}",
        ),
    ]
    known = found.beside_nccl.rows
    if nccl.never_runs(found.found):
        pass  # no call of plait to compare with NCCL
    elif known:
        size, row = max(known.items(), key=lambda item: item[1].ratio)
        tiles.append(
            (
                f"{figure(row.ratio)} times",
                f"as fast as NCCL at {human_bytes(size)}, {found.beside_nccl.kind}",
            )
        )
    elif found.beside_nccl.itself:
        tiles.append(("NCCL itself", "runs between these nodes, at all sizes"))
    elif "CPU" in ranks_in_words(found.topology, found.request.ranks):
        tiles.append((str(found.request.ranks), "ranks on CPU cores, where NCCL does not run"))
    else:
        tiles.append(("not known", "how fast NCCL is here"))
    tiles.append(
        (
            f"{100 * best.share:.0f} %",
            f"of what the links allow, at {human_bytes(best.size)}, {best.kind}",
        )
    )
    return (
        '<ul class="tiles">'
        + "".join(f"<li><b>{text(value)}</b><span>{text(of)}</span></li>" for value, of in tiles)
        + "</ul>"
    )


def _machine(found: ReportData) -> str:
    """Returns the drawing, the sizes to pick, and the use of each link at each size."""
    every = parts.nodes(found.topology, found.request.ranks)
    of = {size: parts.shares(one) for size, one in found.timelines.items()}
    uses = [{size: parts.use_of(node, one) for size, one in of.items()} for node in every]
    shown, notes = every[:MOST_NODES], []
    if len(every) > MOST_NODES:
        rest = [node.number for node in every[MOST_NODES:]]
        alike = all(
            parts.alike(every[1], node, zip(uses[1].values(), used.values(), strict=True))
            for node, used in zip(every[MOST_NODES:], uses[MOST_NODES:], strict=True)
        )
        named = f"Nodes {rest[0]} to {rest[-1]}" if len(rest) > 1 else f"Node {rest[0]}"
        like = "look alike and are not drawn" if alike else "are not drawn, and differ in use"
        like = like if len(rest) > 1 else like.replace("look", "looks").replace("are ", "is ")
        notes.append(f"{named} {like}.")
    picked = 4 * found.request.count if 4 * found.request.count in of else [*of][-1]
    data: dict[int, dict[str, Any]] = {
        size: {
            "use": {key: part for one in uses[: len(shown)] for key, part in one[size].items()},
            "title": _title(found, size),
            "said": parts.sentence(shares),
        }
        for size, shares in of.items()
    }
    pick = "".join(
        f'<label><input type="radio" name="size" value="{size}"'
        f"{' checked' if size == picked else ''}><span>{human_bytes(size)}</span></label>"
        for size in of
    )
    kind = "beside picture" if max(node.cells for node in every) <= drawing.MANY else ""
    at = data[picked]
    notes.append("Speed of a link: hover over it, or see `plait topo`.")
    if source := found.topology.source:
        notes.append(f"Source of the speeds: {source.rstrip('.')}.")
    return (
        f"<fieldset><legend>Size of the call:</legend>{pick}</fieldset>"
        f'<div class="{kind}"><div>{drawing.draw(shown, at["use"])}</div><div>'
        f'<p><b id="at">{text(at["title"])}</b></p><p id="busiest" aria-live="polite">'
        f"{text(at['said'])}</p><p class='caption'>Figures: part of the call in which the busier "
        f"direction of a link moves bytes, predicted. They exceed the least time's part "
        f"of the call where a plan moves more bytes, or moves bytes slower than the link could."
        f"</p>{drawing.legend()}"
        f'<p class="note">{" ".join(map(code, notes))}</p></div></div>'
        f'<script type="application/json" id="use">{_script_json(data)}</script>'
    )


def _name(runs: what_runs.Runs) -> str:
    return runs.plan.strategy if runs.engine == what_runs.LANES else f"engine {runs.engine}"


def _title(found: ReportData, size: int) -> str:
    way = found.found.ways[size].running
    return f"{human_bytes(size)}: {by_size.line_name(way)}, {time_text(way.us)} predicted"


def _script_json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":")).replace("</", "<\\/")


def _recorded(measured: dict[int, Curves], known: set[str]) -> str:
    """Returns a closed part with the bandwidths of recorded rows of NCCL and of known ways, a table
    for each number of ranks."""
    made = []
    for ranks, curves in sorted(measured.items()):
        named = {name.removesuffix(" (measured)"): dict(line) for name, line in curves.items()}
        named = {name: line for name, line in named.items() if name in {"NCCL", *known}}
        every = {size for line in named.values() for size in line}
        sizes = [size for size in SIZES if size in every] or sorted(every)[:11]
        rows = [
            [text(name), *(figure(line[size]) if size in line else "" for size in sizes)]
            for name, line in sorted(named.items())
            if {*sizes} & {*line}
        ]
        if rows:
            head = ("GB/s busbw", *(f">{human_bytes(size)}" for size in sizes))
            made.append(f"<h3>{ranks} ranks</h3>{table(head, rows)}")
    if not made:
        return ""
    return (
        "<h2>Measured bandwidth</h2><details><summary>The best of each way in the recorded rows "
        f"(bench/results)</summary>{''.join(made)}</details>"
    )


def _holding(rows: list[Any]) -> str:
    """Returns how many claims hold, of those that must and of all."""
    must = [row for row in rows if row.kind == "must"]
    return (
        f"{sum(row.ok for row in must)} of {len(must)} claims of papers that must hold do, and "
        f"{sum(row.ok for row in rows)} of {len(rows)} in all"
    )


def html_of(found: ReportData) -> str:
    """Returns the page as HTML."""
    topology, runs, timeline = found.topology, found.runs, found.timeline
    collective, size = found.request.collective, 4 * found.request.count
    share = 100 * timeline.lower_bound_ns / max(timeline.total_ns, 1e-9)
    bound = parts.in_words(timeline.bound_by)
    served = nccl.under_plait_run(found.found, found.beside_nccl)
    runs_words = "would run" if nccl.never_runs(found.found) else "runs"
    measured = "measured times are under Beside NCCL" if found.beside_nccl.measured_us() else ""
    sections = [
        f"<header><h1>plait: {text(topology.name)}</h1>"
        f'<p class="lead">{text(opening(found))}</p>{_tiles(found)}'
        f"{f'<p>{code(served)}</p>' if served else ''}</header>",
        f"<h2>What a call of each size {runs_words}</h2>"
        + report_sizes.section(found.found, measured),
        f"<h2>Beside NCCL</h2>{nccl.section(found.found, found.beside_nccl)}",
        f"<h2>The machine at work</h2>{_machine(found)}",
        "<h2>What is left to gain</h2>" + gain.section(found.found, _gains(found)),
        f"<h2>A call of {human_bytes(size)} over time</h2><p>{text(_name(runs))}: "
        f"predicted {time_text(timeline.total_ns / 1e3)} and {timeline.busbw_gb_per_s:.1f} GB/s "
        f"busbw, bound by {text(bound)}; the least time is {share:.0f} % of the predicted time.</p>"
        f'<p class="note">As {code(f"`{runs.plan.label}`")}</p>'
        f'<div class="timelines">{draw_timeline(timeline, runs.plan)}</div>',
        _recorded(found.measured, {name.split()[-1] for name in found.found.lines()}),
    ]
    if found.evidence is not None:
        sections.append(
            f"<h2>Evidence</h2><details><summary>{_holding(found.evidence)}</summary>"
            f"{evidence_table(found.evidence)}</details>"
        )
    if found.figures:
        near = sum(abs(row.deviation) <= 0.10 for row in found.figures)
        sections.append(
            f"<h2>Measured figures, predicted</h2><details><summary>{near} of "
            f"{len(found.figures)} figures are within 10 %</summary>"
            f"{figures_table(found.figures)}</details>"
        )
    title = f"plait: {text(topology.name)}, {text(collective)}"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>"
        + "".join(sections)
        + f'</main><div id="tip"></div><script>{SCRIPT}</script></body></html>\n'
    )


def of_machine(
    topology: plait.Topology, with_evidence: bool = True, done: Callable[[], None] = lambda: None
) -> ReportData:
    """Collects the contents of a page on a machine; measured rows come from bench/results, if
    present. done: called after each size and each of the papers' experiments."""
    from plait.evidence.calibrate import calibration_rows, machine
    from plait.evidence.papers import paper_rows

    results = Path("bench/results")
    evidence = paper_rows(done=done) if with_evidence else None
    figures = calibration_rows() if with_evidence and topology.name == machine().name else None
    found = results if results.is_dir() else None
    return gathered(topology, results=found, evidence=evidence, figures=figures, done=done)
