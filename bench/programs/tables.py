"""Prints the tables of a run, and writes its rows and choices into the repository.

--write copies the run's files to bench/results and puts its rows into the table of the run's GPUs,
tuning/*.json; `renew` goes on from there, docs/performance.md included.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace

import plait
from bench.lib.rows import ROOT, kind_of, read
from bench.programs import goals, predictions
from bench.programs.calls import HOW, Calls, VariantTimes, busbw, calls_of, mean, of_both
from bench.programs.items import KIB, MIB, RunItem
from plait._core import engine_plan
from plait.bench import engines, tuning_tables
from plait.bench.engines import parted
from plait.outputs import human_bytes

TUNING = ROOT / "tuning"


def wrong_rows(folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob("gpu_*.csv")):
        bad = [row for row in read(file) if row.get("wrong", "0") not in ("0", "")]
        yield f"{file.name}: {len(read(file))} rows, {len(bad)} of them wrong"


def chosen_table(calls: Calls, ranks: int, head: str) -> Iterator[str]:
    """Yields plait's choice with NCCL's time, and the mean ratio of each collective."""
    yield f"### {head}"
    yield (
        "| collective | type | size | by | plait graph us | eager | GB/s | NCCL graph us | eager | "
        "x graph | x eager |"
    )
    yield "|---" * 11 + "|"
    ratios: dict[tuple[str, int], list[float]] = {}
    for (collective, kind, size), variants in sorted(calls.items()):
        graph, eager = variants.us(0), variants.us(1)
        if not graph and not eager:
            continue
        theirs = variants.by.get("nccl", [0.0, 0.0])
        speed = busbw(collective, size, ranks, graph or eager)
        by = " / ".join(dict.fromkeys(filter(None, variants.chosen)))
        for how in (0, 1):
            if variants.ratio(how):
                ratios.setdefault((collective, how), []).append(variants.ratio(how))
        yield (
            f"| {collective} | {kind} | {human_bytes(size)} | {by} | {graph:.2f} | "
            f"{eager:.2f} | {speed:.1f} | {theirs[0]:.2f} | {theirs[1]:.2f} | "
            f"{variants.ratio(0):.2f} | {variants.ratio(1):.2f} |"
        )
    for (collective, how), found in sorted(ratios.items()):
        yield (
            f"{collective}, {HOW[how]}: NCCL's time over plait's: geometric mean "
            f"{mean(found):.2f}, least {min(found):.2f}, of {len(found)}"
        )


def schedule_table(calls: Calls, ranks: int) -> Iterator[str]:
    """Yields all variants of each call, the fastest first."""
    yield "### schedules: us in a graph / eagerly, and NCCL's time over it"
    for (collective, kind, size), variants in sorted(calls.items()):
        order = sorted(
            variants.by, key=lambda variant: variants.by[variant][0] or variants.by[variant][1]
        )
        said = [
            f"{variant} {variants.by[variant][0]:.1f}/{variants.by[variant][1]:.1f}"
            + ("" if variant == "nccl" else f" ({variants.ratio(0, variant):.2f}x)")
            for variant in order
        ]
        yield f"{collective} {kind} {human_bytes(size)}: {'; '.join(said)}"


def link_table(folder: Path) -> Iterator[str]:
    """Yields GB/s of each size, and of the increment from the second largest to the largest."""
    times: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for file in sorted(folder.glob("gpu_links_*.csv")):
        for row in read(file):
            key = (row["pattern"], row["k"], row["way"], row["blocks"])
            times.setdefault(key, {})[int(row["bytes"])] = float(row["us"])
    yield "### links: GB/s by size, and the increment from the second largest to the largest"
    for (pattern, k, variant, blocks), by_size in sorted(times.items()):
        sizes = sorted(by_size)
        said = ", ".join(f"{human_bytes(one)} {one / by_size[one] / 1e3:.1f}" for one in sizes)
        more = ""
        if len(sizes) > 1 and by_size[sizes[-1]] > by_size[sizes[-2]]:
            step = (sizes[-1] - sizes[-2]) / (by_size[sizes[-1]] - by_size[sizes[-2]]) / 1e3
            more = f"; increment {step:.1f}"
        yield f"{pattern} {k}, {variant}, {blocks} blocks: {said}{more}"


# --- rows of tuning tables.


@dataclass(frozen=True)
class ChoiceRow:
    """A row of a tuning table: up to `upto` bytes, or all larger calls (None). variant: an engine,
    or engine:params."""

    collective: str
    ranks: int
    upto: int | None
    variant: str
    beats_nccl: bool

    def entry(self, source: str) -> tuning_tables.Row:
        """Returns the row as the table has it."""
        engine, params = parted(self.variant)
        upto = {} if self.upto is None else {"upto_bytes": tuning_tables.size_text(self.upto)}
        order = [one.name for one in plait.engine_params() if one.name in params]
        return {
            "collective": self.collective,
            "from_ranks": 2,
            "upto_ranks": self.ranks,
            **upto,
            "engine": engine,
            **({"params": {name: params[name] for name in order}} if params else {}),
            "ahead_of_nccl": self.beats_nccl,
            "source": source,
        }


SOURCES = re.compile("gpu_run_(table|schedules|large)_")
NOISE = 0.98  # another variant replaces today's choice if its time is below this share of it
# Calls that need a row: sums of these types, and ranks that are threads of one process. Copy
# engines want a process for each rank.
THREADS = "threads"
COMMON = ("fp32", "bf16", "fp64", "int32", THREADS)


@dataclass(frozen=True)
class SizedRequest:
    """A collective, a number of ranks and a size: the key of rows of a tuning table."""

    collective: str
    ranks: int
    size: int

    def is_taken(self, variant: str, by: str = "fp32") -> bool:
        """True if ranks with the usual memory run the call by `variant`. by: an item of COMMON."""
        if by == THREADS:
            return not engines.by_copy_engines(parted(variant)[0])
        return takes(self, variant, by)


@cache
def takes(sized: SizedRequest, variant: str, kind: str) -> bool:
    engine, params = parted(variant)
    if engine not in engines.names(sized.collective):
        return False
    item = RunItem("", sized.collective, kind, sized.size)
    try:
        engine_plan(predictions.machine(), item.request(sized.ranks), engine, params)
    except (plait.UnsupportedError, plait.InvalidArgumentError):  # a removed parameter
        return False
    return True


def best_of(variants: VariantTimes, wanted: Callable[[str], bool]) -> tuple[str, bool] | None:
    """Returns (variant, true if NCCL is faster neither in graphs nor eagerly); the best by the mean
    of graph and eager."""
    score = {
        name: math.sqrt(us[0] * us[1])
        for name, us in variants.by.items()
        if name != "nccl" and us[0] > 0 and us[1] > 0 and wanted(name)
    }
    if not score or "nccl" not in variants.by:
        return None
    name = min(score, key=score.__getitem__)
    # A choice of its own in graphs has a row that no table proposes.
    today = variants.chosen[1] or variants.chosen[0]
    if today in score and score[today] * NOISE <= score[name]:
        name = today
    return name, variants.ratio(0, name) >= 1 and variants.ratio(1, name) >= 1


def between(here: int, there: int, beats: tuple[bool, bool]) -> int:
    """Returns the last size of a row whose neighbour begins at `there`; NCCL is ahead in
    between."""
    if beats == (True, False):
        return here
    if beats == (False, True):
        return (there - 1) // KIB * KIB
    middle = math.isqrt(here * there)
    grain = MIB if middle >= 8 * MIB else KIB
    return max(here, middle // grain * grain)


def best_for_all(sized: SizedRequest, variants: VariantTimes) -> tuple[tuple[str, bool], ...]:
    """Returns the best variant for fp32, then the best for calls that the former ones refuse, until
    all are served."""
    found: list[tuple[str, bool]] = []
    left = list(COMMON)
    while left:
        best = best_of(variants, partial(sized.is_taken, by=left[0]))
        if best is None or (best in found):
            left.pop(0)
            continue
        found.append(best)
        left = [one for one in left if not sized.is_taken(best[0], one)]
    return tuple(found)


def rows_of(
    collective: str, ranks: int, series: list[tuple[int, tuple[tuple[str, bool], ...]]]
) -> Iterator[ChoiceRow]:
    """Yields the best variants at each size as rows; equal neighbours become one row."""
    for number, (size, best) in enumerate(series):
        upto = None
        if number + 1 < len(series):
            following, then = series[number + 1]
            if then == best:
                continue
            upto = between(size, following, (best[0][1], then[0][1]))
        for variant, beats in best:
            yield ChoiceRow(collective, ranks, upto, variant, beats)


def choices(calls: Calls, ranks: int) -> list[ChoiceRow]:
    """Returns the rows of a table for sums of fp32 and for moves. A row equal to the next one
    is left out, since the first row that takes a call counts."""
    found: list[ChoiceRow] = []
    for collective in dict.fromkeys(name for name, _, _ in sorted(calls) if " " not in name):
        series = [
            (size, best)
            for (name, kind, size), variants in sorted(calls.items())
            if (name, kind) == (collective, "fp32")
            and (best := best_for_all(SizedRequest(collective, ranks, size), variants))
        ]
        made = list(rows_of(collective, ranks, series))
        found += [
            row
            for row, after in zip_longest(made, made[1:])
            if after is None or (row.variant, row.beats_nccl) != (after.variant, after.beats_nccl)
        ]
    return found


def with_choices(
    table: tuning_tables.Table, made: list[ChoiceRow], source: str
) -> tuning_tables.Table:
    """Returns a table with these rows in place of those of the same collectives and ranks. Rows for
    some calls only (`when`) stay."""
    rows = list(table["rows"])
    for collective in dict.fromkeys(one.collective for one in made):
        mine = [one for one in made if one.collective == collective]
        ranks = mine[0].ranks

        def is_like(row: tuning_tables.Row, named: str = collective) -> bool:
            return row["collective"] == named and "when" not in row

        rows = [row for row in rows if not (is_like(row) and row["upto_ranks"] == ranks)]
        later = [i for i, row in enumerate(rows) if is_like(row) and row["upto_ranks"] > ranks]
        earlier = [i for i, row in enumerate(rows) if is_like(row)]
        at = later[0] if later else earlier[-1] + 1 if earlier else len(rows)
        rows[at:at] = [one.entry(source) for one in mine]
    return table | {"rows": rows}


def table_of(folder: Path) -> Path:
    """Returns the tuning table of the GPUs of a run's files; raises SystemExit if there is none."""
    kinds = {file.name: kind_of(file) for file in sorted(folder.glob("gpu_run_*.csv"))}
    tables = {
        kind: file
        for file in sorted(TUNING.glob("*.json"))
        for kind in tuning_tables.kinds_of(json.loads(file.read_text()))
    }
    others = [
        f"{name}: on {kind or 'GPUs of no stated kind'}"
        for name, kind in kinds.items()
        if kind not in tables
    ]
    files = {tables[kind] for kind in kinds.values() if kind in tables}
    if others or len(files) != 1:
        raise SystemExit(
            f"tables: wanted rows measured on GPUs of one table, {'; '.join(sorted(tables))}, "
            f"found {'; '.join(others or map(str, sorted(files)))}: write tuning/KIND.json for "
            "other GPUs first (docs/tune.md). Nothing was written"
        )
    return files.pop()


def of_others(folder: Path, ranks: int) -> list[str]:
    """Returns files of the run with another number of GPUs: 'gpu_run_table_h200x2.csv: on 2'."""
    files = {file.name: read(file) for file in sorted(folder.glob("gpu_run_*.csv"))}
    found = {name: sorted({int(row["gpus"]) for row in rows}) for name, rows in files.items()}
    return [
        f"{name}: on {', '.join(map(str, gpus))}"
        for name, gpus in found.items()
        if set(gpus) - {ranks}
    ]


def report(folder: Path, ranks: int) -> str:
    """Returns all tables, the most important last, where a terminal shows them."""
    table, swept = calls_of(folder, "table"), calls_of(folder, "schedules")
    lines = [*link_table(folder), *schedule_table(swept, ranks)]
    lines += schedule_table(calls_of(folder, "slots"), ranks)
    if ranks in predictions.GPUS:
        lines += ["### predictions", *predictions.errors(folder, ranks)]
        for file in sorted(folder.glob("gpu_links_*.csv")):
            lines += predictions.link_errors(read(file), ranks)
        for file in sorted(folder.glob("gpu_rotation_*.csv")):
            lines += predictions.rotation_errors(read(file), ranks)
    large = calls_of(folder, "large")
    for section in ("shares", "shares_640m"):
        lines += [f"### {section}", *schedule_table(calls_of(folder, section), ranks)]
    made = choices(measured_calls(folder), ranks)
    lines += ["### rows of the tuning table", *(json.dumps(one.entry("")) for one in made)]
    for file in sorted(folder.glob("gpu_symmetric_*.csv")):
        lines += [f"### {file.name}", *file.read_text().splitlines()]
    for section in ("pinned_ring", "pinned_tree"):
        calls = calls_of(folder, section)
        lines += chosen_table(calls, ranks, f"compared with NCCL pinned: {section}")
    lines += schedule_table(large, ranks)
    lines += chosen_table(table or large, ranks, "plait's choice and NCCL")
    judged = goals.goals(folder, ranks) if table else []  # a run on large messages has no goals
    return "\n".join([*lines, *judged, *wrong_rows(folder)])


def measured_calls(folder: Path) -> Calls:
    """Returns the calls of a run that make rows of tuning tables: communicators with the usual
    memory, and without a share through host memory, which is corrected call by call."""
    calls = of_both(calls_of(folder, "table"), calls_of(folder, "schedules"))
    return of_both(calls, calls_of(folder, "large"))


def with_larger(
    table: tuning_tables.Table, made: list[ChoiceRow], least: dict[str, int], source: str
) -> tuning_tables.Table:
    """Returns a table with these rows in front of those of the same collectives, from the least
    measured size on: the table's own rows go on serving smaller calls."""
    rows = list(table["rows"])
    for collective in dict.fromkeys(one.collective for one in made):
        mine = [one.entry(source) for one in made if one.collective == collective]
        ranks = mine[0]["upto_ranks"]
        start = {"from_ranks": ranks, "from_bytes": tuning_tables.size_text(least[collective])}
        is_own = [row["collective"] == collective and "when" not in row for row in rows]
        at = is_own.index(True) if True in is_own else len(rows)
        rows[at:at] = [row | start for row in mine]
    return table | {"rows": rows}


def with_run(table: tuning_tables.Table, folder: Path, ranks: int) -> tuning_tables.Table:
    """Returns a table with the rows of a run."""
    calls, source = measured_calls(folder), sources(folder)
    made = choices(calls, ranks)
    if calls_of(folder, "table"):
        return with_choices(table, made, source)
    least: dict[str, int] = {}
    for collective, _, size in calls:
        least[collective] = min(least.get(collective, size), size)
    return with_larger(table, made, least, source)


def sources(folder: Path) -> str:
    names = (run.name for run in sorted(folder.glob("gpu_run_*.csv")))
    return ", ".join(name for name in names if SOURCES.search(name))


def base_table(folder: Path, machine: str, ranks: int) -> tuning_tables.Table:
    """Returns the tuning table of the GPUs of a run's files. GPUs without a table get the rows of
    hgx-h200 as guesses."""
    kinds = {kind_of(file) for file in sorted(folder.glob("gpu_run_*.csv"))}
    tables = [json.loads(file.read_text()) for file in sorted(TUNING.glob("*.json"))]
    for table in tables:
        if kinds <= set(tuning_tables.kinds_of(table)):
            return dict(table)
    guessed = next(table for table in tables if table["name"] == "hgx-h200")
    found = re.fullmatch(r"(.*), (\d+) multiprocessors, (.*)", min(kinds))
    if found is None:  # a dry run
        return dict(guessed)
    gpu = {
        "model": found[1],
        "multiprocessors": int(found[2]),
        "links": [found[3]],
        "upto_ranks": ranks,
    }
    rows = [row | {"source": f"guess from {guessed['name']}"} for row in guessed["rows"]]
    return dict(guessed | {"name": machine, "gpu": gpu, "rows": rows})


def write_tuned(folder: Path, ranks: int, machine: str) -> str:
    """Writes the tuning table with a run's rows into the run's folder; returns a line about it."""
    made = len(choices(measured_calls(folder), ranks))
    if made == 0:
        return "no tuning file: no call was timed beside NCCL"
    table = with_run(base_table(folder, machine, ranks), folder, ranks)
    text = tuning_tables.text_of(table)
    plait._core.check_tuning(text)
    file = folder / f"tuning_{machine}.json"
    file.write_text(text)
    return f"{file.name}: {made} rows of {ranks} ranks are measured; PLAIT_TUNING={file} tries them"


def write(folder: Path, ranks: int) -> None:
    """Writes rows and choices into the repository; refuses a run on GPUs without a table."""
    file = table_of(folder)
    for run in sorted(folder.glob("gpu_*.csv")):
        shutil.copy(run, ROOT / "bench" / "results" / run.name)
    known = json.loads(file.read_text())
    file.write_text(tuning_tables.text_of(with_run(known, folder, ranks)))


def run(given: SimpleNamespace) -> None:
    if others := of_others(given.folder, given.gpus):
        raise SystemExit(
            f"tables: wanted files of runs on {given.gpus} GPUs alone, found "
            f"{'; '.join(others)}: give each run's files a folder of their own"
        )
    print(report(given.folder, given.gpus))
    if given.write:
        write(given.folder, given.gpus)
