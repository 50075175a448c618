"""Section of the report's page on what plait gives beside NCCL: measured by a table of this machine
or by recorded rows of such GPUs, else predicted, else unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plait import entry_points
from plait.bench.sizes import request_for
from plait.by_size import BySize
from plait.commands.report_html import bar, code, figure, in_words, table, text, time_text
from plait.evidence.beside_nccl import Beside, predicted_us, recorded, recorded_ranks
from plait.nccl_times import ALIKE, HERE, tuned
from plait.outputs import human_bytes
from plait.ways import nodes_of

PREDICTED = "predicted"
LEVEL = 0.05  # a ratio this near to 1 counts as equal


@dataclass(frozen=True)
class Comparison:
    """Times beside NCCL by message size. kind: HERE, ALIKE, PREDICTED; empty = none known.

    fewer: recorded times of fewer ranks of the machine; served: what serves a call under
    `plait run`, in spans of sizes; itself: calls of all sizes run NCCL, over nodes.
    """

    kind: str
    rows: dict[int, Beside]
    source: str
    fewer: dict[int, dict[int, Beside]] = field(default_factory=dict)
    served: list[tuple[int, int, str]] = field(default_factory=list)
    itself: bool = False

    def measured_us(self) -> dict[int, float]:
        """Returns plait's measured time at each size that has one."""
        rows = {} if self.kind == PREDICTED else self.rows
        return {size: row.plait_us for size, row in rows.items()}

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "source": self.source,
            "rows": [
                {"bytes": size, "plait_us": row.plait_us, "nccl_us": row.nccl_us}
                for size, row in self.rows.items()
            ],
            "under_plait_run": [
                {"from_bytes": first, "to_bytes": last, "served": said}
                for first, last, said in self.served
            ],
        }


def compare(found: BySize) -> Comparison:
    """Returns the best known comparison of the machine's all_reduces."""
    machine, ranks = found.machine, found.ranks
    kind, rows = _best_known(found) if found.collective == "all_reduce" else ("", {})
    source = next((row.source for row in rows.values()), "")
    fewer = {
        count: recorded(machine, count)
        for count in (recorded_ranks(machine) if kind == ALIKE else [])
        if count < ranks
    }
    itself = all(ways.running.name == "library" for ways in found.ways.values())
    return Comparison(kind, rows, source, fewer, _served(found), itself)


def _best_known(found: BySize) -> tuple[str, dict[int, Beside]]:
    """Returns the kind of the best source that knows NCCL's times here, and these times."""
    machine, ranks = found.machine, found.ranks
    if ranks < 2 or all(device.kind != "gpu" for device in machine.devices):
        return "", {}
    request = next(iter(found.ways.values())).runs.plan.request
    if here := tuned(machine, request):
        return HERE, here
    if alike := recorded(machine, ranks):
        return ALIKE, {size: row for size, row in alike.items() if size in found.ways}
    predicted = _predicted(found)
    return (PREDICTED, predicted) if predicted else ("", {})


def _predicted(found: BySize) -> dict[int, Beside]:
    """Returns predicted times: over nodes by NCCL's own price, else of rings."""
    rows = {}
    for size, ways in found.ways.items():
        request = ways.runs.plan.request
        if nodes_of(found.machine, request) > 1:
            nccl_us = next((way.us for way in ways.rows if way.name == "library"), 0.0)
            source = "NCCL between nodes has the latencies and speeds of NCCL's own tables"
        else:
            nccl_us = predicted_us(found.machine, found.ranks, size)
            source = "NCCL is simulated as rings at the efficiency measured on H200"
        if nccl_us and ways.running.us and ways.running.name != "library":
            rows[size] = Beside(ways.running.us, nccl_us, ways.running.name, source)
    return rows


def _served(found: BySize) -> list[tuple[int, int, str]]:
    """Returns (first size, last size, what serves calls of a program under NCCL)."""
    spans: list[tuple[int, int, str]] = []
    for size in found.ways:
        request = request_for(
            found.collective, size, "fp32", "sum", found.ranks, 0, int(found.ranks > 1), shape=""
        )
        said = entry_points.under_nccl(found.machine, request)
        said = "plait" if said and not said.startswith(("left to NCCL", "an error")) else said
        first = spans.pop()[0] if spans and spans[-1][2] == said else size
        spans.append((first, size, said))
    return [span for span in spans if span[2]]


def where(first: int, last: int, sizes: list[int]) -> str:
    """Returns 'up to 16 MiB', 'from 64 MiB on', 'at 1 MiB', '4 to 16 MiB' or 'at all sizes'."""
    if (first, last) == (sizes[0], sizes[-1]):
        return "at all sizes" if len(sizes) > 1 else f"at {human_bytes(first)}"
    if first == last:
        return f"at {human_bytes(first)}"
    if first == sizes[0]:
        return f"up to {human_bytes(last)}"
    if last == sizes[-1]:
        return f"from {human_bytes(first)} on"
    return f"from {human_bytes(first)} to {human_bytes(last)}"


def in_spans(rows: Mapping[int, Beside], sizes: list[int]) -> str:
    """Returns '1.4 to 4.5 times as fast as NCCL up to 16 MiB, and as fast from 64 MiB on'.

    sizes: all sizes that are looked at, of which `rows` may be a part.
    """
    spans: list[tuple[str, list[int]]] = []
    for size, row in rows.items():
        kind = "ahead" if row.ratio > 1 + LEVEL else "behind" if row.ratio < 1 - LEVEL else "level"
        if spans and spans[-1][0] == kind:
            spans[-1][1].append(size)
        else:
            spans.append((kind, [size]))
    sizes = sorted({*sizes, *rows})
    if len(spans) > 3:
        count = sum(row.ratio > 1 for row in rows.values())
        return (
            f"{_range(rows, rows)} times as fast as NCCL, and ahead at {count} of {len(rows)} sizes"
        )
    said: list[str] = []
    for kind, of in spans:
        place, speeds = where(of[0], of[-1], sizes), _range(rows, of)
        nccl = "" if said else " as NCCL"
        said.append(
            f"as fast{nccl} {place}" if kind == "level" else f"{speeds} times as fast{nccl} {place}"
        )
    *first, last = said
    return f"{', '.join(first)}, and {last}" if first else last


def _range(rows: Mapping[int, Beside], sizes: Iterable[int]) -> str:
    ratios = [rows[size].ratio for size in sizes]
    low, high = figure(min(ratios)), figure(max(ratios))
    return low if low == high else f"{low} to {high}"


def never_runs(found: BySize) -> bool:
    """Returns whether the machine's GPUs run no kernel of plait."""
    return bool(next(iter(found.ways.values())).runs.why_not)


def _are_of_amd(found: BySize) -> bool:
    return any("AMD" in device.model for device in found.machine.devices)


def under_plait_run(found: BySize, known: Comparison) -> str:
    """Returns one sentence: the sizes that `plait run` serves, and why others stay with NCCL; empty
    where NCCL does not run."""
    if not known.served or _are_of_amd(found):
        return ""
    if never_runs(found):
        return "`plait run` leaves calls of all sizes to NCCL."
    sizes = [*found.ways]
    ours = [where(first, last, sizes) for first, last, said in known.served if said == "plait"]
    reasons = [_why_left(said) for _, _, said in known.served if said != "plait"]
    why = "; ".join(dict.fromkeys(reasons))
    if not ours:
        return f"`plait run` leaves calls of all sizes to NCCL: {why}."
    said = f"`plait run` serves a program's calls of NCCL by plait {in_words(ours)}"
    return f"{said}, and leaves other sizes to NCCL: {why}." if why else f"{said}."


def unknown(found: BySize, known: Comparison) -> str:
    """Returns one sentence: nothing is known, and what would measure it."""
    if not any(device.kind == "gpu" for device in found.machine.devices):
        return "NCCL does not run on CPUs; `plait bench all_reduce` times these calls here."
    if known.itself:
        return "Calls of all sizes run NCCL itself between these nodes, so both take the same time."
    if _are_of_amd(found):
        return "NCCL does not run on these GPUs, and neither does plait."
    if found.ranks < 2:
        return "One rank communicates with nobody."
    if never_runs(found):
        return "How fast NCCL is here is not known."
    return (
        "How fast NCCL is here is not known: `plait tune` on the machine measures both and keeps "
        "what is faster, and `plait bench all_reduce --against nccl` times single sizes."
    )


def section(found: BySize, known: Comparison) -> str:
    """Returns sentences with the source, a table with bars, and what `plait run` serves."""
    sizes = [*found.ways]
    spans = [] if never_runs(found) else known.served
    served = " ".join(_served_text(span, sizes) for span in spans)
    served = f"<p>{served}</p>" if served else ""
    if not known.rows:
        return f"<p>{code(unknown(found, known))}</p>{served}"
    most = max(2.0, *(row.ratio for row in known.rows.values()))
    rows = []
    for size, row in known.rows.items():
        shown = bar(row.ratio / most, "ratio", 1 / most)
        ratio = f"{shown} <b>{figure(row.ratio)}</b>"
        rows.append((human_bytes(size), time_text(row.nccl_us), time_text(row.plait_us), ratio))
    fewer = "".join(
        f"<li>{count} ranks: {text(in_spans(of, [*of]))}</li>" for count, of in known.fewer.items()
    )
    fewer = f"<p>Fewer ranks of such GPUs, measured too:</p><ul>{fewer}</ul>" if fewer else ""
    of = known.kind.split()[0]  # measured or predicted
    head = ("size", f">NCCL, {of}", f">plait, {of}", "times as fast (the mark: equal)")
    shown = table(head, rows, kind="ratios")
    note = f'<p class="note">{code(_note(found, known))}</p>'
    return f"<p>{code(_source(found, known))}</p>{served}{shown}{note}{fewer}"


def _source(found: BySize, known: Comparison) -> str:
    """Returns whether times are measured or predicted, and by what."""
    said = f"{known.kind[0].upper()}{known.kind[1:]}: {known.source}."
    if never_runs(found):
        said += " `plait run` leaves calls of all sizes to NCCL on these GPUs."
    elif known.kind == PREDICTED:
        said += " `plait tune` or `plait bench all_reduce --against nccl` measures it."
    return said


def _note(found: BySize, known: Comparison) -> str:
    """Returns the conditions of the times, the sizes without a time, and those whose engine is
    another today."""
    said = ["Calls in CUDA graphs, fp32."]
    sizes = [*found.ways]
    itself = [size for size in sizes if found.ways[size].running.name == "library"]
    gone = [size for size in sizes if size not in known.rows and size not in itself]
    if itself:
        said.append(f"{begun(where(itself[0], itself[-1], sizes))} calls run NCCL itself.")
    if known.kind == PREDICTED and gone:
        said.append(f"{begun(where(gone[0], gone[-1], sizes))} NCCL's time is not known.")
    other = [
        f"{human_bytes(size)} ({row.engine.split(':')[0]})"
        for size, row in known.rows.items()
        if size in found.ways and row.engine.split(":")[0] != found.ways[size].running.name
    ]
    if other:
        said.append(f"Another engine ran then than runs today at {in_words(other)}.")
    return " ".join(said)


def begun(words: str) -> str:
    return words[0].upper() + words[1:]


def _served_text(span: tuple[int, int, str], sizes: list[int]) -> str:
    first, last, said = span
    place = begun(where(first, last, sizes))
    if said == "plait":
        return code(f"{place} `plait run` serves a program's calls of NCCL by plait.")
    return code(f"{place} `plait run` leaves calls to NCCL: {_why_left(said)}.")


def _why_left(said: str) -> str:
    why = said.removeprefix("left to NCCL: ")
    return re.sub(r"^(not measured beside NCCL on [^,(;]*).*", r"plait was \1", why).strip()
