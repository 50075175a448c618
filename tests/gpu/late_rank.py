"""A rank that comes late, over the drop-in: run under torchrun with the drop-in preloaded.

Eager calls and graph replays while rank 1 is 3 s late. Without `PLAIT_ARRIVE_S` they wait, and
every result is right. With a `PLAIT_ARRIVE_S` below 3 the stream of whoever waits fails, and that
of rank 1 may: no result is wrong where `torch.cuda.synchronize` returns. Each rank prints a JSON
line a call; the status is 1 where a call was neither right nor failed, or was not as expected.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

if "PLAIT_ARRIVE_S" in os.environ:
    # PyTorch's watchdog would end the process when a stream fails, before it can say how calls end.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"

import torch
import torch.distributed as dist

LATE_S = 3.0
COUNT = 70_000


def outcome(call: Callable[[], None], out: torch.Tensor, wanted: float) -> str:
    """right, wrong or failed: how the call ends, as its stream says."""
    try:
        call()
        torch.cuda.synchronize()
        return "right" if bool((out == wanted).all()) else "wrong"
    except RuntimeError:
        return "failed"


def main() -> int:
    """Three eager calls and three replays, rank 1 late for the second of each."""
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    ranks = dist.get_world_size()
    mine, out = torch.full((COUNT,), rank + 1.0, device="cuda"), torch.zeros(COUNT, device="cuda")
    wanted = ranks * (ranks + 1) / 2

    def eager() -> None:
        out.copy_(mine)
        dist.all_reduce(out)

    eager()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    found = []
    for name, call in (("eager", eager), ("replay", graph.replay)):
        for turn in range(3):
            if turn == 1 and rank == 1:
                time.sleep(LATE_S)
            found.append(outcome(call, out, wanted))
            print(json.dumps({"rank": rank, "call": f"{name} {turn}", "is": found[-1]}), flush=True)
            if found[-1] == "failed":  # the process's work on this GPU is at its end
                break
            out.fill_(-1)
        if "failed" in found:
            break
    has_deadline = float(os.environ.get("PLAIT_ARRIVE_S", "inf")) < LATE_S
    if has_deadline:
        # Whoever waits fails. Rank 1 waits for nobody when it comes, unless the others are gone.
        good = "wrong" not in found and (rank == 1 or "failed" in found)
    else:
        good = found == ["right"] * 6
    sys.stdout.flush()
    os._exit(0 if good else 1)  # a context that has failed cannot be torn down in good order


if __name__ == "__main__":
    main()
