"""The tables of a run, from its rows; and what is made of them in the repository.

    python bench/run_tables.py OUT --gpus 8             # tables
    python bench/run_tables.py OUT --gpus 8 --write     # rows, choices, the README's figures

--write copies the run's files to bench/results, puts its rows into src/exec/cuda/choices.def and
the figures into README.md; bench/renew.sh goes on from there.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import run_goals
import run_predictions
from run_calls import HOW, Calls, Ways, busbw, calls_of, mean
from run_rows import KIB, MIB, read

import plait
from plait.outputs import human_bytes

ROOT = Path(__file__).resolve().parent.parent
CHOICES = ROOT / "src" / "exec" / "cuda" / "choices.def"
README = ROOT / "README.md"


def wrong_rows(folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob("gpu_*.csv")):
        bad = [row for row in read(file) if row.get("wrong", "0") not in ("0", "")]
        yield f"{file.name}: {len(read(file))} rows, {len(bad)} of them wrong"


def chosen_table(calls: Calls, ranks: int, head: str) -> Iterator[str]:
    """plait's choice beside NCCL, and the mean of the ratios of each collective."""
    yield f"### {head}"
    yield (
        "| collective | type | size | by | plait graph us | eager | GB/s | NCCL graph us | eager | "
        "x graph | x eager |"
    )
    yield "|---" * 11 + "|"
    ratios: dict[tuple[str, int], list[float]] = {}
    for (collective, kind, size), ways in sorted(calls.items()):
        if ways.chosen not in ways.by:
            continue
        graph, eager = ways.by[ways.chosen]
        theirs = ways.by.get("nccl", [0.0, 0.0])
        speed = busbw(collective, size, ranks, graph or eager)
        for how in (0, 1):
            if ways.ratio(how):
                ratios.setdefault((collective, how), []).append(ways.ratio(how))
        yield (
            f"| {collective} | {kind} | {human_bytes(size)} | {ways.chosen} | {graph:.2f} | "
            f"{eager:.2f} | {speed:.1f} | {theirs[0]:.2f} | {theirs[1]:.2f} | "
            f"{ways.ratio(0):.2f} | {ways.ratio(1):.2f} |"
        )
    for (collective, how), found in sorted(ratios.items()):
        yield (
            f"{collective}, {HOW[how]}: NCCL's time over plait's: geometric mean "
            f"{mean(found):.2f}, least {min(found):.2f}, of {len(found)}"
        )


def schedule_table(calls: Calls, ranks: int) -> Iterator[str]:
    """All ways of each call, the fastest first."""
    yield "### schedules: us in a graph / eagerly, and NCCL's time over it"
    for (collective, kind, size), ways in sorted(calls.items()):
        order = sorted(ways.by, key=lambda way: ways.by[way][0] or ways.by[way][1])
        said = [
            f"{way} {ways.by[way][0]:.1f}/{ways.by[way][1]:.1f}"
            + ("" if way == "nccl" else f" ({ways.ratio(0, way):.2f}x)")
            for way in order
        ]
        yield f"{collective} {kind} {human_bytes(size)}: {'; '.join(said)}"


def link_table(folder: Path) -> Iterator[str]:
    """GB/s of each size, and of what 4 GiB have more than 1."""
    times: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for file in sorted(folder.glob("gpu_links_*.csv")):
        for row in read(file):
            key = (row["pattern"], row["k"], row["way"], row["blocks"])
            times.setdefault(key, {})[int(row["bytes"])] = float(row["us"])
    yield "### links: GB/s by size, and the increment from the second largest to the largest"
    for (pattern, k, way, blocks), by_size in sorted(times.items()):
        sizes = sorted(by_size)
        said = ", ".join(f"{human_bytes(one)} {one / by_size[one] / 1e3:.1f}" for one in sizes)
        more = ""
        if len(sizes) > 1 and by_size[sizes[-1]] > by_size[sizes[-2]]:
            step = (sizes[-1] - sizes[-2]) / (by_size[sizes[-1]] - by_size[sizes[-2]]) / 1e3
            more = f"; increment {step:.1f}"
        yield f"{pattern} {k}, {way}, {blocks} blocks: {said}{more}"


# --- rows of choices.def.


@dataclass(frozen=True)
class Choice:
    """A row: up to these bytes, or all that are larger (None)."""

    collective: str
    ranks: int
    upto: int | None
    engine: str
    beats_nccl: bool

    def line(self) -> str:
        size = "kAnySize"
        if self.upto is not None:
            shift = 20 if self.upto % MIB == 0 else 10
            size = f"{self.upto >> shift}ull << {shift}"
        return (
            f"PLAIT_CHOICE({self.collective + ',':<15} {self.ranks:>2}, {size:>13}, "
            f"{self.engine}, {int(self.beats_nccl)})"
        )


NOISE = 0.98  # of the fastest: another engine than the one chosen today must be this much faster


def best_of(ways: Ways, engines: set[str]) -> tuple[str, bool] | None:
    """(engine, whether NCCL is nowhere faster), by the mean of graph and eager."""
    score = {
        name: math.sqrt(us[0] * us[1])
        for name, us in ways.by.items()
        if name in engines and us[0] > 0 and us[1] > 0
    }
    if not score or "nccl" not in ways.by:
        return None
    name = min(score, key=score.__getitem__)
    if ways.chosen in score and score[ways.chosen] * NOISE <= score[name]:
        name = ways.chosen
    return name, ways.ratio(0, name) >= 1 and ways.ratio(1, name) >= 1


def between(here: int, there: int, beats: tuple[bool, bool]) -> int:
    """Up to where a row holds whose neighbour begins at `there`; NCCL is ahead in between."""
    if beats == (True, False):
        return here
    if beats == (False, True):
        return (there - 1) // KIB * KIB
    middle = math.isqrt(here * there)
    grain = MIB if middle >= 8 * MIB else KIB
    return max(here, middle // grain * grain)


def choices(calls: Calls, ranks: int) -> list[Choice]:
    """What the rows say of sums of fp32 and of moves, neighbours of one engine as one row."""
    engines = {info.name for info in plait.engines()}
    found: list[Choice] = []
    for collective in dict.fromkeys(name for name, _, _ in sorted(calls) if " " not in name):
        series = [
            (size, best)
            for (name, kind, size), ways in sorted(calls.items())
            if (name, kind) == (collective, "fp32") and (best := best_of(ways, engines))
        ]
        rows: list[Choice] = []
        for number, (size, (engine, beats)) in enumerate(series):
            upto = None
            if number + 1 < len(series):
                following, (_, then) = series[number + 1]
                upto = between(size, following, (beats, then))
            if rows and (rows[-1].engine, rows[-1].beats_nccl) == (engine, beats):
                rows.pop()
            rows.append(Choice(collective, ranks, upto, engine, beats))
        found += rows
    return found


def with_choices(text: str, made: list[Choice]) -> str:
    """choices.def with these rows instead of those of the same collectives and ranks."""
    lines = text.splitlines()
    for collective in dict.fromkeys(one.collective for one in made):
        mine = [one for one in made if one.collective == collective]
        row = re.compile(rf"PLAIT_CHOICE\({collective},\s*(\d+),")
        ranks = mine[0].ranks
        lines = [line for line in lines if not ((m := row.match(line)) and int(m[1]) == ranks)]
        later = [i for i, line in enumerate(lines) if (m := row.match(line)) and int(m[1]) > ranks]
        earlier = [i for i, line in enumerate(lines) if row.match(line)]
        at = later[0] if later else earlier[-1] + 1 if earlier else len(lines)
        lines[at:at] = [one.line() for one in mine]
    return "\n".join(lines) + "\n"


# --- the README's figures.

MARKED = re.compile(
    r"(<!-- figures of (\d+) GPUs, by bench/run_tables\.py -->\n).*?(<!-- end -->)", re.S
)


def sentence(calls: Calls, ranks: int) -> str:
    """How plait's all_reduce of fp32 stands to NCCL's, in graphs, by size."""
    found = sorted(
        (size, ways.ratio(0))
        for (name, kind, size), ways in calls.items()
        if (name, kind) == ("all_reduce", "fp32") and ways.ratio(0)
    )
    behind = [(size, ratio) for size, ratio in found if ratio < 1]
    whole = f"geometric mean {mean([ratio for _, ratio in found]):.2f}"
    if not behind:
        return f"On {ranks} GPUs NCCL takes longer at every size ({whole} times plait's time)."
    least, most = min(one for _, one in behind), max(one for _, one in behind)
    sizes = ", ".join(human_bytes(size) for size, _ in behind)
    return (
        f"On {ranks} GPUs NCCL takes {least:.2f} to {most:.2f} of plait's time at {sizes}, and "
        f"longer elsewhere ({whole} over all sizes)."
    )


def with_figures(text: str, calls: Calls, ranks: int) -> str:
    def renewed(found: re.Match[str]) -> str:
        return (
            f"{found[1]}{sentence(calls, ranks)}\n{found[3]}"
            if int(found[2]) == ranks
            else found[0]
        )

    return MARKED.sub(renewed, text)


def report(folder: Path, ranks: int) -> str:
    """All tables, the most important last, where a terminal shows them."""
    table, swept = calls_of(folder, "table"), calls_of(folder, "schedules")
    lines = [*link_table(folder), *schedule_table(swept, ranks)]
    if ranks in run_predictions.GPUS:
        lines += ["### predictions", *run_predictions.errors(folder, ranks)]
        for file in sorted(folder.glob("gpu_links_*.csv")):
            lines += run_predictions.link_errors(read(file), ranks)
    made = of_both(table, swept, ranks)
    lines += ["### rows of choices.def", *(one.line() for one in made)]
    for file in sorted(folder.glob("gpu_symmetric_*.csv")):
        lines += [f"### {file.name}", *file.read_text().splitlines()]
    for section in ("pinned_ring", "pinned_tree"):
        calls = calls_of(folder, section)
        lines += chosen_table(calls, ranks, f"beside NCCL pinned: {section}")
    lines += chosen_table(table, ranks, "plait's choice beside NCCL")
    return "\n".join([*lines, *run_goals.goals(folder, ranks), *wrong_rows(folder)])


def of_both(table: Calls, swept: Calls, ranks: int) -> list[Choice]:
    """A call's ways in either section are the same call's."""
    merged: Calls = {}
    for key in {*table, *swept}:
        one, two = table.get(key, Ways()), swept.get(key, Ways())
        merged[key] = Ways(two.by | one.by, one.chosen or two.chosen)
    return choices(merged, ranks)


def write(folder: Path, ranks: int) -> None:
    """Into the repository."""
    for file in sorted(folder.glob("gpu_*.csv")):
        shutil.copy(file, ROOT / "bench" / "results" / file.name)
    table, swept = calls_of(folder, "table"), calls_of(folder, "schedules")
    CHOICES.write_text(with_choices(CHOICES.read_text(), of_both(table, swept, ranks)))
    README.write_text(with_figures(README.read_text(), table, ranks))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    print(report(given.folder, given.gpus))
    if given.write:
        write(given.folder, given.gpus)


if __name__ == "__main__":
    main()
