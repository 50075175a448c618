"""Second half of `plait plan`: lists all plans by lanes, fastest by simulation first.

The plan that calls take is marked, and listed even if no simulation proposed it.
"""

from __future__ import annotations

import plait
from plait.commands.console import out, table


def rule(machine: plait.Topology, plans: list[plait.RankedPlan], taken: plait.Plan | None) -> str:
    """Returns the rule by which calls choose a plan by lanes."""
    in_order = (one.plan for one in plans if one.plan.sum_order == "rank_order")
    if taken is None or taken == next(in_order, None):
        return "as calls choose: the first in rank order"
    if any(device.kind == "gpu" for device in machine.devices):
        return "as calls choose"
    request = taken.request
    if request.collective == "all_reduce" and request.ranks == 2:
        return "as calls choose: as measured on two CPU ranks, not by simulation"
    return "as calls choose: on CPU ranks by the planner's estimate, not by simulation"


def show(
    machine: plait.Topology,
    plans: list[plait.RankedPlan],
    refusals: list[tuple[str, str]],
    taken: plait.Plan | None,
) -> None:
    """Prints the plans. The name, for use with -s, comes last and is never truncated."""
    rows = [(one.plan, one.timeline) for one in plans]
    if taken is not None and all(taken != plan for plan, _ in rows):
        its_own = plait.simulate(taken, machine)
        slower = (at for at, row in enumerate(rows) if _is_slower(row[1], its_own))
        rows.insert(next(slower, len(rows)), (taken, its_own))
    columns = (">", ">simulated", ">busbw GB/s", ">ops", "sum order", "bound by", "plan")
    shown = table(*columns, title="plans by lanes, fastest by simulation first")
    shown.box, shown.pad_edge = None, False
    for column in shown.columns:
        column.no_wrap = True
    for number, (found, timeline) in enumerate(rows, 1):
        said = ("-", "-", "not simulated: budget spent")
        if timeline is not None:
            said = (
                f"{timeline.total_ns / 1e3:.1f} us",
                f"{timeline.busbw_gb_per_s:.1f}",
                timeline.bound_by,
            )
        mark = "  <- calls by lanes" if taken is not None and found == taken else ""
        time_us, busbw, bound_by = said
        figures = (str(number), time_us, busbw, str(found.op_count()), found.sum_order)
        shown.add_row(*figures, bound_by, found.label + mark)
    out.print(shown, soft_wrap=False, crop=False, no_wrap=True, overflow="ignore")
    for name, reason in refusals:
        out.print(f"not {name}: {reason}", markup=False)


def _is_slower(timeline: plait.Timeline | None, than: plait.Timeline) -> bool:
    """Returns whether a plan is slower; a plan without simulation counts as slower."""
    return timeline is None or timeline.total_ns > than.total_ns
