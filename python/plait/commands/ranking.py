"""Second half of `plait plan`: all ways of a call, engines and strategies' plans by lanes.

The fastest comes first. What runs is always a row, and marked. Engines and strategies share some
names, so each name comes with its kind.
"""

from __future__ import annotations

from typing import Any

import plait
from plait import entry_points, nccl_times
from plait.commands.console import out, table
from plait.ways import NAMED, REFUSED, SHARED, SIMULATED, Way, Ways
from plait.ways import why as why_chosen

RUNS, WOULD_RUN = "  <- runs", "  <- would run"  # on GPUs without kernels
MEANS = {
    NAMED: "runs with -s, strategy= or PLAIT_ALGO alone: it adds in another order than the ranks', "
    "or no call over nodes chooses it",
    SIMULATED: "plait's own links between nodes exist in simulation alone",
    REFUSED: "calls have too little memory for it, or no way to a GPU that it wants",
    SHARED: "wants buffers that all ranks see, as plait.copy between two GPUs of a process has",
}


def show(ways: Ways, rule: str) -> None:
    """Prints the ways. The name, for use with -s, comes last and is never truncated.

    rule: by which calls choose a plan by lanes.
    """
    columns = (">", ">predicted", ">busbw GB/s", ">ops", "sum order", "calls", "bound by", "way")
    shown = table(*columns, title="engines and plans by lanes, fastest by prediction first")
    shown.box, shown.pad_edge = None, False
    for column in shown.columns:
        column.no_wrap = True
    unit, mark = _unit(ways), WOULD_RUN if ways.runs.why_not or ways.runs.why_no_call else RUNS
    for number, way in enumerate(ways.rows, 1):
        shown.add_row(str(number), *_cells(way, unit, mark))
    out.print(shown, soft_wrap=False, crop=False, no_wrap=True, overflow="ignore")
    for may, meaning in MEANS.items():
        if any(way.may == may for way in ways.rows):
            out.print(f"{may}: {meaning}", markup=False)
    if ways.running.us > 1.05 * ways.best.us:
        out.print(_why_faster_rows_wait(ways, rule), markup=False)
    for kinds, refused in (("engine", ways.engines_refused), ("strategy", ways.refusals)):
        for reason, names in by_reason(refused).items():
            out.print(f"not {kinds} {', '.join(names)}: {reason}", markup=False)


def _unit(ways: Ways) -> tuple[float, str]:
    """Returns one unit for all times: us, ms or s in us, and its name. By the fastest way."""
    least = min((way.us for way in ways.rows if way.us), default=0.0)
    return (1.0, "us") if least < 1e4 else (1e3, "ms") if least < 1e6 else (1e6, "s")


def _cells(way: Way, unit: tuple[float, str], mark: str) -> tuple[str, ...]:
    name = f"{way.kind} {way.label}{mark if way.runs else ''}"
    size, of = unit
    digits = 1 if of == "us" else 2
    took = f"{way.us / size:.{digits}f} {of}" if way.us else "-"
    busbw = f"{way.busbw:.1f}" if way.us else "-"
    return took, busbw, str(way.ops), way.sum_order, way.may, way.bound_by or "-", name


def _why_faster_rows_wait(ways: Ways, rule: str) -> str:
    """Returns why a row that may run and is predicted to be faster does not run."""
    more = 100 * (ways.running.us / ways.best.us - 1)
    faster, by = f"{ways.best.label} is predicted {more:.0f} % faster", ways.runs.by
    named = {"caller": "--strategy", "environment": "PLAIT_ALGO", "file": "the file"}
    if by in named:
        return f"{faster}; {named[by]} names another"
    if by == "simulated":
        return f"{faster}; a plan runs {rule}"
    whose = {"table": "this machine's tuning table", "built in": "measurements of such GPUs"}[by]
    return f"{faster}; {whose} decide, not predictions"


def by_reason(refusals: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Returns the names of each reason; those of other collectives share one."""
    names: dict[str, list[str]] = {}
    for name, reason in refusals:
        is_other = reason.startswith(("does ", "it does not serve "))
        short = "other collectives" if is_other else reason
        names.setdefault(short.removeprefix("unsupported: "), []).append(name)
    return names


def as_json(
    machine: plait.Topology, request: plait.Request, ways: Ways, rule: str
) -> dict[str, Any]:
    """Returns the keys of docs/devices_reference.md."""
    measured = nccl_times.of_call(machine, request)
    return ways.runs.as_json() | {
        "why": why_chosen(ways.runs, rule),
        "doors": {
            name: {"served_by": entry_points.served_by(said), "text": said}
            for name, said in entry_points.of_call(machine, request, ways.runs).items()
        },
        "nccl": measured.as_json() if measured else None,
        "ways": [way.as_json() for way in ways.rows],
        "refused": [
            {"kind": kind, "names": names, "why": reason}
            for kind, refused in (("engine", ways.engines_refused), ("strategy", ways.refusals))
            for reason, names in by_reason(refused).items()
        ],
    }
