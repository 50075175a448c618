"""The drop-in by a tuning table: run under torchrun, the drop-in preloaded, PLAIT_TUNING a table.

What the table says NCCL does faster is NCCL's, all else it holds is plait's, whatever is built in,
and right; by which kernel is not looked at. Rank 0 prints a JSON line a row; the status is 1 where
one failed.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "bench"))
from drop_in import served

# (collective, bytes up to, kernel, us, NCCL's us): kernels that are not built in there, and both
# ways round of what the built-in choices take.
ROWS = (
    ("all_reduce", 4 << 10, "tiled", 1.0, 2.0),
    ("all_reduce", 64 << 10, "one_shot", 3.0, 2.0),
    ("all_reduce", 4 << 20, "direct_ll", 2.0, 2.0),  # too near
    ("all_reduce", 8 << 20, "tiled", 1.0, 0.0),  # NCCL not measured: as built in
    ("all_gather", 1 << 20, "tiled", 1.0, 1.5),
    ("all_gather", 16 << 20, "direct_ll", 1.6, 1.5),
    ("reduce_scatter", 16 << 20, "tiled", 1.0, 2.0),
    ("reduce", 16 << 20, "tiled", 1.0, 2.0),  # NCCL's where there is no table
)
FLOAT_BYTES = 4


def table(ranks: int) -> dict[str, Any]:
    """ROWS as `plait tune` writes them, for fp32."""
    facts = {"machine": "made up", "fingerprint": "", "gpu": "", "cuda_driver": 0, "nccl": ""}
    common = {"setting": "overlap_compute", "type": "fp32", "ranks": ranks, "blocks": 0}
    names = ("collective", "max_bytes", "kernel", "us", "nccl_us")
    rows = [common | dict(zip(names, row, strict=True)) for row in ROWS]
    return {"schema": "plait.tuning/3", **facts, "plait": "", "date": "", "rows": rows}


def run(collective: str, size: int) -> bool:
    """One call of so many bytes, as nccl-tests counts them; whether its result is right."""
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
    """Every row; 1 where one failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write")
    parser.add_argument("--gpus", type=int, default=2)
    args = parser.parse_args()
    if args.write:
        from plait.bench import (
            tuner as tune,  # here alone: ranks under the drop-in do without plait's package
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
        by_plait = nccl_us == 0 or plait_us <= 0.99 * nccl_us  # a tie is NCCL's
        good &= counted == [int(by_plait), int(not by_plait)]
        failed += not good
        if dist.get_rank() == 0 or not good:
            row = {"check": f"tuned {collective} {size}", "ok": good, "served": counted}
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
