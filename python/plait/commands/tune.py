"""`plait tune`: measures on this machine's GPUs and writes the table that communicators read."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

import plait
from plait import outputs
from plait.bench import tuner
from plait.bench.nccl import Nccl
from plait.commands.bench import gpu_ranks, rows_of
from plait.commands.console import JsonOption, RanksOption, err, out, progress_bar, table
from plait.what_runs import by_memory, large_calls


def tune(
    ranks: RanksOption = None,
    collectives: Annotated[
        str, typer.Option(help="Some only, by commas; default: all that kernels do.")
    ] = "",
    seconds: Annotated[float, typer.Option(help="Stop measuring after so long.")] = tuner.BUDGET_S,
    write: Annotated[
        str, typer.Option(help="Write the table here; default: the cache folder; none: nowhere.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Time every kernel at every size on this machine's GPUs.

    Later calls use the fastest kernel. Times kernels alone and as under `plait run`, and NCCL if
    it is found: `plait run` then forwards calls on which NCCL is faster. Rows of other collectives
    and types in the table stay.
    """
    names = [name for name in collectives.split(",") if name] or list(tuner.COLLECTIVES)
    names = [plait.Request(name, 0).collective for name in names]
    if not 1 <= seconds <= 3600:
        raise plait.InvalidArgumentError(f"--seconds: wanted 1 to 3600, found {seconds:g}")
    if ranks == 1:
        raise plait.InvalidArgumentError("--ranks: wanted 2 or more to tune for, found 1")
    outputs.check("" if write == "none" else write, "--write", makes_folders=True)
    count = gpu_ranks(ranks, "")
    task = {
        "ranks": count,
        "collectives": names,
        "row_s": 0.03,
        "topology": "",
        "masks": [],
    }
    facts, rows = _measured(task, seconds)
    content = tuner.table(facts, rows)
    for file, part in files_of(facts["files"], content, write):
        tuner.write(file, tuner.merged(file, part))
        err.print(f"wrote {file}", markup=False)
    if as_json:
        out.print(json.dumps(content | {"measured": rows}, indent=1), markup=False)
    else:
        _print(facts, content["rows"])
        _print_budgets(count)
    if len(rows) < facts["total"]:
        err.print(f"time was up after {len(rows)} of {facts['total']} sizes; see --seconds")


def files_of(
    own: dict[str, str], content: dict[str, Any], named: str
) -> list[tuple[str, dict[str, Any]]]:
    """Returns the files to write and the table for each. own: of communicators; named: --write."""
    if named:
        return [] if named == "none" else [(named, content)]
    files = {own["alone"]: tuner.of_plait_alone(content), own["beside_nccl"]: content}
    return [(file, part) for file, part in files.items() if file]


def _finds_nccl() -> bool:
    try:
        Nccl()
    except plait.FileError as error:
        err.print(f"{error}; `plait run` forwards calls by the built-in table", markup=False)
        return False
    return True


def _measured(task: dict[str, Any], seconds: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Runs a job per setting: two communicators of a process on the same GPU slow each other
    down."""
    facts: dict[str, Any] = {"total": 0}
    rows: list[dict[str, Any]] = []
    nccl = "nccl" if _finds_nccl() else ""
    with progress_bar(1, "tuning") as progress:
        bar = progress.task_ids[0]
        for setting in tuner.SIZES:
            against = nccl if setting == "overlap_compute" else ""
            if not tuner.requests(task["ranks"], task["collectives"], setting, against):
                continue
            part = {"setting": setting, "against": against, "budget_s": seconds / 2}
            for row in rows_of("plait.bench.tuner:rank_main", task["ranks"], task | part):
                if "total" in row:
                    version = row["nccl"] or facts.get("nccl", "")
                    # The setting without NCCL names no table beside NCCL.
                    named = {key: one for key, one in row["files"].items() if one}
                    files = {**row["files"], **facts.get("files", {}), **named}
                    total = facts["total"] + row["total"]
                    facts = row | {"total": total, "nccl": version, "files": files}
                else:
                    rows.append(row)
                progress.update(bar, completed=len(rows), total=facts["total"])
    return facts, rows


def _print(facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    words = ("when", "collective", "type")
    columns = (*words, ">up to bytes", ">engine", ">blocks", ">us there", ">NCCL's")
    title = f"{facts['kind']}, CUDA driver {facts['cuda_driver']}, {facts['date']}"
    shown = table(*columns, title=title)
    for row in rows:
        size = row.get("upto_bytes", "any")
        params = dict(row.get("params", {}))
        blocks = str(params.pop("blocks", "its own"))
        by_nccl = f"{row['nccl_us']:.2f}" if row["nccl_us"] > 0 else ""
        said = ", ".join(f"{name}={value}" for name, value in params.items())
        engine = f"{row['engine']} ({said})" if said else row["engine"]
        figures = (size, engine, blocks, f"{row['us']:.2f}", by_nccl)
        shown.add_row(*(row[name] for name in words), *figures)
    out.print(shown)


def _print_budgets(ranks: int) -> None:
    """Prints the cost of less device memory; nothing if the machine's links are unknown."""
    try:
        budgets = by_memory(plait.discover(), ranks)
    except plait.Error as error:
        return err.print(f"the cost of less device memory is unknown: {error}", markup=False)
    title = "us of calls in graphs by device memory, as the simulator says"
    shown = table("PLAIT_DEVICE_MEMORY", *large_calls(), title=title)
    for mib, calls in budgets:
        shown.add_row(f"{mib}M", *(f"{call.engine} {call.predicted_us:.0f}" for call in calls))
    out.print(shown)
