"""Checks the drop-in with a tuning table: run under torchrun, preloaded, PLAIT_TUNING a table.

NCCL must serve the rows in which the table has NCCL faster, and plait all other rows, whatever the
built-in choices say. Results must be right; the kernel is not checked. Rank 0 prints a JSON line
per row; exit status 1 = a failure.
    python tests/gpu/tuned_drop_in.py --write FILE --gpus N    writes a table made up for this, by
                                                               plait's package
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.lib.drop_in import served

# (collective, bytes up to, kernel, us, NCCL's us): kernels that are not built in there, and both
# ways round of the built-in choices.
ROWS = (
    ("all_reduce", 4 << 10, "tiled", 1.0, 2.0),
    ("all_reduce", 64 << 10, "one_shot", 3.0, 2.0),
    ("all_reduce", 4 << 20, "direct_ll", 2.0, 2.0),  # too close
    ("all_reduce", 8 << 20, "tiled", 1.0, 0.0),  # NCCL not measured: the built-in choice counts
    ("all_gather", 1 << 20, "tiled", 1.0, 1.5),
    ("all_gather", 16 << 20, "direct_ll", 1.6, 1.5),
    ("reduce_scatter", 16 << 20, "tiled", 1.0, 2.0),
    ("reduce", 16 << 20, "tiled", 1.0, 2.0),  # NCCL's without a table
)
FLOAT_BYTES = 4


def table(ranks: int) -> dict[str, Any]:
    """ROWS in the format of `plait tune`, for fp32."""
    gpu = {"model": "*", "multiprocessors": 132, "links": ["NVLinks hidden"], "upto_ranks": ranks}
    common = {"when": "overlap_compute", "type": "fp32", "from_ranks": ranks, "upto_ranks": ranks}
    rows = []
    for collective, size, engine, plait_us, nccl_us in ROWS:
        row = common | {"collective": collective, "upto_bytes": str(size), "engine": engine}
        ahead = {"ahead_of_nccl": plait_us <= 0.99 * nccl_us} if nccl_us else {}
        rows.append(row | ahead | {"source": "made up"})
    return {
        "schema": "plait.tuning/4",
        "name": "made up",
        "gpu": gpu,
        "nccl": "",
        "rows": rows,
    }


def run(collective: str, size: int) -> bool:
    """Makes a call of this many bytes, counted as in nccl-tests; returns true if right."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = size // FLOAT_BYTES
    places = torch.arange(count, device="cuda") % 13
    total = (ranks * places + sum(range(ranks))).float()
    if collective == "all_reduce":
        mine = (places + rank).float()
        dist.all_reduce(mine)
        return bool(torch.equal(mine, total))
    if collective == "reduce":
        mine = (places + rank).float()
        dist.reduce(mine, 0)
        return rank != 0 or bool(torch.equal(mine, total))
    part = count // ranks
    if collective == "reduce_scatter":
        out = torch.full((part,), -1.0, device="cuda")
        dist.reduce_scatter_tensor(out, (places + rank).float()[: part * ranks])
        return bool(torch.equal(out, total[part * rank : part * (rank + 1)]))
    out = torch.full((part * ranks,), -1.0, device="cuda")
    dist.all_gather_into_tensor(out, (places[:part] + rank).float())
    wanted = torch.cat([(places[:part] + peer).float() for peer in range(ranks)])
    return bool(torch.equal(out, wanted))


def main() -> int:
    """Checks every row; returns 1 if one failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write")
    parser.add_argument("--gpus", type=int, default=2)
    args = parser.parse_args()
    if args.write:
        from plait.bench import (
            tuner as tune,  # local import: ranks under the drop-in run without plait's package
        )

        tune.write(args.write, table(args.gpus))
        return 0
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    failed = 0
    for collective, size, _, plait_us, nccl_us in ROWS:
        before = served()
        good = run(collective, size)
        torch.cuda.synchronize()
        counted = [now - then for now, then in zip(served(), before, strict=True)]
        by_plait = nccl_us == 0 or plait_us <= 0.99 * nccl_us  # a tie goes to NCCL
        good &= counted == [int(by_plait), int(not by_plait)]
        failed += not good
        if dist.get_rank() == 0 or not good:
            row = {"check": f"tuned {collective} {size}", "ok": good, "served": counted}
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
