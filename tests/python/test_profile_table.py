"""Tests the table that `plait profile` prints, over counters of a program without plait."""

from __future__ import annotations

import re
import sys

from gpu_stand_ins import plait_command

# Two ranks write the counters that the drop-in writes at the end of a process.
PROGRAM = """
import json, os
row = {"name": "all_reduce", "served": 0, "bucket": 23, "calls": 5, "bytes": 20 << 20}
row |= {"host_ns": 5000, "gpu_calls": 0, "gpu_ns": 0}
for rank in range(2):
    page = {"rank": rank, "pid": rank, "rows": [row], "events": []}
    with open(f"{os.environ['PLAIT_PROFILE']}/plait-{rank}.json", "w") as file:
        json.dump(page, file)
"""


def test_heads_say_that_a_row_begins_at_a_size_and_sums_ranks(tmp_path):
    done = plait_command("profile", "--folder", str(tmp_path), "--", sys.executable, "-c", PROGRAM)
    assert done.returncode == 0, done
    head, row = (
        [cell.strip() for cell in re.split("[┃│]", line)]
        for line in done.stdout.splitlines()
        if "size from" in line or "all_reduce" in line
    )
    found = dict(zip(head, row, strict=True))
    assert (found["path"], found["size from"]) == ("nccl", "4 MiB")
    assert (found["calls, all ranks"], found["bytes, all ranks"]) == ("10", "40 MiB")
    assert (found["us a call"], found["timed by"]) == ("1.0", "host")
