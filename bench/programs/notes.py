"""Writes the State tables of the lab book (bench/notes) from bench/results.

Standard library only. The tables that docs/performance.md has too come from
tools/performance_tables.py.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace

from bench.lib.rows import ROOT, read

NOTES = ROOT / "bench" / "notes"
sys.path.insert(0, str(ROOT / "tools"))

import performance_tables as tables  # noqa: E402
from performance_tables import GIB, KIB, MIB, figure, mean, size, source, table  # noqa: E402

BLOCK = re.compile(r"(<!-- by python -m bench notes: (\w+) -->\n).*?(<!-- end -->)", re.S)
SIZES = (KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB, 4 * GIB)
LL = ("one_shot", "two_shot", "hop", "short_hop", "direct_ll", "line_chain")
COPIES = ("copy_exchange", "copy_rotation", "copy_ring", "scatter_ring")


def engine_of(row: dict[str, str]) -> str:
    """Returns `tiled` of the variant `plait tiled:order=2`."""
    return row["way"].removeprefix("plait ").partition(":")[0]


def chosen(file: str, engines: Iterable[str]) -> dict[tuple[str, int], tuple[float, float]]:
    """(plait's us, NCCL's us) in graphs, by call and bytes, where these engines serve the call."""
    ours: dict[tuple[str, int], float] = {}
    nccl: dict[tuple[str, int], float] = {}
    for row in read(file):
        key = (f"{row['collective']}, {row['type']}", int(row["bytes"]))
        us = float(row["graph_us"])
        if row["way"] == "nccl":
            nccl[key] = us
        elif us > 0 and row["params"] == "chosen" and engine_of(row) in engines:
            ours[key] = us
    return {key: (us, nccl[key]) for key, us in ours.items() if nccl.get(key)}


def by_engines(*engines: str) -> list[str]:
    """Calls that plait's choice gives to these engines."""
    found = {title: chosen(file, engines) for title, file in tables.MACHINES.items()}
    sizes = [one for one in SIZES if any(one == count for us in found.values() for _, count in us)]
    body = []
    for title, calls in found.items():
        for call in dict.fromkeys(call for call, _ in calls):
            cells = [calls.get((call, one)) for one in sizes]
            if any(cells):
                said = [f"{figure(one[0])} ({one[1] / one[0]:.2f})" if one else "" for one in cells]
                body.append([title.replace("GPUs of HGX ", ""), call, *said])
    lead = (
        "Microseconds in a graph, and in brackets NCCL's time over plait's. Empty: another engine."
    )
    return [lead, "", *table(("GPUs", "call", *map(size, sizes)), body)]


def host_shares() -> list[str]:
    """Large all_reduces, eager and in graphs, and copies over all paths."""
    body = []
    for title, file in list(tables.MACHINES.items())[:2]:
        times: dict[int, dict[str, float]] = {}
        for row in read(file):
            if (row["collective"], row["type"]) != ("all_reduce", "fp32"):
                continue
            kind = "nccl" if row["way"] == "nccl" else "plait"
            for how in ("graph", "eager"):
                if (us := float(row[f"{how}_us"])) > 0:
                    times.setdefault(int(row["bytes"]), {})[f"{kind} {how}"] = us
        names = ("plait eager", "plait graph", "nccl eager")
        for count in (256 * MIB, GIB, 4 * GIB):
            us = times.get(count, {})
            said = [figure(us[name]) if name in us else "" for name in names]
            body.append([title.replace("GPUs of HGX ", ""), size(count), *said])
    lead = [
        "Eager all_reduces of four GPUs have a share through host memory. Those of two GPUs have",
        "one only where an inbox holds 96 MiB (E-0211). Calls in graphs have none.",
        "",
    ]
    head = ("GPUs", "all_reduce", "eager, us", "in a graph, us", "NCCL eager, us")
    return [*lead, *table(head, body), "", *tables.copies()]


def nccl_programs() -> list[str]:
    """nccl-tests by program: NCCL's time over plait's, out of place."""
    files = ("gpu_nccl_tests_h200x2.csv", "gpu_nccl_tests_h200x4.csv", "gpu_nccl_tests_h100x2.csv")
    ratios: dict[str, dict[str, list[float]]] = {}
    for file in files:
        for row in read(file):
            if row["place"] == "out":
                ratios.setdefault(row["program"], {}).setdefault(file, []).append(
                    float(row["ratio"])
                )
    body = [
        [
            program,
            *(
                f"{mean(by_file[file]):.2f} ({min(by_file[file]):.2f})" if file in by_file else ""
                for file in files
            ),
        ]
        for program, by_file in ratios.items()
    ]
    lead = [
        "Under the drop-in, nccl-tests: NCCL's time over plait's, the geometric mean of all sizes",
        "(the least of them).",
        "",
    ]
    names = [file.removeprefix("gpu_nccl_tests_").removesuffix(".csv") for file in files]
    calls = ["", "Calls that the drop-in forwards to NCCL:", "", *tables.forwarded()]
    return lead + table(("program", *names), body) + calls


def reductions() -> list[str]:
    """Sums of host memory on one core."""
    file = "reduce_speed.csv"
    percent: dict[str, dict[str, str]] = {}
    for row in read(file):
        if row["level"] == "avx512":
            percent.setdefault(row["type"], {})[row["sources"]] = row["percent"]
    counts = ("2", "4", "8")
    body = [[kind, *(found.get(one, "") for one in counts)] for kind, found in percent.items()]
    said = "AVX-512 on one core, percent of the speed of a plain fp32 add of as many arrays"
    return source(file, said) + table(("type", *(f"{one} sources" for one in counts)), body)


def training() -> list[str]:
    """Programs of PyTorch under the drop-in."""
    best: dict[tuple[str, ...], dict[str, str]] = {}
    for file in ("gpu_applications_h200x2.csv", "gpu_applications_h200x4.csv"):
        for row in read(file):
            if row.get("sm_budget", "0") in ("0", ""):
                best[row["program"], row["model"], row["batch"], row["gpus"]] = row
    body = [[*key, f"{float(row['ratio']):.2f}"] for key, row in sorted(best.items())]
    lead = "Programs of PyTorch under the drop-in on HGX H200, their last recorded run:"
    return [lead, "", *table(("program", "model", "batch", "GPUs", "speed over NCCL's"), body)]


def predictions() -> list[str]:
    """Times that the simulator predicted before the runs, compared with the newest run."""
    body = []
    for gpus in (2, 4, 8):
        predicted = {}
        for row in read(f"predicted_run_h200x{gpus}.csv"):
            if row["section"] == "table" and row["way"] != "nccl":
                predicted[tuple(row[name] for name in ("collective", "type", "bytes", "way"))] = row
        off = []
        for row in read(f"gpu_run_table_h200x{gpus}.csv"):
            said = predicted.get(
                tuple(row[name] for name in ("collective", "type", "bytes", "way"))
            )
            if said and float(said["predicted_graph_us"]) and float(row["graph_us"]):
                off.append(float(said["predicted_graph_us"]) / float(row["graph_us"]) - 1)
        near = sum(abs(one) <= 0.1 for one in off)
        furthest = max(off, key=abs)
        middle = statistics.median(map(abs, off))
        cells = (f"{gpus}", f"{len(off)}", f"{near}", f"{middle:.1%}", f"{furthest:+.0%}")
        body.append(cells)
    lead = [
        "Predictions of `predicted_run_h200x*.csv` (before any run) that name the engine which",
        "serves the call today, compared with `gpu_run_table_h200x*.csv`, in graphs. Prices have",
        "been fitted since (docs/evidence.md).",
        "",
    ]
    head = ("H200", "calls", "within 10 %", "median off", "furthest off")
    return lead + table(head, body)


def joined(*parts: Callable[[], list[str]]) -> list[str]:
    lines: list[str] = []
    for part in parts:
        lines += ["", *part()] if lines else part()
    return lines


STATE: dict[str, Callable[[], list[str]]] = {
    "ll": partial(by_engines, *LL),
    "tiles": partial(by_engines, "tiled"),
    "copies": partial(by_engines, *COPIES),
    "host_path": host_shares,
    "nccl": nccl_programs,
    "cpu": partial(joined, tables.host_all_reduce, tables.cpu_strategies, reductions),
    "mpi": partial(
        joined, tables.mpi_device_reductions, tables.mpi_device_messages, tables.nodes_on_host
    ),
    "torch": partial(joined, tables.torch_backend, training),
    "planner": predictions,
}


def renewed(text: str) -> str:
    """Returns a file of the lab book with its tables made anew."""
    return BLOCK.sub(lambda found: found[1] + "\n".join(STATE[found[2]]()) + "\n" + found[3], text)


def next_id() -> str:
    pages = (page.read_text() for page in NOTES.glob("*.md") if page.name != "README.md")
    used = [int(one) for text in pages for one in re.findall(r"^### E-(\d{4}) ", text, re.M)]
    return f"E-{max(used) + 1:04d}"


def run(given: SimpleNamespace) -> None:
    if given.next:
        print(next_id())
        return
    stale = []
    for subject in STATE:
        page = NOTES / f"{subject}.md"
        text = page.read_text()
        made = renewed(text)
        if made == text:
            continue
        stale.append(page.name)
        if not given.check:
            page.write_text(made)
    if given.check and stale:
        raise SystemExit(f"not up to date: {', '.join(stale)}; run python -m bench notes")
