"""`plait bench`: time and check every strategy of a collective, as nccl-tests does.

Each row is one (type, size, strategy). What rank-order strategies give is compared bit by bit with
what it must be and with every other; other orders' floats with a sum in float64, within their
roundings. Outputs are poisoned before each check.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import plait
from plait.arrays import DTYPE_OF_TYPE
from plait.bench.oracle import Oracle, poison
from plait.bench.sizes import bandwidth, count_for
from plait.launch import Emit

# A row's timed calls take about this long at most, however slow the strategy.
ROW_BUDGET_S = 1.0


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """One rank of a benchmark: every (type, size) of the task, every strategy of it."""
    comm = plait.init(topology=task["topology"], masks=task["masks"])
    for plait_type in task["types"]:
        for size_bytes in task["sizes"]:
            for row in _rows(comm, task, plait_type, size_bytes):
                if comm.rank == 0:
                    emit(row)


def _rows(
    comm: plait.Communicator, task: dict[str, Any], plait_type: str, size_bytes: int
) -> Iterator[dict[str, Any]]:
    collective = task["collective"]
    count = count_for(collective, size_bytes, plait_type, comm.ranks)
    request = plait.Request(
        collective, count, plait_type, task["op"], comm.ranks, task["root"], task["peer"]
    )
    oracle = Oracle(request, task["seed"])
    for strategy, params in chosen(comm, request, task["strategies"]):
        yield _row(comm, task, request, oracle, strategy, params)


def chosen(
    comm: plait.Communicator, request: plait.Request, wanted: list[str]
) -> list[tuple[str, dict[str, int]]]:
    """The strategies to run: plait's own choice for [], each one's best proposal for ["all"]."""
    if not wanted:
        plan = comm.plan_for(request)
        return [(plan.strategy, plan.params)]
    plans, _ = plait.propose(comm.topology, request)
    best: dict[str, dict[str, int]] = {}
    for plan in plans:
        if not plan.symmetric:  # ranks do not see each other's arrays
            best.setdefault(plan.strategy, plan.params)
    names = sorted(best) if wanted == ["all"] else [name for name in wanted if name in best]
    return [(name, best[name]) for name in names]


def _row(
    comm: plait.Communicator,
    task: dict[str, Any],
    request: plait.Request,
    oracle: Oracle,
    strategy: str,
    params: dict[str, int],
) -> dict[str, Any]:
    plan = comm.plan_for(request, strategy, params)
    source = oracle.input(comm.rank)
    size = DTYPE_OF_TYPE[request.type].itemsize
    output = np.empty(request.output_bytes(comm.rank) // size, source.dtype)
    poison(output)
    core, addresses = comm._core, (source.ctypes.data, output.ctypes.data)

    def call() -> None:
        core.run_request(request, *addresses, strategy, params, 1.0)

    call()
    bitwise = plan.sum_order == "rank_order"
    wrong, digest = _check(comm, oracle, output, bitwise) if task["check"] else (0, "")
    seconds = _time(comm, call, task["warmup"], task["iters"])
    in_place_wrong, in_place_seconds = _in_place(comm, task, oracle, (strategy, params), bitwise)
    worst = _largest(comm, seconds)
    return {
        "size": request.message_bytes(),
        "count": request.count,
        "type": request.type,
        "op": request.op,
        "root": request.root,
        "strategy": plan.label,
        "name": strategy,
        "sum_order": plan.sum_order,
        "time_us": worst * 1e6,
        "wrong": wrong,
        "digest": digest,
        **bandwidth(request, worst),
        "in_place_us": None if in_place_seconds is None else in_place_seconds * 1e6,
        "in_place_wrong": in_place_wrong,
    }


def _in_place(
    comm: plait.Communicator,
    task: dict[str, Any],
    oracle: Oracle,
    chosen: tuple[str, dict[str, int]],
    bitwise: bool,
) -> tuple[int | None, float | None]:
    """(wrong, seconds) of the in-place form; all_reduce only, where it is the same buffer."""
    request = oracle.request
    if not task["in_place"] or request.collective != "all_reduce":
        return None, None
    buffer = oracle.input(comm.rank).copy()
    address = buffer.ctypes.data

    def call() -> None:
        comm._core.run_request(request, address, address, *chosen, 1.0)

    call()
    wrong = _check(comm, oracle, buffer, bitwise)[0] if task["check"] else 0
    buffer[:] = oracle.input(comm.rank)
    return wrong, _largest(comm, _time(comm, call, task["warmup"], task["iters"]))


def _check(
    comm: plait.Communicator, oracle: Oracle, output: np.ndarray[Any, Any], bitwise: bool
) -> tuple[int, str]:
    """(wrong elements over all ranks, digest of all ranks' outputs).

    Where every rank must hold the same output, each rank checks its own part of it against the
    oracle and the digests show the rest; else each checks all of its own.
    """
    shared = oracle.request.collective in ("all_reduce", "all_gather", "broadcast")
    digest = hashlib.blake2b(output.view(np.uint8).data, digest_size=16).hexdigest()
    lo, hi = 0, len(output)
    if shared:
        lo, hi = (len(output) * part // comm.ranks for part in (comm.rank, comm.rank + 1))
    wrong = oracle.wrong(comm.rank, output[lo:hi], lo, bitwise)
    said = [part.decode().split() for part in comm.exchange(f"{wrong} {digest}".encode())]
    total = sum(int(one) for one, _ in said)
    digests = [one for _, one in said]
    if shared and len(set(digests)) > 1:
        total += len(output)
    return total, hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()


def _time(comm: plait.Communicator, call: Any, warmup: int, iters: int) -> float:
    """Mean seconds a call on this rank, over as many calls as the row's budget allows."""
    start = time.perf_counter()
    for _ in range(max(warmup, 1)):
        call()
    one = _largest(comm, (time.perf_counter() - start) / max(warmup, 1))
    calls = max(1, min(iters, int(ROW_BUDGET_S / max(one, 1e-9))))
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def _largest(comm: plait.Communicator, value: float) -> float:
    """The largest of all ranks' values."""
    return max(float(part) for part in comm.exchange(repr(value).encode()))


def bitwise_groups(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Rank-order rows by what was asked: each group's digests must all be equal."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["sum_order"] == "rank_order" and row["digest"]:
            groups.setdefault((row["type"], row["op"], row["count"]), []).append(row)
    return groups


def bitwise_equal(rows: list[dict[str, Any]]) -> bool:
    """True where every rank-order strategy gave the same bits for the same request."""
    return all(
        len({row["digest"] for row in group}) == 1 for group in bitwise_groups(rows).values()
    )
