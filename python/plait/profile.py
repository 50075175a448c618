"""`plait profile -- cmd`: cost of a program's collectives, from the drop-in's counters.

Each process writes counters to a folder at the end. This module turns the counters into a table, a
CSV file, a histogram of message sizes and a trace for Perfetto. `counters()` reads the counters of
the running process.
"""

from __future__ import annotations

import csv
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import plait
from plait import run
from plait.launch import Keeper
from plait.outputs import human_bytes, load_pyplot, save


@dataclass
class ProfileRow:
    """A collective at a size over a path, summed over processes. Sizes are in bytes."""

    collective: str
    path: str  # nccl, mpi, plait, or the name of plait's engine
    size_below: int
    calls: int = 0
    bytes: int = 0
    host_us: float = 0.0  # mean a call
    gpu_us: float = 0.0  # mean of the timed calls
    share: float = 0.0  # time of the slowest process (GPU, else host) / time of the run
    us_a_call: float = 0.0  # gpu_us if the GPU timed calls, else host_us
    timed_by: str = "host"  # GPU or host: the time of `share` and `us_a_call`


HATCHES = ("", "////", "....", "\\\\\\\\", "xx", "--", "oo")  # of bars, readable without colour

# Meaning of `served` in a row (call_book.cpp): NCCL, plait, plait's engines, MPI.
DOERS = ("nccl", "plait", *(info.name for info in plait.engines()), "mpi")


class CounterRow(ctypes.Structure):
    """A row of counters, in the drop-in's layout (src/comm/trace/call_book.hpp)."""

    _fields_ = (
        ("name", ctypes.c_char * 32),
        ("served", ctypes.c_int32),
        ("bucket", ctypes.c_int32),
        ("calls", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("host_ns", ctypes.c_uint64),
        ("gpu_calls", ctypes.c_uint64),
        ("gpu_ns", ctypes.c_uint64),
    )


def counters() -> list[dict[str, Any]]:
    """Returns the counters of this process, a dict a row; empty if no drop-in is loaded.

    Times are ns, sizes bytes; `by` names the path.
    """
    found = []
    for shim in ("nccl", "mpi"):
        try:
            library = ctypes.CDLL(f"libplait_{shim}.so", mode=4)  # RTLD_NOLOAD
        except OSError:
            continue
        rows = (CounterRow * 4096)()
        count = getattr(library, f"plait_{shim}_counters")(rows, len(rows))
        for row in rows[:count]:
            values = {name: getattr(row, name) for name, *_ in CounterRow._fields_}
            found.append({**values, "name": row.name.decode(), "by": DOERS[row.served]})
    return found


def load(folder: str | Path) -> list[dict[str, Any]]:
    """Returns the counter files of a folder, sorted by rank."""
    pages = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("plait-*.json"))]
    return sorted(pages, key=lambda page: (page["rank"], page["pid"]))


def table(pages: Sequence[dict[str, Any]], run_s: float) -> list[ProfileRow]:
    """Returns rows summed over processes, the greatest share first. run_s: seconds.

    A row without GPU time, as of host memory, counts by host time.
    """
    sums: dict[tuple[str, str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    slowest: dict[tuple[str, str, int], float] = defaultdict(float)
    longest: dict[tuple[str, str, int], float] = defaultdict(float)  # by host time
    for page in pages:
        for row in page["rows"]:
            path = page.get("doers", DOERS)[row["served"]]
            key = (row["name"], path, 1 << row["bucket"])
            for name in ("calls", "bytes", "host_ns", "gpu_calls", "gpu_ns"):
                sums[key][name] += row[name]
            whole = row["gpu_ns"] * row["calls"] / row["gpu_calls"] if row["gpu_calls"] else 0.0
            slowest[key] = max(slowest[key], whole)
            longest[key] = max(longest[key], row["host_ns"])
    rows = []
    for key, found in sums.items():
        host_us = found["host_ns"] / found["calls"] / 1e3
        gpu_us = found["gpu_ns"] / found["gpu_calls"] / 1e3 if found["gpu_calls"] else 0.0
        spent_ns = slowest[key] if found["gpu_calls"] else longest[key]
        rows.append(
            ProfileRow(
                *key,
                calls=int(found["calls"]),
                bytes=int(found["bytes"]),
                host_us=host_us,
                gpu_us=gpu_us,
                share=spent_ns / 1e9 / run_s if run_s > 0 else 0.0,
                us_a_call=gpu_us if found["gpu_calls"] else host_us,
                timed_by="GPU" if found["gpu_calls"] else "host",
            )
        )
    return sorted(rows, key=lambda row: (row.share, row.host_us * row.calls), reverse=True)


def bytes_of_path(pages: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Returns the bytes of plait's calls by path, summed over processes. NCCL reports none."""
    sums: dict[str, int] = defaultdict(int)
    for page in pages:
        for path, sent in page.get("bytes_of_path", {}).items():
            sums[path] += sent
    return dict(sums)


def memory(pages: Sequence[dict[str, Any]]) -> dict[str, tuple[bool, int]]:
    """Returns for each part of plait's memory whether it is on GPUs, and its bytes.

    The bytes are of the process that held most of the part at once.
    """
    most: dict[str, tuple[bool, int]] = {}
    for page in pages:
        for row in page.get("memory", []):
            _, before = most.get(row["part"], (False, 0))
            most[row["part"]] = (row["on_gpu"], max(before, row["most"]))
    return most


def write_csv(rows: Sequence[ProfileRow], path: str | Path) -> None:
    """Writes all rows, a column per field."""
    names = [field.name for field in fields(ProfileRow)]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in rows)


def trace(pages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns a Chrome trace: a process per rank, a track per thread, GPU time as an argument."""
    events: list[dict[str, Any]] = []
    for number, page in enumerate(pages):
        rank = page["rank"] if page["rank"] >= 0 else number
        name = {"name": f"rank {rank} (pid {page['pid']})"}
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": name})
        for start_ns, host_ns, size, gpu_ms, thread, collective, served in page["events"]:
            args = {"bytes": size, "path": page.get("doers", DOERS)[served]}
            if gpu_ms >= 0:
                args["gpu_us"] = gpu_ms * 1e3
            events.append(
                {
                    "ph": "X",
                    "name": f"{collective} {size}",
                    "cat": args["path"],
                    "ts": start_ns / 1e3,
                    "dur": max(host_ns / 1e3, 0.001),
                    "pid": rank,
                    "tid": thread,
                    "args": args,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def plot(rows: Sequence[ProfileRow], path: str | Path) -> None:
    """Plots calls and share of the run's time by message size, stacked by collective."""
    figure, (top, bottom) = load_pyplot().subplots(
        2, 1, sharex=True, figsize=(8, 6), layout="constrained"
    )
    sizes = sorted({row.size_below for row in rows})
    names = sorted({(row.collective, row.path, row.timed_by) for row in rows})
    for axis, field, unit in ((top, "calls", 1), (bottom, "share", 100)):
        base = [0.0] * len(sizes)
        for number, name in enumerate(names):
            heights = [
                sum(
                    unit * getattr(row, field)
                    for row in rows
                    if (row.collective, row.path, row.timed_by) == name and row.size_below == size
                )
                for size in sizes
            ]
            axis.bar(
                [human_bytes(size // 2) for size in sizes],
                heights,
                bottom=base,
                label=f"{name[0]} by {name[1]} ({name[2]} time)",
                color=f"C{number % 10}",
                hatch=HATCHES[number % len(HATCHES)],
                edgecolor="white",
            )
            base = [low + high for low, high in zip(base, heights, strict=True)]
    top.set_ylabel("calls")
    bottom.set_ylabel("share of the run (%)")
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "frameon": False}
    top.legend(fontsize="x-small", **above)
    bottom.set_xlabel("messages from this size to twice it")
    bottom.tick_params(axis="x", rotation=60)
    save(figure, str(path), 100)


def profile(
    command: Sequence[str],
    out: str = "",
    via: str = "",
    drop_in: str = "",
    apart: bool = False,
) -> tuple[int, Path, list[ProfileRow]]:
    """Runs the command with counters on; returns (exit status, folder, rows).

    out: folder for the files; empty = a new folder. apart: redirects the command's standard output
    to standard error (MPICH prints UCX's warnings to standard output).
    """
    folder = Path(out) if out else Path(tempfile.mkdtemp(prefix="plait-profile-"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.glob("plait-*.json"):
        old.unlink()
    chosen = run.plan(command, via, drop_in)
    print(f"plait: {chosen.said}", file=sys.stderr, flush=True)
    begin = time.monotonic()
    env = {**chosen.env, "PLAIT_PROFILE": str(folder.resolve())}
    output = sys.stderr if apart else None
    program = subprocess.Popen(list(command), env=env, stdout=output)
    keeper = Keeper()
    keeper.add(program)
    status = program.wait()
    status = status if status >= 0 else 128 - status  # as a shell has the end by a signal
    keeper.close()
    pages = load(folder)
    rows = table(pages, time.monotonic() - begin)
    write_csv(rows, folder / "profile.csv")
    (folder / "trace.json").write_text(json.dumps(trace(pages)))
    if rows:
        try:
            plot(rows, folder / "sizes.png")
        except plait.UnsupportedError as error:
            print(f"plait: {error}", file=sys.stderr)
    return status, folder, rows
