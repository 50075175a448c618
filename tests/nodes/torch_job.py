"""job.py's checks over gloo: one rank of several that torch.distributed joins, with no MPI.

torchrun --nproc-per-node 4 tests/nodes/torch_job.py MODE
"""

from __future__ import annotations

import json
import sys

import torch.distributed as dist
from job import JOBS, Checks

import plait


def main() -> None:
    dist.init_process_group("gloo")
    checks = Checks()
    comm = plait.init()
    JOBS[sys.argv[1]](comm, checks)
    found: list[object] = [None] * comm.ranks
    dist.all_gather_object(found, (checks.count, checks.wrong))
    if comm.rank == 0:
        wrong = [one for _, part in found for one in part]  # type: ignore[misc]
        counts = sum(count for count, _ in found)  # type: ignore[misc]
        print(json.dumps({"ranks": comm.ranks, "checks": counts, "wrong": wrong}))
    dist.destroy_process_group()


main()
