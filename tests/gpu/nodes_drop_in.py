"""Checks and times pretended nodes under NCCL: run under torchrun with the drop-in preloaded.

Needs 4 GPUs or more.

    NCCL_NVLS_ENABLE=0 PLAIT_NODE_SIZE=2 [PLAIT_ALGO=multi_node] LD_PRELOAD=libplait_nccl.so \\
        torchrun --nproc-per-node 4 tests/gpu/nodes_drop_in.py [--csv rows.csv]

PLAIT_NODE_SIZE ranks count as a node, for plait and (NCCL_HOSTID) for NCCL; NCCL then uses sockets
between nodes. The program checks every collective, eager and in a graph, and sends and receives
around all ranks. In nodes of a single rank plait may serve no all_reduce. In nodes of two plait
must serve some, but none below 256 KiB. In larger nodes the measured rows decide which longer calls
plait serves. With PLAIT_ALGO=multi_node plait serves all requests that the engines serve in a node,
short all_reduces too.

Then all_reduces alternate with NCCL's own: a process group of the same ranks left to NCCL. Rank 0
prints a JSON line per finding. Exit status 1 = a check failed, 3 = at some size NCCL took less than
--least of plait's time. By name that limit counts from 256 KiB on: below, multi_node is used only
if named. Every wait has a deadline.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.lib.drop_in import leave_new, served

NODE_SIZE = int(os.environ.get("PLAIT_NODE_SIZE", "1"))
IS_NAMED = os.environ.get("PLAIT_ALGO", "").startswith("multi_node")
LEAST_BYTES = 256 << 10  # kLeastNodeBytes, src/comm/choose/multinode_choice.hpp
COUNTS = (64, 4096, 100_003)
SIZES = (4 << 10, 64 << 10, LEAST_BYTES, 1 << 20, 16 << 20, 64 << 20, 256 << 20)
SECONDS = 400


def values(count: int, rank: int) -> torch.Tensor:
    """Integers below 13, so that sums are exact."""
    return ((torch.arange(count, device="cuda") * 7 + rank * 3 + 1) % 13).float()


def total(count: int) -> torch.Tensor:
    """Sum of all ranks' values."""
    return torch.stack([values(count, rank) for rank in range(dist.get_world_size())]).sum(0)


def gathered(count: int) -> torch.Tensor:
    """All ranks' values, in rank order."""
    return torch.cat([values(count, rank) for rank in range(dist.get_world_size())])


Call = Callable[[], None]


def cases(count: int) -> dict[str, tuple[Call, torch.Tensor, torch.Tensor]]:
    """By collective: the call, the output, and the expected values."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    root = ranks - 1
    mine, wide = values(count, rank), values(count * ranks, rank)
    one = {name: torch.full((count,), -1.0, device="cuda") for name in "abc"}
    all_ = {name: torch.full((count * ranks,), -1.0, device="cuda") for name in "ab"}
    part = slice(rank * count, (rank + 1) * count)
    crossed = torch.cat([values(count * ranks, peer)[part] for peer in range(ranks)])
    reduced = total(count) if rank == root else mine

    def all_reduce() -> None:
        one["a"].copy_(mine)
        dist.all_reduce(one["a"])

    def broadcast() -> None:
        one["b"].copy_(mine)
        dist.broadcast(one["b"], root)

    def reduce() -> None:
        one["c"].copy_(mine)
        dist.reduce(one["c"], root)

    scattered = torch.full((count,), -1.0, device="cuda")
    dealt = torch.full((count,), -1.0, device="cuda")
    come = torch.full((count,), -1.0, device="cuda")
    collected = torch.full((count * ranks,), -1.0, device="cuda")
    parts = list(values(count * ranks, root).chunk(ranks)) if rank == root else None

    def gather() -> None:
        dist.gather(mine, list(collected.chunk(ranks)) if rank == root else None, root)

    def scatter() -> None:
        dist.scatter(dealt, parts, root)

    def send_recv() -> None:
        there, here = (rank + 1) % ranks, (rank - 1) % ranks
        ends = [dist.P2POp(dist.isend, mine, there), dist.P2POp(dist.irecv, come, here)]
        for one in dist.batch_isend_irecv(ends):
            one.wait()

    return {
        "all_reduce": (all_reduce, one["a"], total(count)),
        "broadcast": (broadcast, one["b"], values(count, root)),
        "reduce": (reduce, one["c"] if rank == root else mine, reduced),
        "reduce_scatter": (
            lambda: dist.reduce_scatter_tensor(scattered, wide),
            scattered,
            total(count * ranks)[part],
        ),
        "all_gather": (
            lambda: dist.all_gather_into_tensor(all_["a"], mine),
            all_["a"],
            gathered(count),
        ),
        "all_to_all": (lambda: dist.all_to_all_single(all_["b"], wide), all_["b"], crossed),
        "gather": (gather, collected, gathered(count) if rank == root else collected),
        "scatter": (scatter, dealt, values(count * ranks, root)[part]),
        "send_recv": (send_recv, come, values(count, (rank - 1) % ranks)),
    }


def in_graph(call: Call) -> Callable[[], None]:
    """Captures the call into a graph and replays it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def is_wrong_choice(taken: set[int]) -> bool:
    """True if plait served all_reduces that plait must not serve, or missed required calls."""
    may = bool(served()) and NODE_SIZE > 1
    must = may and (IS_NAMED or NODE_SIZE == 2)
    is_short = any(4 * count < LEAST_BYTES for count in taken)
    return (must and not taken) or (not may and bool(taken)) or (is_short and not IS_NAMED)


def check() -> int:
    """Checks every collective and size; returns the number of failures on any rank."""
    failed, taken = 0, set()  # counts of all_reduces that plait served
    for count in COUNTS:
        for name, (call, found, wanted) in cases(count).items():
            before = served()
            call()
            torch.cuda.synchronize()
            good = bool(torch.equal(found, wanted))
            by_plait = bool(before) and served()[0] > before[0]
            taken |= {count} if by_plait and name == "all_reduce" else set()
            replay = in_graph(call)
            for _ in range(5):
                replay()
            torch.cuda.synchronize()
            good &= bool(torch.equal(found, wanted))
            everywhere = torch.tensor([int(good)], device="cuda")
            dist.all_reduce(everywhere, dist.ReduceOp.MIN)
            failed += not everywhere.item()
            if dist.get_rank() == 0 or not good:
                row = {"check": name, "count": count, "ok": good, "by_plait": by_plait}
                print(json.dumps(row), flush=True)
    return failed + int(is_wrong_choice(taken))


def took_us(data: torch.Tensor, group: dist.ProcessGroup) -> float:
    """Time of an all_reduce, from a few in a row."""
    calls = 5
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    start.record()
    for _ in range(calls):
        dist.all_reduce(data, group=group)
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / calls


def compare(csv: str) -> dict[int, float]:
    """Times all_reduces in turn on the same nodes: plait with NCCL between nodes, and NCCL alone.

    Returns NCCL's time divided by plait's, by size.
    """
    leave_new(True)
    left = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(torch.ones(1, device="cuda"), group=left)  # creates the communicator now
    torch.cuda.synchronize()
    leave_new(False)
    groups = {"plait": dist.group.WORLD, "nccl": left}
    lines = ["bytes,nodes,node_size,plait_us,nccl_us,ratio"]
    ratios: dict[int, float] = {}
    for size in SIZES:
        data = torch.zeros(size // 4, device="cuda")
        took: dict[str, list[float]] = {key: [] for key in groups}
        for number in range(14):
            for key in sorted(groups, reverse=number % 2 == 1):
                one = took_us(data, groups[key])
                if number >= 3:
                    took[key].append(one)
        us = {key: statistics.median(times) for key, times in took.items()}
        slowest = torch.tensor(
            list(us.values()), device="cuda"
        )  # so that all ranks report the same
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=left)
        us = dict(zip(us, slowest.tolist(), strict=True))
        nodes = dist.get_world_size() // NODE_SIZE
        row = {"bytes": size, "nodes": nodes, "node_size": NODE_SIZE}
        row |= {f"{key}_us": round(us[key], 2) for key in ("plait", "nccl")}
        row["ratio"] = ratios[size] = round(us["nccl"] / us["plait"], 4)
        lines.append(",".join(str(word) for word in row.values()))
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
    if csv and dist.get_rank() == 0:
        Path(csv).write_text("\n".join(lines) + "\n")
    return ratios


def main() -> int:
    """Runs all checks, then times; returns 1 if a check failed, 3 if plait was too slow."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", default="")
    parser.add_argument("--least", type=float, default=0.95, help="of NCCL's time over plait's")
    args = parser.parse_args()
    signal.alarm(SECONDS)
    local = int(os.environ["LOCAL_RANK"])
    os.environ["NCCL_HOSTID"] = f"pretended-{local // NODE_SIZE}"
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.setdefault("NCCL_MNNVL_ENABLE", "0")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    torch.cuda.set_device(local)
    dist.init_process_group(
        "nccl", device_id=torch.device("cuda", local), timeout=timedelta(seconds=120)
    )
    failed = check()
    ratios = compare(args.csv)
    least_bytes = LEAST_BYTES if IS_NAMED else 0
    slow = {size: ratio for size, ratio in ratios.items() if ratio < args.least}
    slow = {size: ratio for size, ratio in slow.items() if size >= least_bytes}
    if dist.get_rank() == 0:
        print(json.dumps({"failed": failed, "slow": slow, "served": served()}), flush=True)
    dist.destroy_process_group()
    return 1 if failed else 3 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
