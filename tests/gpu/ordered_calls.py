"""Checks the order of a communicator's calls on several streams, in graphs and outside.

    plait run -- torchrun --nproc-per-node 2 tests/gpu/ordered_calls.py            # torch's group
    torchrun --nproc-per-node 2 tests/gpu/ordered_calls.py --native                # plait.init()

The program waits for nothing between calls, and ranks are slow at different places. Calls without
an order would run in a different order on each rank, and give wrong sums or hang. A deadline ends
hung calls (PLAIT_ARRIVE_S, 20 s unless set), and five minutes end the program. Rank 0 prints a JSON
line per check; exit status 1 = a failure.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("PLAIT_ARRIVE_S", "20")

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.lib.drop_in import served

COUNT = 3000
Reduce = Callable[[torch.Tensor, torch.cuda.Stream], None]


def rank_and_ranks() -> tuple[int, int]:
    """As torchrun says."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def input_of(number: int) -> torch.Tensor:
    """Input of this rank for call `number`."""
    rank, _ = rank_and_ranks()
    return torch.arange(COUNT, device="cuda", dtype=torch.float32) % 13 + rank + number


def total_of(number: int) -> torch.Tensor:
    """Expected output of call `number`."""
    _, ranks = rank_and_ranks()
    places = torch.arange(COUNT, device="cuda", dtype=torch.float32) % 13
    return (places + number) * ranks + ranks * (ranks - 1) // 2


def dawdle(turn: int) -> None:
    """Delays the current stream of some ranks, in turn."""
    if (turn + rank_and_ranks()[0]) % 3 == 0:
        torch.cuda._sleep(100_000)


class Sum:
    """A call that refreshes the input each time, so that replays give the same output."""

    def __init__(self, number: int) -> None:
        self.input, self.total = input_of(number), total_of(number)
        self.data = torch.zeros_like(self.input)

    def enqueue(self, reduce: Reduce, stream: torch.cuda.Stream, turn: int) -> None:
        """Enqueues the call on the stream."""
        with torch.cuda.stream(stream):
            dawdle(turn)
            self.data.copy_(self.input)
            reduce(self.data, stream)

    def right(self) -> bool:
        """Checks once all calls have ended."""
        return bool(torch.equal(self.data, self.total))


def capture(
    reduce: Reduce, sums: list[Sum], sides: list[torch.cuda.Stream]
) -> torch.cuda.CUDAGraph:
    """Fork, a call on either side, join."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        main = torch.cuda.current_stream()
        for side in sides:
            side.wait_stream(main)
        for turn, (one, side) in enumerate(zip(sums, sides, strict=True)):
            one.enqueue(reduce, side, turn)
        for side in sides:
            main.wait_stream(side)
    return graph


def forked_capture(reduce: Reduce) -> bool:
    """Two streams of the same capture, replayed a thousand times."""
    sides = [torch.cuda.Stream(), torch.cuda.Stream()]
    sums = [Sum(1), Sum(2)]
    graph = capture(reduce, sums, sides)
    good = True
    for turn in range(1000):
        graph.replay()
        if turn % 100 == 99:
            torch.cuda.synchronize()
            good &= all(one.right() for one in sums)
            for one in sums:
                one.data.zero_()
    return good


def mixed_graphs(reduce: Reduce) -> bool:
    """Two graphs and eager calls on three streams by turns."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    sums = [Sum(number) for number in (1, 2, 3, 4)]
    graphs = [capture(reduce, sums[:2], streams[:2]), capture(reduce, sums[2:], streams[1:])]
    eager = [Sum(10 + turn) for turn in range(200)]
    torch.cuda.synchronize()
    for turn in range(800):
        stream = streams[turn % 3]
        if turn % 4 == 3:
            eager[turn // 4].enqueue(reduce, stream, turn)
            continue
        with torch.cuda.stream(stream):
            dawdle(turn)
            graphs[turn % 2].replay()
    torch.cuda.synchronize()
    return all(one.right() for one in [*sums, *eager])


def begun_capture(reduce: Reduce) -> bool:
    """A call on another stream while a capture runs on the stream of the last call."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    good = True
    for turn in range(20):
        eager, captured, beside = Sum(1), Sum(2), Sum(3)
        torch.cuda.synchronize()
        eager.enqueue(reduce, first, turn)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=first, capture_error_mode="thread_local"):
            captured.enqueue(reduce, first, 1)
            beside.enqueue(reduce, second, turn + 1)
        graph.replay()
        torch.cuda.synchronize()
        good &= eager.right() and captured.right() and beside.right()
    return good


def lost_streams(reduce: Reduce) -> bool:
    """Each call on a separate stream, destroyed at once."""
    driver = ctypes.CDLL("libcuda.so.1")
    sums = [Sum(number) for number in range(100)]
    torch.cuda.synchronize()
    for turn, one in enumerate(sums):
        handle = ctypes.c_void_p()
        if driver.cuStreamCreate(ctypes.byref(handle), 1) != 0:
            return False
        one.enqueue(reduce, torch.cuda.ExternalStream(handle.value), turn)
        if driver.cuStreamDestroy_v2(handle) != 0:
            return False
    torch.cuda.synchronize()
    return all(one.right() for one in sums)


def by_group() -> Reduce:
    """torch's group: calls on the group's stream and on the current stream in turn."""
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    calls = [0]

    def reduce(data: torch.Tensor, _stream: torch.cuda.Stream) -> None:
        calls[0] += 1
        work = dist.all_reduce(data, async_op=calls[0] % 2 == 0)
        if work is not None:
            work.wait()

    return reduce


def by_plait() -> Reduce:
    """plait.init(): calls on the stream given."""
    import plait

    comm = plait.init(device=torch.cuda.current_device())
    return lambda data, stream: comm.all_reduce(data, out=data, stream=stream)


def main() -> int:
    """Runs every check; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--native", action="store_true", help="plait.init() in place of torch's")
    args = parser.parse_args()
    faulthandler.dump_traceback_later(300, exit=True)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    reduce = by_plait() if args.native else by_group()
    warm = Sum(0)  # creates communicators
    warm.enqueue(reduce, torch.cuda.current_stream(), 1)
    torch.cuda.synchronize()
    failed = 0
    for check in (forked_capture, mixed_graphs, begun_capture, lost_streams):
        before, start = served(), time.monotonic()
        good = check(reduce)
        failed += not good
        counted = [now - then for now, then in zip(served(), before, strict=False)]
        row = {"check": check.__name__, "rank": rank_and_ranks()[0], "ok": good}
        row |= {"native": args.native, "served": counted, "s": round(time.monotonic() - start, 2)}
        if rank_and_ranks()[0] == 0 or not good:
            print(json.dumps(row), flush=True)
    if not args.native:
        dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
