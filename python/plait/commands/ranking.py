"""Second half of `plait plan`: all ways of a call, engines and plans by lanes, fastest first.

What runs is always a row, and marked.
"""

from __future__ import annotations

from plait.commands.console import out, table
from plait.ways import NAMED, SHARED, SIMULATED, Way, Ways

MARK = "  <- runs"
MEANS = {
    NAMED: "runs with -s, strategy= or PLAIT_ALGO alone: it adds in another order than the ranks', "
    "or no call over nodes chooses it",
    SIMULATED: "plait's own links between nodes exist in simulation alone",
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
    for number, way in enumerate(ways.rows, 1):
        shown.add_row(str(number), *_cells(way))
    out.print(shown, soft_wrap=False, crop=False, no_wrap=True, overflow="ignore")
    for may, meaning in MEANS.items():
        if any(way.may == may for way in ways.rows):
            out.print(f"{may}: {meaning}", markup=False)
    if ways.running.us > 1.05 * ways.best.us:
        out.print(_why_faster_rows_wait(ways, rule), markup=False)
    for reason, names in _by_reason(ways.refusals).items():
        out.print(f"not {', '.join(names)}: {reason}", markup=False)


def _cells(way: Way) -> tuple[str, ...]:
    name = f"{'engine ' if way.is_engine else ''}{way.label}{MARK if way.runs else ''}"
    time_us, busbw = (f"{way.us:.1f} us", f"{way.busbw:.1f}") if way.us else ("-", "-")
    return time_us, busbw, str(way.ops), way.sum_order, way.may, way.bound_by or "-", name


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


def _by_reason(refusals: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Returns the strategies of each reason; those of other collectives share one."""
    names: dict[str, list[str]] = {}
    for name, reason in refusals:
        short = "other collectives" if reason.startswith("does ") else reason
        names.setdefault(short.removeprefix("unsupported: "), []).append(name)
    return names
