"""Makes the table of docs/devices_reference.md on what less device memory costs, by simulation.

A test compares the page with these rows.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import plait
from bench.lib.rows import ROOT
from plait.what_runs import by_memory

PAGE = ROOT / "docs" / "devices_reference.md"
ROWS = re.compile(r"(?:^\| \d+ \| \d+M \|.*\n)+", re.M)
RANKS = (2, 4, 8)


def rows() -> str:
    """Returns the lines of the table without its head."""
    machine = plait.load_topology("hgx-h200")
    lines = [
        f"| {ranks} | {mib}M | "
        + " | ".join(f"{call.engine} {call.predicted_us:.0f}" for call in calls)
        + " |\n"
        for ranks in RANKS
        for mib, calls in by_memory(machine, ranks)
    ]
    return "".join(lines)


def updated(page: str, table: str) -> str:
    """Returns the page with the lines of `table`."""
    if len(ROWS.findall(page)) != 1:
        raise SystemExit(f"memory_table: wanted one table by ranks and memory in {PAGE.name}")
    return ROWS.sub(table, page)


def run(given: SimpleNamespace) -> None:
    if given.write:
        PAGE.write_text(updated(PAGE.read_text(), rows()))
    else:
        print(rows(), end="")
