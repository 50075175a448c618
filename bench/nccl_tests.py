"""nccl-tests' programs with and without the drop-in, in turn: a CSV line a size, with the ratio.

    python bench/nccl_tests.py --programs FOLDER --drop-in libplait_nccl.so --gpus 2 --csv out.csv

The programs are built elsewhere; each run checks its results (-c 1). `ratio` is the time without
over the time with plait: above 1 is faster.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "alltoall",
    "gather",
    "scatter",
    "sendrecv",
)
COLUMNS = (
    *("program", "mode", "place", "bytes", "count", "type", "op", "root"),
    *("nccl_us", "plait_us", "nccl_busbw", "plait_busbw", "ratio", "nccl_wrong", "plait_wrong"),
)
Key = tuple[str, ...]
Timing = tuple[float, float, str]  # us, busbw, wrong


def parse(text: str) -> dict[Key, Timing]:
    """nccl-tests' table: (place, bytes, count, type, op, root) -> timing."""
    found: dict[Key, Timing] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 13 or not words[0].isdigit():
            continue
        for place, at in (("out", 5), ("in", 9)):
            time_us, _, busbw, wrong = words[at : at + 4]
            if time_us != "N/A":
                found[(place, *words[:5])] = (float(time_us), float(busbw), wrong)
    return found


def run(command: list[str], drop_in: str, limit_s: float) -> tuple[dict[Key, Timing], str]:
    """One run's table, and why it is not whole (empty where it is)."""
    env = dict(os.environ)
    if drop_in:
        env["LD_PRELOAD"] = drop_in
        env.setdefault("PLAIT_DEBUG", "WARN")
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        return parse(output), f"still running after {limit_s} s"
    said = "\n".join(line for line in done.stderr.splitlines() if "PLAIT" in line)
    if said:
        print(said, file=sys.stderr)
    why = "" if done.returncode == 0 else f"status {done.returncode}: {done.stderr[-400:]}"
    return parse(done.stdout), why


def rows(program: str, mode: str, plain: dict[Key, Timing], ours: dict[Key, Timing]) -> list[dict]:
    """A row a size that both runs have."""
    made = []
    for key in plain:
        if key not in ours:
            continue
        (nccl_us, nccl_busbw, nccl_wrong), (us, busbw, wrong) = plain[key], ours[key]
        values = (nccl_us, us, nccl_busbw, busbw, nccl_us / us if us else 0.0, nccl_wrong, wrong)
        made.append(dict(zip(COLUMNS, (program, mode, *key, *values), strict=True)))
    return made


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", required=True, help="folder with all_reduce_perf, ...")
    parser.add_argument("--drop-in", required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--modes", default="threads", help="threads, one_thread")
    parser.add_argument("--options", default="-b 8 -e 256M -f 4 -c 1 -n 20 -w 5")
    parser.add_argument("--limit", type=float, default=120, help="seconds a run")
    parser.add_argument("--csv", default="")
    return parser.parse_args()


def main() -> int:
    """Runs all; 1 where plait gave a wrong element or a run did not end well."""
    args = arguments()
    all_rows, bad = [], 0
    for program in args.only.split(","):
        for mode in args.modes.split(","):
            ranks = ("-t", "-g") if mode == "threads" else ("-g", "-t")
            command = [str(Path(args.programs) / f"{program}_perf"), ranks[0], str(args.gpus)]
            command += [ranks[1], "1", *args.options.split()]
            begin = time.monotonic()
            plain, why_plain = run(command, "", args.limit)
            middle = time.monotonic()
            ours, why = run(command, args.drop_in, args.limit)
            made = rows(program, mode, plain, ours)
            all_rows += made
            bad += bool(why) + sum(row["plait_wrong"] not in ("0", "N/A") for row in made)
            took = f"{middle - begin:.1f} s, {time.monotonic() - middle:.1f} s with plait"
            print(f"# {program} {mode}: {took} {why_plain and 'NCCL: ' + why_plain} {why}")
            for row in made:
                print(
                    f"{program:>15} {mode:>10} {row['place']:>3} {row['bytes']:>11} "
                    f"{row['type']:>9} {row['op']:>5} {row['nccl_us']:>9.2f} "
                    f"{row['plait_us']:>9.2f} us "
                    f"{row['nccl_busbw']:>7.2f} {row['plait_busbw']:>7.2f} GB/s "
                    f"{row['ratio']:>6.3f} wrong {row['plait_wrong']}",
                    flush=True,
                )
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(all_rows)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
