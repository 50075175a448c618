"""Lists the calls that a run on GPUs measures, the most important first, and writes their rows.

The run (gpu_run, section), its predictions and its tables use this list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import plait
from plait.bench import engines
from plait.bench.sizes import count_for, parse_bytes
from plait.engine_names import FORMER

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
COLUMNS = (
    *("collective", "gpus", "ranks_as", "type", "bytes", "way", "params"),
    *("graph_us", "eager_us", "wrong", "commit"),
)
CHOSEN = "chosen"  # in `params`: plait chose the engine
TRIALS = "trials"  # the section for the calls of a file
FORMULA = "busbw = factor x bytes / us / 1e3 GB/s, all_reduce 2 (n-1)/n, broadcast 1, else (n-1)/n"
OTHERS = ("reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "send_recv")
# Parameters that get a row next to an engine's own choice, and strategies by lanes.
TUNED = {
    "tiled": (
        {"shift": 1},
        {"order": 2, "shift": 1},
        {"piece_kib": 4},
        {"piece_kib": 8, "shift": 1},
        {"blocks": 64},
    ),
    "copy_exchange": ({"batch": 1},),
    "copy_rotation": ({"batch": 1}, {"batch": 1, "tile_units": MIB // 4}),
    "scatter_ring": ({"tile_units": MIB // 2},),
}
# Memory of communicators in the section "slots". A budget of blocks (all multiprocessors of an
# H200) gives copy engines slots, as large as these engines want. Communicators of other sections
# have the usual memory, so that their rows may become rows of tuning tables.
SM_BUDGET, MEMORY_BYTES = 132, 1 << 30
LARGER_BYTES = 640 * MIB  # memory of the section "shares_640m": inboxes of 128 MiB for two ranks
LARGER = {"tiled": ({"order": 2, "shift": 1},)}  # schedules of larger tiles
WITH_SLOTS = ("tiled", "copy_exchange", "copy_rotation", "copy_ring", "scatter_ring")
# Shares of an all_reduce's results through host memory, in thousandths; of use in eager calls.
HOST_SHARES = (
    {"host_permille": 90},
    {"host_permille": 135},
    {"host_permille": 180},
    {"order": 2, "shift": 1, "host_permille": 135},
)
ALL_TUNED = ("all_reduce",)  # other collectives are timed by each engine's own choice alone
TUNED_OF_OTHERS = {
    "tiled": ({"order": 2, "shift": 1}, {"window": 2}, {"window": 4}),
    "copy_ring": ({"tile_units": MIB // 2},),
}
STRATEGIES = ("fold", "phases", "ring", "direct")
# Variants of a run of large messages, by collective and by ranks: 2, or more.
LARGE_OF_TWO = ("two_shot", "direct_ll", "tiled", "copy_exchange")
LARGE_OF_MORE = (
    *("two_shot", "ll_chain", "direct_ll", "tiled", "tiled:order=2,shift=1"),
    *("tiled:order=2,shift=1,send_gb_per_s=350", "copy_ring", "scatter_ring"),
)
DIRECT_LL_UPTO = 64 * MIB  # never the fastest beyond
# Shares of a message of two ranks through host memory, and of results of more, in thousandths.
SHARES_OF_TWO = {"copy_exchange": (50, 70, 90), "tiled": (40, 60, 80)}
SHARES_OF_MORE = (60, 90, 135, 180)
ONE_PIECE = ("all_reduce", "broadcast", "reduce", "send_recv")  # two ranks' tiles take a share


@dataclass(frozen=True)
class RunItem:
    """One call to time, with NCCL's call of the same size."""

    section: str
    collective: str
    type: str
    size: int  # bytes of the message
    variant: str = ""  # an engine or a strategy; empty = plait's choice
    params: tuple[tuple[str, int], ...] = ()
    op: str = "sum"

    def request(self, ranks: int) -> plait.Request:
        count = count_for(self.collective, self.size, self.type, ranks)
        return plait.Request(
            self.collective, count, self.type, self.op, ranks, 0, min(1, ranks - 1)
        )

    def requested(self) -> str:
        """Returns the variant as text, 'tiled:blocks=32'; empty for plait's choice."""
        said = ",".join(f"{name}={value}" for name, value in self.params)
        return f"{self.variant}:{said}" if said else self.variant


def powers(first: int, last: int, factor: int = 4) -> list[int]:
    found = [first]
    while found[-1] * factor <= last:
        found.append(found[-1] * factor)
    return found


def table(most: int) -> Iterator[RunItem]:
    """Yields the table of all collectives: all_reduce, other collectives at each fourth power of
    two, then sizes between."""
    for size in powers(KIB, most, 2):
        yield RunItem("table", "all_reduce", "fp32", size)
    coarse = powers(4 * KIB, most)
    for collective in OTHERS:
        for size in coarse:
            yield RunItem("table", collective, "fp32", size)
    for size in powers(KIB, min(most, GIB)):
        yield RunItem("table", "all_reduce", "bf16", size)
    for collective in OTHERS:
        for size in powers(KIB, most, 2):
            if size not in coarse:
                yield RunItem("table", collective, "fp32", size)


def pinned(section: str, most: int) -> Iterator[RunItem]:
    """Yields all_reduces to compare with NCCL as serving engines pin it: fp32 at each fourth power
    of two, then sizes between, then bf16."""
    coarse = powers(KIB, min(most, GIB))
    between = [size for size in powers(KIB, most, 2) if size not in coarse]
    for size in [*coarse, *between]:
        yield RunItem(section, "all_reduce", "fp32", size)
    for size in powers(4 * KIB, min(most, 256 * MIB)):
        yield RunItem(section, "all_reduce", "bf16", size)


def variants(collective: str, ranks: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Yields every engine and strategy that may serve a collective. A variant that does not take a
    request refuses it when it runs."""
    for name in engines.names(collective):
        tuned = (TUNED if collective in ALL_TUNED else TUNED_OF_OTHERS).get(name, ())
        yield from ((name, params) for params in ({}, *tuned))
    known = {info.name for info in plait.strategies() if collective in info.collectives}
    for name in STRATEGIES:
        if name in known:
            yield name, {}


def slots(most: int) -> Iterator[RunItem]:
    """Yields large calls by larger slots, and by copy engines under a budget of blocks."""
    for size in (size for size in (GIB, 64 * MIB, 256 * MIB) if size <= most):
        for name in WITH_SLOTS:
            for params in ({}, *LARGER.get(name, TUNED.get(name, ()))):
                yield RunItem("slots", "all_reduce", "fp32", size, name, tuple(params.items()))
        for collective in ("all_to_all", "all_gather"):
            for name in ("tiled", "copy_rotation"):
                yield RunItem("slots", collective, "fp32", size, name)


def schedules(ranks: int, most: int) -> Iterator[RunItem]:
    """Yields each schedule at middle and large sizes, in turn with NCCL."""
    sizes = [size for size in (64 * MIB, GIB, 256 * MIB, 16 * MIB, 4 * MIB, MIB) if size <= most]
    requests = [("all_reduce", "fp32", "sum", size) for size in sizes]
    requests += [(name, "fp32", "sum", size) for size in sizes[:3] for name in OTHERS]
    requests += [("all_reduce", "int32", "sum", size) for size in sizes[:3]]
    requests += [("all_reduce", "bf16", "max", size) for size in sizes[:3]]
    for collective, kind, op, size in requests:
        for name, params in variants(collective, ranks):
            if name in ("one_shot", "direct_ll") and size > 4 * MIB:
                continue
            yield RunItem("schedules", collective, kind, size, name, tuple(params.items()), op)
    for size in (size for size in (GIB, 256 * MIB) if size <= most and ranks > 2):
        for params in HOST_SHARES:
            yield RunItem("schedules", "all_reduce", "fp32", size, "tiled", tuple(params.items()))


def large_sizes(most: int) -> list[int]:
    """Returns sizes of large messages, the most important first."""
    wanted = (GIB, 256 * MIB, 64 * MIB, 16 * MIB, 4 * GIB, 128 * MIB, 512 * MIB, 32 * MIB)
    return [size for size in wanted if size <= most]


def large(ranks: int, most: int) -> Iterator[RunItem]:
    """Yields large messages of each collective by plait's choice and by each engine in turn."""
    variants = LARGE_OF_TWO if ranks == 2 else LARGE_OF_MORE
    for size in large_sizes(most):
        for collective in ("all_reduce", *OTHERS):
            yield RunItem("large", collective, "fp32", size)
            for variant in variants:
                name, params = engines.parted(variant)
                is_slow = name == "direct_ll" and size > DIRECT_LL_UPTO
                if name not in engines.names(collective) or is_slow:
                    continue
                yield RunItem("large", collective, "fp32", size, name, tuple(params.items()))


def shares(section: str, ranks: int, most: int) -> Iterator[RunItem]:
    """Yields large calls with shares through host memory, beside plait's choice."""

    def shared(collective: str, size: int, name: str, params: dict[str, int]) -> RunItem:
        return RunItem(section, collective, "fp32", size, name, tuple(params.items()))

    for size in (size for size in (GIB, 256 * MIB, 4 * GIB, 64 * MIB) if size <= most):
        for collective in ONE_PIECE if ranks == 2 else ONE_PIECE[:1]:
            yield RunItem(section, collective, "fp32", size)
            for name, permilles in SHARES_OF_TWO.items() if ranks == 2 else ():
                for permille in permilles:
                    yield shared(collective, size, name, {"host_permille": permille})
            for permille in SHARES_OF_MORE if ranks > 2 else ():
                yield shared(collective, size, "tiled", {"host_permille": permille})
        if ranks > 2:
            yield shared("all_reduce", size, "tiled", HOST_SHARES[-1])


def unfitted(most: int) -> Iterator[RunItem]:
    """Yields sizes at which no parameter of the simulator is fitted, to check its predictions. Runs
    alone (section unfitted), since a run returns eight files at most."""
    sizes = [size for size in (48 * MIB, 3 * MIB, 192 * MIB, 12 * MIB) if size <= most]
    for collective, kind in (("all_reduce", "fp32"), *((name, "fp32") for name in OTHERS)):
        for size in sizes:
            yield RunItem("unfitted", collective, kind, size)
    for size in sizes:
        yield RunItem("unfitted", "all_reduce", "bf16", size)


def trials(text: str) -> Iterator[RunItem]:
    """Yields the calls of a file. A line "all_gather fp32 64M,1G chosen tiled:order=2,shift=1" asks
    for each variant at each size; # begins a comment."""
    known = {*FORMER, *(one.name for one in (*plait.engines(), *plait.strategies()))}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) < 4:
            raise plait.InvalidArgumentError(
                f"line {number}: wanted a collective, a type, sizes and variants, found {line!r}"
            )
        requests = [engines.parted("" if variant == CHOSEN else variant) for variant in words[3:]]
        for name, _ in requests:
            if name and name not in known:
                raise plait.InvalidArgumentError(
                    f"line {number}: wanted a variant among {', '.join(sorted(known))} and "
                    f"{CHOSEN}, found {name!r}"
                )
        for size in map(parse_bytes, words[2].split(",")):
            for name, params in requests:
                yield RunItem(TRIALS, words[0], words[1], size, name, tuple(params.items()))


SECTIONS = ("table", "unfitted", "pinned_tree", "pinned_ring", "schedules", "slots")
LARGE_SECTIONS = ("large", "shares", "shares_640m")  # of a run of large messages
NCCL_VARIANTS = {"pinned_tree": "nccl tree 8 channels", "pinned_ring": "nccl ring 1 channel"}
SYMMETRIC_SIZES = powers(KIB, 64 * MIB, 2)  # sizes of symmetric.py
SYMMETRIC_TYPES = {"fp32": "float32", "bf16": "bfloat16"}  # type names in its rows
SYMMETRIC_VARIANTS = ("one_shot", "two_shot")


def items(section: str, ranks: int, most: int, trials_text: str = "") -> list[RunItem]:
    """Returns the calls of a section, in order. trials_text: text of the file of trials."""
    found: Iterable[RunItem]
    if section == TRIALS:
        found = trials(trials_text)
    elif section == "table":
        found = table(most)
    elif section == "unfitted":
        found = unfitted(most)
    elif section == "schedules":
        found = schedules(ranks, most)
    elif section == "slots":
        found = slots(most)
    elif section == "large":
        found = large(ranks, most)
    elif section in LARGE_SECTIONS:
        found = shares(section, ranks, most)
    else:
        found = pinned(section, most)
    return [item for item in found if item.request(ranks).count > 0]
