"""Reads bandwidths by machine, collective, ranks and size from bench/results/*.csv.

Reads two formats: tables with machine and bandwidth in each row, and tables of GPU programs, with
the machine in the first line and times in rows.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import plait

Curves = dict[str, list[tuple[int, float]]]  # name -> [(message bytes, busbw GB/s)]
GPU_COLUMNS = "collective,gpus,ranks_as,type,bytes,way,params,graph_us,eager_us,wrong"


def measurements(folder: Path, machine: str, collective: str) -> dict[int, Curves]:
    """Returns curves by ranks (0 = unknown): the best of each name and size."""
    best: dict[int, dict[str, dict[int, float]]] = {}
    for file in sorted(folder.glob("*.csv")):
        for ranks, name, size, speed in _rows(file, machine, collective):
            sizes = best.setdefault(ranks, {}).setdefault(f"{name} (measured)", {})
            sizes[size] = max(speed, sizes.get(size, 0.0))
    return {
        ranks: {name: sorted(sizes.items()) for name, sizes in by_name.items()}
        for ranks, by_name in best.items()
    }


def _rows(file: Path, machine: str, collective: str) -> list[tuple[int, str, int, float]]:
    """Returns (ranks, name, message bytes, busbw) of matching rows; skips broken rows."""
    lines = file.read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    table = [line for line in lines if line and not line.startswith("#")]
    if table and table[0] in (GPU_COLUMNS, f"{GPU_COLUMNS},commit"):
        if machine_of(comments) != machine:
            return []
        columns = slice(None, -1 if table[0].endswith(",commit") else None)
        found = [_gpu_row(row[columns], collective) for row in csv.reader(table[1:])]
    else:
        named = csv.DictReader(table)
        found = [_table_row(row, machine, collective, file.stem) for row in named]
    return [row for row in found if row is not None]


def machine_of(comments: list[str]) -> str:
    """Returns the topology's name from "# machine: HGX H200 x2 (virtual); date: ..."."""
    for line in comments:
        match = re.match(r"#\s*machine:\s*([^;(]*)", line)
        if match:
            name = re.sub(r"\s+x\d+\s*$", "", match[1].strip())
            return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return ""


def _gpu_row(row: list[str], collective: str) -> tuple[int, str, int, float] | None:
    """Parses a row. A plan's parameters, with commas, lie between its name and the last 3
    columns."""
    try:
        wrong, times = int(row[-1]), (float(row[-3]), float(row[-2]))
        ranks, size = int(row[1]), int(row[4])
    except (ValueError, IndexError):
        return None
    time_us = min((time for time in times if time > 0.0), default=0.0)
    if row[0] != collective or wrong or not time_us:
        return None
    way = row[5].split(":")[0].removeprefix("plait ")
    of_more = "copy_ring" if collective == "all_gather" else "copy_rotation"
    copies = "copy_exchange" if ranks == 2 else of_more
    name = {"nccl": "NCCL", "plait": row[6].split(" ")[0], "rotation": copies}.get(way, way)
    name = plait.engine_name(name)
    request = plait.Request(collective, size, "uint8", "sum", ranks, 0, int(ranks > 1))
    return ranks, name, size, request.busbw_factor() * size / time_us / 1e3


def _table_row(
    row: dict[str, str], machine: str, collective: str, otherwise: str
) -> tuple[int, str, int, float] | None:
    if row.get("machine", machine) != machine or row.get("collective", collective) != collective:
        return None
    name = row.get("strategy") or row.get("name") or row.get("library") or otherwise
    try:
        size = int(row.get("bytes") or row.get("size") or "")
        speed = float(row.get("busbw_gb_per_s") or row.get("busbw") or "")
        return int(row.get("ranks") or row.get("gpus") or 0), name, size, speed
    except ValueError:
        return None
