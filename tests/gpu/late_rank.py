"""A rank that is late, over the drop-in: run under torchrun with the drop-in preloaded.

Makes eager calls and graph replays while rank 1 is 3 s late. Without `PLAIT_ARRIVE_S` the ranks
wait, and every result is right. With `PLAIT_ARRIVE_S` below 3 the waiting rank's stream fails, and
rank 1's may fail: no result is wrong if `torch.cuda.synchronize` returns. Each rank prints a JSON
line per call. Exit status 1 = a call was neither right nor failed, or ended otherwise than
expected.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

if "PLAIT_ARRIVE_S" in os.environ:
    # PyTorch's watchdog would end the process at a failed stream, before it can report its calls.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"

import torch
import torch.distributed as dist

LATE_S = 3.0
COUNT = 70_000


def outcome(call: Callable[[], None], out: torch.Tensor, wanted: float) -> str:
    """Outcome of a call by the call's stream: right, wrong or failed."""
    try:
        call()
        torch.cuda.synchronize()
        return "right" if bool((out == wanted).all()) else "wrong"
    except RuntimeError:
        return "failed"


def main() -> int:
    """Three eager calls and three replays; rank 1 is late for the second of each."""
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
            if found[-1] == "failed":  # the process cannot use this GPU any more
                break
            out.fill_(-1)
        if "failed" in found:
            break
    has_deadline = float(os.environ.get("PLAIT_ARRIVE_S", "inf")) < LATE_S
    if has_deadline:
        # A waiting rank fails. Rank 1 waits for no rank on arrival, unless the peers are gone.
        good = "wrong" not in found and (rank == 1 or "failed" in found)
    else:
        good = found == ["right"] * 6
    sys.stdout.flush()
    os._exit(0 if good else 1)  # a failed context cannot be torn down in order


if __name__ == "__main__":
    main()
