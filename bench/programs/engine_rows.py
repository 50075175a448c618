"""Gathers recorded times of engines into one table, bench/results/engines.csv.

A row is one call that an engine serves by its own choice: the request, the launch, us. SOURCES
lists the builds of each engine. The newest build counts at all sizes between its recorded ones, and
the median counts if that build was recorded several times. A row that measures nothing stays in the
table, and `left_out` gives the reason. fit-prices fits the simulator's prices on the table, and a
test compares the table with these rows.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from bench.lib.rows import RESULTS, read
from plait.evidence.engines import LAUNCHED

TABLE = RESULTS / "engines.csv"
MOST_SPREAD = 1.10
HOST_US = 1.0  # an eager kernel that takes this much longer than in a graph waits for the host
MIB = 1 << 20
KERNELS = ("one_shot", "two_shot", "hop", "line_chain", "tiled", "messages")
LINES = KERNELS[:4]
COPIES = ("copy_exchange", "copy_rotation", "copy_ring")
ELEMENT_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Source:
    """The rows of one file that one build of an engine made."""

    build: str  # the change of this build
    file: str
    engines: tuple[str, ...]
    where: dict[str, str] = field(default_factory=dict)  # columns that must match, as patterns


# A sweep with larger slots: pieces of 16 MiB, which slots of eight ranks hold.
AS_ITSELF = r".*blocks=48 .*tile=1048576 .*"
# Each engine by name on two and four GPUs, whole runs on eight. hop serves longer calls by
# short_hop since these runs.
SHORT_HOPS = Source("longer short hops", "gpu_short_hops_h200x4.csv", ("hop",), {"run": "now"})
NOW = tuple(
    Source("now", name, (*LINES, "tiled", *COPIES), {"collective": r"\w+", "type": "fp32|bf16"})
    for name in (
        "gpu_engines_h200x2.csv",
        "gpu_engines_h200x4.csv",
        "gpu_run_table_h200x8.csv",
    )
)
# Copies in one direction that are as fast in graphs as eagerly, sums of two ranks by windows of two
# long tiles, and all calls by rings of copy engines.
ANEW = (
    Source("anew", "gpu_engines_now_h200x2.csv", ("tiled", "copy_exchange")),
    Source("anew", "gpu_engine_turns_h200x4.csv", ("copy_ring",), {"run": "alone", "build": "now"}),
    Source(
        "anew",
        "gpu_reduce_two_shot_h200x4.csv",
        ("two_shot",),
        {"run": "alone", "collective": "reduce"},
    ),
)
# Sums whose lines are used again: pieces were a launch each.
AGAIN = tuple(
    Source(
        "lines used again",
        f"gpu_long_two_shot_h200x{gpus}.csv",
        ("two_shot",),
        {"params": "two_shot", "type": "fp32|bf16"},
    )
    for gpus in (2, 4)
)
# Builds with the usual arena of 192 MB.
IN_USUAL_MEMORY = ("now", "anew", "lines used again")
# The newest build of each engine first.
SOURCES = (
    SHORT_HOPS,
    *AGAIN,
    *ANEW,
    *NOW,
    Source("runs", "gpu_run_schedules_h200x4.csv", ("hop",), {"type": "fp32|bf16"}),
    Source("registers spilled", "gpu_fused_h200x8.csv", LINES),
    Source("in step", "gpu_collectives_h200x4.csv", ("tiled",), {"commit": "f422961"}),
    Source(
        "clerks", "gpu_gather_h200x4.csv", ("tiled",), {"how": "results_eighth", "ring_mib": "[48]"}
    ),
    Source("clerks", "gpu_fused_h200x8.csv", ("tiled",)),
    Source("slots lent", "gpu_exchange_lent_h200x2.csv", ("rotation",)),
    Source("ports", "gpu_rotation_ports_h200x4.csv", ("rotation",), {"how": "product"}),
    Source("ports", "gpu_sweep_h200x8.csv", ("rotation",), {"params": AS_ITSELF}),
    Source("pulls", "gpu_collectives_h200x4.csv", ("rotation",)),
    Source("messages", "gpu_messages_h200x2.csv", ("messages",)),
)


@dataclass(frozen=True, order=True)
class RecordedCall:
    """A timed call."""

    engine: str
    collective: str
    ranks: int
    type: str
    bytes: int  # size of the message, counted as nccl-tests does
    launched: str  # "graph" or "eager"
    beside: int  # 1 = as under NCCL, where calls leave SMs to others
    asked: int  # blocks that the caller set; 0 = none
    host: int  # permille through host memory
    chunk: int = 0  # bytes of a chunk through host memory; 0 = the row does not name it

    def part_bytes(self) -> int:
        """Returns the bytes that one rank sends to another, or the message's."""
        counted = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
        return self.bytes // (self.ranks if self.collective in counted else 1)

    def sums(self) -> bool:
        return self.collective in ("all_reduce", "reduce_scatter", "reduce")


def engine_of(engine: str, ranks: int) -> str:
    """Returns today's engine: old rows name three algorithms by copy engines `rotation`."""
    of_more = "copy_exchange" if ranks == 2 else "copy_rotation"
    return of_more if engine == "rotation" else engine


def asked_blocks(blocks: str | int) -> int:
    """Returns the blocks that the caller set of a tiled call; its own choice is 100."""
    return int(blocks) if int(blocks) != 100 else 0


def times_in(source: Source) -> Iterator[tuple[RecordedCall, float]]:
    """Yields every call of a source with its time."""
    for row in read(source.file):
        if any(not re.fullmatch(pattern, row[key]) for key, pattern in source.where.items()):
            continue
        if "host_permille" in row:
            yield gathered(row), float(row["eager_us"])
            continue
        words = row["way"].removeprefix("plait ").split(" ")
        beside, engine = words[0] == "beside", words[-1]
        if engine not in source.engines or len(words) > 1 + beside or row["wrong"] != "0":
            continue
        share = re.search(r"\bhost=(\d+)", row["params"])
        tiled = asked_blocks(row.get("tiled_blocks") or 0) if engine == "tiled" else 0
        for launched in ("graph", "eager"):
            if (us := float(row[f"{launched}_us"])) > 0:
                yield (
                    RecordedCall(
                        engine_of(engine, int(row["gpus"])),
                        row["collective"],
                        int(row["gpus"]),
                        row["type"],
                        int(row["bytes"]),
                        launched,
                        int(beside),
                        tiled,
                        int(share[1]) if share else 0,
                    ),
                    us,
                )


def gathered(row: dict[str, str]) -> RecordedCall:
    """Returns an all_reduce of four ranks by tiles with a share of results through host memory."""
    chunk = min(2 * MIB, int(row["ring_mib"]) * MIB // 4)
    asked, host = asked_blocks(row["blocks"]), int(row["host_permille"])
    size = int(row["bytes"])
    return RecordedCall("tiled", "all_reduce", 4, "fp32", size, "eager", 0, asked, host, chunk)


def ceil(a: int, b: int) -> int:
    return -(-a // b)


def lines_launch(call: RecordedCall, build: str) -> dict[str, int]:
    """Returns the launch config that a build chose for one_shot or two_shot."""
    if build == "lines used again" and call.bytes > 20 * MIB:
        together = 2 if call.ranks == 2 else 1
        return {"blocks": 132, "threads": 480, "together": together, "line_bytes": 16}
    units = ceil(call.bytes, 16)
    work = units if call.engine == "one_shot" else ceil(units, call.ranks)
    lean = call.ranks in (2, 4)
    is_long = call.engine == "two_shot" and units > 1 << 20
    two_an_sm = lean and work >= 65536 and (call.ranks == 2 or is_long)
    most = 512 if lean else 256
    few = two_an_sm or (is_long and not lean)
    threads = 128 if work < 8192 else 256 if work < 65536 or few else most
    blocks = min(ceil(work, threads), 264 if two_an_sm else 132)
    together = 2 if call.ranks == 2 else 1
    return {"blocks": blocks, "threads": threads, "together": together, "line_bytes": 16}


def hop_launch(call: RecordedCall) -> dict[str, int]:
    units = ceil(call.part_bytes(), 16)
    threads = 128 if units < 8192 else 256 if units < 65536 else 512
    most = 132
    if call.beside and call.ranks == 2:
        most = 48 if call.sums() else 32
    return {
        "blocks": min(ceil(units, threads), most),
        "threads": threads,
        "together": 2 if call.sums() else 4,
        "line_bytes": 16,
    }


def is_short(call: RecordedCall, build: str) -> bool:
    """True if short_hop served the call."""
    units, made = ceil(call.part_bytes(), 16), hop_launch(call)
    before = 8192 if call.sums() else 16384
    is_longer = call.ranks <= 4 and (call.ranks > 2 or not call.sums())
    most = {"now": before, SHORT_HOPS.build: 32768 if is_longer else before}.get(build, 0)
    has_threads = made["threads"] <= 256 and units <= made["blocks"] * made["threads"]
    return call.engine == "hop" and call.ranks <= 8 and has_threads and units <= most


def chain_launch(call: RecordedCall) -> dict[str, int]:
    """Returns the launch config of line_chain. With several pieces, one warp of each block waits
    and signals for the others."""
    made = hop_launch(call)
    moves, sums = (24330240, 16220160) if call.ranks == 4 else (12165120, 12165120)
    if call.beside:
        made["blocks"] = min(made["blocks"], 64)
        moves, sums = 43253760, 16711680
    piece = sums if call.sums() else moves
    if call.bytes <= (24 << 20 if call.ranks == 4 else 12 << 20):
        return made | {"piece_bytes": call.bytes}
    return made | {"threads": made["threads"] - 32, "piece_bytes": piece}


def tiled_launch(call: RecordedCall, build: str) -> dict[str, int]:
    part = call.part_bytes()
    if call.collective in ("all_reduce", "reduce") and (call.ranks, call.collective) != (
        2,
        "all_reduce",
    ):
        part = 16 * ceil(ceil(part, 16), call.ranks)
    elif call.collective == "broadcast":
        part = 16 * ceil(ceil(part, 16), max(1, call.ranks - 1))
    units = max(1, ceil(part, 16))
    most = call.asked or (64 if call.beside else 100)
    window = 2 if call.sums() and call.ranks > 2 and call.collective != "reduce_scatter" else 4
    if call.sums() and call.ranks == 2 and build == "anew":
        window = 2
    small = call.sums() and most > 80 and (window == 4 or most < 60)
    room = 280 * MIB // (132 * 2 * call.ranks * 4) // 16
    blocks = min(most, ceil(units, 256))
    share = ceil(units, blocks)
    return {
        "blocks": blocks,
        "tile_units": ceil(share, ceil(share, min(2048 if small else 4096, room))),
    }


def messages_launch(call: RecordedCall) -> dict[str, int]:
    part = call.part_bytes()
    units, channels = ceil(part, 16), 32 if part < 512 * MIB else 16
    share = ceil(units, channels)
    by_lines = part <= 256 << 10 and share <= 512
    tile = max(share, 256) if by_lines else min(1024 * ceil(share, 1024), 4096)
    line_bytes = 32 if by_lines else 0
    return {
        "blocks": min(channels, ceil(units, tile)),
        "tile_units": tile,
        "line_bytes": line_bytes,
    }


LAUNCHES = {
    "hop": hop_launch,
    "line_chain": chain_launch,
    "messages": messages_launch,
}


def launch_of(call: RecordedCall, build: str) -> dict[str, int]:
    """Returns the launch config of a kernel; 0 for a parameter that it lacks."""
    made = {}
    if call.engine == "tiled":
        made = tiled_launch(call, build)
    elif call.engine in LAUNCHES:
        made = LAUNCHES[call.engine](call)
    elif call.engine in KERNELS:
        made = lines_launch(call, build)
    return {key: made.get(key, 0) for key in LAUNCHED}


def shares_by_itself(call: RecordedCall) -> bool:
    """True for long eager calls: they choose a share through host memory that no row names."""
    if call.launched != "eager" or call.host > 0:
        return False
    if call.engine == "copy_exchange":
        return call.bytes >= 384 * MIB
    is_tiled_sum = (call.engine, call.collective, call.ranks) == ("tiled", "all_reduce", 4)
    return is_tiled_sum and call.bytes >= 120 * MIB


def why_left_out(call: RecordedCall, build: str, times: list[float]) -> str:
    """Returns why the newest build's recordings do not measure the call; empty if they do."""
    if build == "now" and is_short(call, SHORT_HOPS.build) and not is_short(call, build):
        return "by the longer kernel: short_hop serves it since"
    if (call.engine, call.ranks) == ("hop", 8) and call.part_bytes() >= 512 << 10:
        return "it went in pieces of the first room"
    if (call.engine, call.ranks) == ("line_chain", 8) and call.bytes > 12 << 20:
        return "each piece was a launch of its own"
    if build == "pulls" and call.collective != "send_recv":
        return "results are pushed since, and ports passed on"
    if (spread := max(times) / min(times)) > MOST_SPREAD:
        return f"recordings differ by {100 * (spread - 1):.0f} %"
    is_exchange_now = call.engine == "copy_exchange" and build in IN_USUAL_MEMORY
    if shares_by_itself(call) and not is_exchange_now:  # an exchange now: its inbox is too small
        return "its share through host memory is not recorded"
    in_graph = call.launched == "graph" and call.engine.startswith("copy_")
    most = 16 if build in IN_USUAL_MEMORY else 4
    if in_graph and call.bytes <= (most if call.ranks == 2 else 64) * MIB:
        return "timed in a graph of hundreds of copies, where each costs more"
    return ""


def gather() -> list[dict[str, object]]:
    """Returns all calls, each with its time or the reason why it has none."""
    found: dict[RecordedCall, tuple[Source, list[float]]] = {}
    sizes: dict[tuple[object, ...], dict[str, list[int]]] = {}  # by build, newest first
    for source in SOURCES:
        for call, us in times_in(source):
            kind = tuple(value for key, value in vars(call).items() if key not in ("bytes", "type"))
            sizes.setdefault(kind, {}).setdefault(source.build, []).append(call.bytes)
            first, times = found.setdefault(call, (source, []))
            if first.build == source.build:
                times.append(us)
    table = []
    for call, (source, times) in sorted(found.items()):
        kind = tuple(value for key, value in vars(call).items() if key not in ("bytes", "type"))
        builds = list(sizes[kind])
        newer = {build: sizes[kind][build] for build in builds[: builds.index(source.build)]}
        left_out = why_left_out(call, source.build, times)
        if "now" in newer:
            left_out = "an older build: its kernel was written anew"
        elif any(min(known) <= call.bytes <= max(known) for known in newer.values()):
            left_out = "an older build: newer ones are recorded around it"
        us = round(statistics.median(times), 3)
        replayed = found.get(replace(call, launched="graph"), (source, []))[1]
        if call.engine in KERNELS and replayed and us * MOST_SPREAD < statistics.median(replayed):
            left_out = left_out or "faster than in a graph: another node's pace, or chance"
        eagerly = call.engine in KERNELS and call.launched == "eager" and replayed
        if eagerly and us > statistics.median(replayed) + max(HOST_US, us / 20):
            left_out = left_out or "the host's time, which differs from node to node"
        row = vars(call) | launch_of(call, source.build)
        row["short"] = int(is_short(call, source.build))
        row["usual_memory"] = int(source.build in IN_USUAL_MEMORY)
        table.append(row | {"us": us, "left_out": left_out, "file": source.file})
    return table


def as_csv(table: list[dict[str, object]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return stream.getvalue()


def run(given: SimpleNamespace) -> None:
    table = gather()
    if given.write:
        TABLE.write_text(as_csv(table))
    left_out = sum(bool(row["left_out"]) for row in table)
    print(f"{len(table)} calls, {left_out} of them left out")
