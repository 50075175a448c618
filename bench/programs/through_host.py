"""Times plait and NCCL on GPUs that do not address each other (NCCL_P2P_DISABLE=1), in one run.

Both libraries go through host memory, on the same buffers and stream, eagerly and in graphs, and
results are checked. `goal_us` and `goal_ratio` are for fp32 all_reduces of two H200 in graphs. At
the end: for each collective the geometric mean of NCCL's time over plait's, and the least. Exit
status 1: a result was wrong.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from bench.lib import rows as kept
from bench.programs.calls import mean
from plait.bench import engines, gpu_ranks
from plait.bench.sizes import parse_bytes
from plait.commands.bench import rows_of

KIB, MIB = 1 << 10, 1 << 20
# Bytes -> (us of an fp32 all_reduce of two H200 in a graph, NCCL's time over plait's).
GOALS = {
    4 * KIB: (4.0, 3.0),
    64 * KIB: (6.3, 2.7),
    256 * KIB: (13.5, 2.7),
    1 * MIB: (38.0, 1.7),
    4 * MIB: (112.0, 1.55),
    64 * MIB: (1480.0, 1.68),
    256 * MIB: (5900.0, 1.68),
}
ENV = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
COLUMNS = (*gpu_ranks.FIELDS, "goal_us", "goal_ratio")


def with_goal(row: dict[str, Any]) -> dict[str, Any]:
    """Adds the goal of an fp32 all_reduce of two ranks; "" for other rows."""
    us, ratio = "", ""
    if (row["collective"], row["type"], row["ranks"]) == ("all_reduce", "fp32", 2):
        us, ratio = (str(one) for one in GOALS.get(row["size"], ("", "")))
    return {name: row.get(name, "") for name in gpu_ranks.FIELDS} | {
        "goal_us": us,
        "goal_ratio": ratio,
    }


def summary(measured: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each collective."""
    lines = []
    for name in dict.fromkeys(row["collective"] for row in measured):
        for way in ("graph", "eager"):
            ratios = [row[f"{way}_ratio"] for row in measured if row["collective"] == name]
            ratios = [ratio for ratio in ratios if ratio != ""]
            if ratios:
                lines.append(
                    f"# {name}, {way}: NCCL's time over plait's: geometric mean "
                    f"{mean(ratios):.2f}, least {min(ratios):.2f} of {len(ratios)} sizes"
                )
    return lines


def run(given: SimpleNamespace) -> int:
    os.environ |= ENV
    sizes = [parse_bytes(size) for size in given.bytes.split(",") if size] or list(GOALS)
    task = {
        "ranks": given.ranks,
        "collectives": given.collectives.split(","),
        "types": given.types.split(","),
        "sizes": sizes,
        "op": "sum",
        "root": 0,
        "peer": 1,
        "ways": [("", {}), *map(engines.parted, given.engines.split())],
        "against": "nccl",
        "topology": "",
        "masks": [],
        "sm_budget": 0,
        "check": True,
        "seed": given.seed,
        "row_s": given.row_s,
    }
    measured = []
    with_rows = kept.CsvFile(given.csv, COLUMNS, [f"{name}={ENV[name]}" for name in ENV])
    for row in rows_of("plait.bench.gpu_ranks:rank_main", given.ranks, task):
        if "gpu" in row:
            print(f"# {given.ranks} x {row['gpu']}, NCCL {row['nccl']}, {ENV}", flush=True)
            continue
        measured.append(with_goal(row))
        with_rows.write(measured[-1])
        kept.show([{name: shown(value) for name, value in measured[-1].items()}])
    print("\n".join(summary(measured)))
    return int(any(row["plait_wrong"] or row["nccl_wrong"] not in ("", 0) for row in measured))


def shown(value: object) -> object:
    """Returns a figure with four digits; other values as they are."""
    return f"{value:.4g}" if isinstance(value, float) else value
