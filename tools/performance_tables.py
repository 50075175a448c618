"""Makes the tables of docs/performance.md from the CSV files of bench/results.

tools/doc_tables.py writes them into the page, and a test checks that the page is up to date. A line
above each table names the file, machine, date and commit. `python -m bench notes` uses some of the
tables too.
"""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.lib.rows import comments, kind_of, read

Row = dict[str, str]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MACHINES = {  # title of a machine: the machine's run of the whole table
    "2 GPUs of HGX H200": "gpu_run_table_h200x2.csv",
    "4 GPUs of HGX H200": "gpu_run_table_h200x4.csv",
    "8 GPUs of HGX H200": "gpu_run_table_h200x8.csv",
    "2 GPUs of HGX H100": "gpu_run_table_h100x2.csv",
    "4 GPUs of HGX H100": "gpu_run_table_h100x4.csv",
}
SIZES = (KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)


def table(head: Iterable[str], body: Iterable[Iterable[str]]) -> list[str]:
    heads = list(head)
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *body)]
    return [lines[0], "|" + "---|" * len(heads), *lines[1:]]


def size(count: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} B"


def figure(value: float) -> str:
    """Rounds to three digits; larger numbers keep all integer digits."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def source(file: str, said: str = "") -> list[str]:
    """Returns the line above a table: the file, and the machine of the first comment."""
    machine = next((one for one in comments(file) if one.startswith("machine: ")), "")
    text = said or machine.removeprefix("machine: ")
    return [*textwrap.wrap(f"From `bench/results/{file}`: {text}.", 100), ""]


def mean(values: Sequence[float]) -> float:
    """Returns the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


# --- GPUs: plait's choice and NCCL in graphs.

Calls = dict[tuple[str, str, int], tuple[float, float]]


def calls_of(file: str) -> Calls:
    """Returns (plait's us, NCCL's us) in graphs, by collective, type and bytes."""
    us: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in read(file):
        key = (row["collective"], row["type"], int(row["bytes"]))
        us.setdefault(key, {})[row["way"].split()[0]] = float(row["graph_us"])
    both = {key: (found.get("plait", 0.0), found.get("nccl", 0.0)) for key, found in us.items()}
    return {key: times for key, times in both.items() if min(times) > 0}


def behind(ratios: dict[int, float]) -> str:
    """Returns the sizes at which NCCL is faster, with NCCL's time over plait's."""
    slower = {count: ratio for count, ratio in sorted(ratios.items()) if ratio < 1}
    if not slower:
        return "none"
    low, high = min(slower.values()), max(slower.values())
    spread = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    sizes = sorted(ratios)
    runs: list[list[int]] = []
    for count in slower:
        if runs and sizes.index(count) == sizes.index(runs[-1][-1]) + 1:
            runs[-1].append(count)
        else:
            runs.append([count])
    named = [
        f"from {size(run[0])} on"
        if run[-1] == sizes[-1]
        else size(run[0])
        if len(run) == 1
        else f"{size(run[0])} to {size(run[-1])}"
        for run in runs
    ]
    return f"{', '.join(named)} ({spread})"


def against_nccl() -> list[str]:
    """A row for each machine and collective: NCCL's time over plait's."""
    body = []
    for title, file in MACHINES.items():
        ratios: dict[tuple[str, str], dict[int, float]] = {}
        for (collective, kind, count), (ours, theirs) in calls_of(file).items():
            ratios.setdefault((collective, kind), {})[count] = theirs / ours
        for (collective, kind), by_size in ratios.items():
            body.append(
                [
                    title,
                    f"{collective}, {kind}",
                    f"{mean(list(by_size.values())):.2f}",
                    f"{max(by_size.values()):.2f}",
                    behind(by_size),
                ]
            )
    head = ("GPUs", "call", "geometric mean", "largest", "sizes at which NCCL is faster")
    return table(head, body)


def beside_nccl() -> str:
    """Returns the text of python/plait/evidence/beside_nccl.csv: all_reduces of fp32."""
    lines = ["model,gpus,bytes,plait_us,nccl_us,engine,file,machine"]
    for file in MACHINES.values():
        model = kind_of(file).split(",")[0]
        facts = next(one for one in comments(file) if one.startswith("machine: "))
        named = facts.removeprefix("machine: ").partition(" (")[0]
        library = re.search(r"NCCL [\d.]+", facts)
        date = re.search(r"date: ([\d-]+)", facts)
        if library is None or date is None:
            raise SystemExit(f"performance_tables: {file} names no version of NCCL or no date")
        engines = {
            int(row["bytes"]): row["way"].partition(" ")[2]
            for row in read(file)
            if row["way"].startswith("plait")
            and (row["collective"], row["type"]) == ("all_reduce", "fp32")
        }
        for (collective, kind, count), (ours, theirs) in calls_of(file).items():
            if (collective, kind) == ("all_reduce", "fp32"):
                gpus = read(file)[0]["gpus"]
                times = f'{ours},{theirs},"{engines[count]}"'  # with commas of its own
                said = f"{named} beside {library[0]} on {date[1]}"
                lines.append(f"{model},{gpus},{count},{times},{file},{said}")
    return "\n".join(lines) + "\n"


def on_machine(file: str) -> list[str]:
    """us in graphs, plait's and NCCL's, by collective and size."""
    calls = calls_of(file)
    rows = dict.fromkeys((collective, kind) for collective, kind, _ in calls)
    body = []
    for collective, kind in rows:
        cells = [calls.get((collective, kind, count)) for count in SIZES]
        both = [f"{figure(one[0])} / {figure(one[1])}" if one else "" for one in cells]
        body.append([f"{collective}, {kind}", *both])
    return source(file) + table(("call", *map(size, SIZES)), body)


def copies() -> list[str]:
    """Copies between two GPUs of a process: all paths, the link alone, NCCL."""
    file = "gpu_copy_against_nccl_h200x2.csv"
    body = [
        [
            size(int(row["bytes"])),
            row["way"],
            row["paths"],
            figure(float(row["gb_per_s"])),
            figure(float(row["short_gb_per_s"])),
            figure(float(row["nccl_gb_per_s"])),
        ]
        for row in read(file)
    ]
    head = ("size", "direction", "paths", "plait.copy, GB/s", "the link alone", "NCCL")
    return source(file) + table(head, body)


# --- Under NCCL.


def nccl_tests(file: str) -> list[str]:
    """NCCL's time over plait's, out of place, by program and size."""
    rows = [row for row in read(file) if row["place"] == "out"]
    sizes = sorted({int(row["bytes"]) for row in rows})
    ratios = {(row["program"], int(row["bytes"])): float(row["ratio"]) for row in rows}
    programs = dict.fromkeys(row["program"] for row in rows)
    body = [
        [program, *(f"{ratios[program, count]:.2f}" if (program, count) in ratios else ""
                    for count in sizes)]
        for program in programs
    ]  # fmt: skip
    return source(file) + table(("program", *map(size, sizes)), body)


def forwarded() -> list[str]:
    """Cost of a call that the drop-in forwards to NCCL."""
    body = []
    for machine, file in (
        ("2 H200", "gpu_passed_on_h200x2.csv"),
        ("2 H100", "gpu_passed_on_h100x2.csv"),
    ):
        for row in read(file):
            if row["call"] == "program":  # a second table of the same file
                break
            more = float(row["drop_in_host_us"]) - float(row["nccl_host_us"])
            body.append(
                [machine, row["call"], size(int(row["bytes"])), f"{more:.2f}", row["ratio"]]
            )
    head = ("GPUs", "call", "size", "more on the host, us", "NCCL's time over it")
    return table(head, body)


def applications() -> list[str]:
    """Programs under NCCL, with and without the drop-in, in the same process."""
    file = "gpu_drop_in_h200.csv"
    body = [
        [
            row["program"],
            row["model"],
            row["batch"],
            row["gpus"],
            figure(float(row["nccl_per_s"])),
            figure(float(row["plait_per_s"])),
            f"{float(row['ratio']):.2f}",
        ]
        for row in read(file)
    ]
    head = ("program", "model", "batch", "GPUs", "NCCL, items/s", "plait, items/s", "ratio")
    lines = source(file, "HGX H200, 2026-11-21; items are tokens, images or sequences")
    return lines + table(head, body)


# --- Under MPI.


def mpi_device_reductions() -> list[str]:
    """Collectives on device memory by OSU's programs."""
    file = "gpu_mpi_osu_h200x2.csv"
    rows = [row for row in read(file) if not row["least"]]
    sizes = (KIB, 16 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
    us = {(row["program"], int(row["bytes"])): row["plait"] for row in rows}
    programs = dict.fromkeys(row["program"] for row in rows)
    body = [[program, *(us.get((program, one), "") for one in sizes)] for program in programs]
    return source(file) + table(("program, us", *map(size, sizes)), body)


def mpi_device_messages() -> list[str]:
    """Messages of device memory by OSU's programs."""
    file = "gpu_mpi_osu_h100x2.csv"
    rows = read(file)
    sizes = (KIB, 16 * KIB, MIB, 64 * MIB, GIB)
    figures = {(row["program"], int(row["bytes"])): row["plait"] for row in rows}
    units = {row["program"]: row["unit"] for row in rows if row["program"] != "program"}
    body = [
        [f"{program}, {unit}", *(figures.get((program, one), "") for one in sizes)]
        for program, unit in units.items()
    ]
    return source(file) + table(("program", *map(size, sizes)), body)


def mpi_applications() -> list[str]:
    """Programs on device memory, and the same programs that stage by hand."""
    body = []
    for file in ("gpu_mpi_applications_h200x2.csv", "gpu_mpi_applications_h100x2.csv"):
        machine = file.split("_")[-1].split(".")[0].upper().replace("X", " x")
        for row in read(file):
            edge = row.get("edge") or row["edge_or_bytes"]
            what = row["program"]
            body.append(
                [
                    machine,
                    f"{what}, Open MPI {row.get('mpi') or '4.1.6'}",
                    size(int(edge)) if what == "Allreduce" else f"edge {edge}",
                    row["messages"],
                    row["by_hand_ms"],
                    row["plait_ms"],
                    row["ratio"],
                ]
            )
    head = ("GPUs", "program", "size", "messages", "by hand, ms", "plait, ms", "ratio")
    return table(head, body)


def as_recorded(file: str, heads: dict[str, str]) -> list[str]:
    """The columns of a file under these heads."""
    body = [[row[column] for column in heads] for row in read(file)]
    return source(file) + table(heads.values(), body)


def mpi_host_programs() -> list[str]:
    """Collectives on host memory by OSU's programs: bare, and with all operations plait's."""
    file = "mpi_osu.csv"
    us: dict[tuple[str, int], dict[str, float]] = {}
    for row in read(file):
        us.setdefault((row["program"], int(row["bytes"])), {})[row["plait"]] = float(row["us"])
    sizes = sorted({count for _, count in us})
    ways = sorted({way for found in us.values() for way in found} - {"no"})
    body = [
        [program, *(
            " / ".join(figure(us[program, one][way]) for way in ("no", *ways)
                       if way in us[program, one])
            for one in sizes)]
        for program in dict.fromkeys(program for program, _ in us)
    ]  # fmt: skip
    head = ("program, us: " + " / ".join(("bare", *ways)), *map(size, sizes))
    return source(file) + table(head, body)


# --- Host memory.


def host_all_reduce() -> list[str]:
    """An all_reduce of 64 MiB on two CPU ranks."""
    file = "host_all_reduce.csv"
    rows = [row for row in read(file) if "--rounds 5" in row["command"]]
    first = rows[0]
    said = f"64 MiB fp32, 2 ranks, {first['machine']}, {first['date']}, `{first['command']}`"
    times = [f"{1e3 * float(row['seconds']):.1f} ms" for row in rows]
    names = {"plait": "plait", "gloo": "gloo", "openmpi": "Open MPI"}
    return source(file, said) + table([names[row["library"]] for row in rows], [times])


def torch_backend() -> list[str]:
    """The backend of torch.distributed and gloo on host memory."""
    file = "torch_backend_host.csv"
    rows = [row for row in read(file) if row["load"] == "0" and row["ranks"] == "2"]
    sizes = sorted({int(row["bytes"]) for row in rows} - {0})
    us = {(row["call"], int(row["bytes"])): row for row in rows}
    body = []
    for call in dict.fromkeys(row["call"] for row in rows):
        found = [us.get((call, one)) for one in sizes]
        if any(found):
            body.append(
                [
                    call,
                    *(
                        f"{figure(float(row['plait_us']))} / {figure(float(row['gloo_us']))}"
                        if row
                        else ""
                        for row in found
                    ),
                ]
            )
    first = rows[0]
    said = f"2 ranks, {first['machine']}, {first['date']}, PyTorch {first['torch']}"
    return source(file, said) + table(("call, us: plait / gloo", *map(size, sizes)), body)


def cpu_strategies() -> list[str]:
    """All_reduces of two CPU ranks under MPI, by strategy."""
    file = "cpu_two_ranks.csv"
    rows = read(file)
    sizes = [int(column) for column in rows[0] if re.fullmatch(r"\d+", column)]
    kept = [row for row in rows if row["strategy"] in ("bare", "one_shot", "direct", "chosen")]
    body = [[row["strategy"], *(row[str(one)] for one in sizes)] for row in kept]
    return source(file) + table(("strategy, us", *map(size, sizes)), body)


def nodes_on_host() -> list[str]:
    """All_reduces of host memory over two pretended hosts."""
    file = "nodes_mpich_2x2.csv"
    latest = {(row["link"], row["way"]): row for row in read(file)}
    body = [[link, way, row["ms"], row["simulated_ms"]] for (link, way), row in latest.items()]
    first = read(file)[0]
    said = f"64 MiB, {first['machine']}, {first['mpi']}, {first['date']}"
    head = ("link", "by", "measured, ms", "simulated, ms")
    return source(file, said) + table(head, body)


def nodes_on_gpus() -> list[str]:
    """All_reduces over two pretended nodes of two GPUs."""
    file = "gpu_nodes_h200x4.csv"
    body = [
        [
            row["door"],
            size(int(row["bytes"])),
            figure(float(row["plait_us"])),
            figure(float(row["nccl_us"])),
            f"{float(row['ratio']):.2f}",
        ]
        for row in read(file)
    ]
    head = ("entry point", "size", "plait, us", "NCCL, us", "ratio")
    return source(file) + table(head, body)


TABLES: dict[str, Callable[[], list[str]]] = {
    "against NCCL": against_nccl,
    **{title: partial(on_machine, file) for title, file in MACHINES.items()},
    "copies between two GPUs": copies,
    "nccl-tests, 2 H200": partial(nccl_tests, "gpu_nccl_tests_h200x2.csv"),
    "nccl-tests, 4 H200": partial(nccl_tests, "gpu_nccl_tests_h200x4.csv"),
    "nccl-tests, 2 H100": partial(nccl_tests, "gpu_nccl_tests_h100x2.csv"),
    "forwarded to NCCL": forwarded,
    "applications under NCCL": applications,
    "MPI, collectives on device memory": mpi_device_reductions,
    "MPI, messages of device memory": mpi_device_messages,
    "MPI, programs on device memory": mpi_applications,
    "MPI, all_reduces on one shared GPU": partial(
        as_recorded,
        "gpu_mpi_staged_h100.csv",
        {"ranks": "ranks", "size": "size", "plait_us": "plait, us", "by_hand_us": "by hand, us"},
    ),
    "MPI, all_reduces on two GPUs": partial(
        as_recorded,
        "gpu_mpi_buffers_h200x2.csv",
        {"size": "size", "plait_us": "plait, us", "by_hand_us": "by hand, us"},
    ),
    "MPI, calls on host memory": partial(
        as_recorded,
        "mpi_host_calls.csv",
        {"call": "call", "size": "size", "openmpi_us": "Open MPI, us", "plait_us": "plait, us"},
    ),
    "MPI, programs on host memory": mpi_host_programs,
    "MPI, over hosts": partial(
        as_recorded,
        "mpi_over_hosts.csv",
        {
            "call": "call",
            "size": "size",
            "openmpi_ms": "Open MPI 4.1.4, ms",
            "openmpi_plait_ms": "with plait",
            "mpich_ms": "MPICH 4.0.2, ms",
            "mpich_plait_ms": "with plait",
        },
    ),
    "MPI, forwarded calls": partial(
        as_recorded,
        "mpi_forwarded.csv",
        {
            "call": "call",
            "size": "size",
            "bare_ns": "bare, ns",
            "no_gpu_ns": "more, no GPU",
            "gpu_ns": "more, a GPU, CUDA not loaded",
            "cuda_ns": "more, CUDA loaded",
        },
    ),
    "all_reduce on two CPU ranks": host_all_reduce,
    "torch.distributed on CPU ranks": torch_backend,
    "strategies on two CPU ranks": cpu_strategies,
    "two pretended hosts": nodes_on_host,
    "two pretended nodes of GPUs": nodes_on_gpus,
}
