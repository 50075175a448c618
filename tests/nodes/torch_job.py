"""job.py's checks over gloo: a rank of a job that torch.distributed joins without MPI.

torchrun --nproc-per-node 4 tests/nodes/torch_job.py MODE
"""

from __future__ import annotations

import json
import sys
import time

import torch.distributed as dist
from job import JOBS, Checks, pairs

import plait


def carried() -> str:
    """Broadcasts an id with the program's own process group."""
    ids = [plait.unique_id() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(ids)
    return ids[0]


def subset(checks: Checks) -> int:
    """Makes a communicator of all ranks except the first; the last rank is the communicator's rank
    0."""
    unique_id, here, ranks = carried(), dist.get_rank(), dist.get_world_size() - 1
    if here > 0:
        pairs(plait.init(unique_id=unique_id, rank=ranks - here, ranks=ranks), checks)
    dist.barrier()
    return ranks


def differ(checks: Checks) -> int:
    unique_id, here, ranks = carried(), dist.get_rank(), dist.get_world_size()
    try:
        plait.init(unique_id=unique_id if here != 1 else plait.unique_id(), rank=here, ranks=ranks)
        checks.wrong.append("ids that differ were not refused")
    except plait.MismatchError as error:
        checks.same("which differ", "unique_id" in str(error), True)
    return ranks


def behind(checks: Checks) -> int:
    """A rank makes an invalid request while the peers wait in vain. Then all ranks come."""
    here, ranks = dist.get_rank(), dist.get_world_size()
    try:
        plait.init(rank=here if here != 1 else 0, ranks=ranks, arrive_s=2)
        checks.wrong.append("a rank that did not come was not missed")
    except (plait.DeadlineError, plait.MismatchError, ValueError) as error:
        checks.same("a rank that is missed", here == 1 or "no rank 1" in str(error), True)
    dist.barrier()
    if here == 1:
        time.sleep(0.5)  # after the remaining ranks: a rank that has not waited is usually first
    pairs(plait.init(), checks)
    return ranks


def main() -> None:
    dist.init_process_group("gloo")
    checks = Checks()
    by_id = {"subset": subset, "differ": differ, "behind": behind}
    if sys.argv[1] in by_id:
        ranks = by_id[sys.argv[1]](checks)
    else:
        comm = plait.init()
        ranks = comm.ranks
        JOBS[sys.argv[1]](comm, checks)
    found: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (checks.count, checks.wrong))
    if dist.get_rank() == 0:
        wrong = [one for _, part in found for one in part]  # type: ignore[misc]
        counts = sum(count for count, _ in found)  # type: ignore[misc]
        print(json.dumps({"ranks": ranks, "checks": counts, "wrong": wrong}))
    dist.destroy_process_group()


main()
