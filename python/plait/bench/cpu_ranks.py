"""`plait bench`: time and check every strategy of a collective, as nccl-tests does.

Each row is a (type, size, strategy). Results of rank-order strategies are compared bit by bit with
the expected results and with each other. Floats of other orders are compared with a sum in float64,
within the roundings of the order. Outputs are poisoned before each check.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import plait
from plait.arrays import DTYPE_OF_TYPE
from plait.bench.oracle import Oracle, poison
from plait.bench.sizes import bandwidth, parse_strategy, request_for
from plait.launch import Emit
from plait.planning import load

# Upper limit of a row's timed calls, s.
ROW_BUDGET_S = 1.0


Run = Callable[[int, int], None]  # (address of the input, of the output)


class RunnablePlan(NamedTuple):
    """A plan and the function that runs it."""

    plan: plait.Plan
    run: Run


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """Runs a rank of a benchmark job."""
    for file in task.get("load", []):
        load(file)
    bench(plait.init(topology=task["topology"], masks=task["masks"]), task, emit)


def bench(comm: plait.Communicator, task: dict[str, Any], emit: Emit) -> None:
    """Runs every (type, size, strategy) of the task; rank 0 emits the rows."""
    if task.get("plan"):
        plan = plait.Plan.from_json(task["plan"])
        _emit_rows(comm, task, plan.request, [_as_it_is(comm, plan)], emit)
        return
    for plait_type in task["types"]:
        has_empty = False
        for size_bytes in task["sizes"]:
            request = request_for(
                *(task["collective"], size_bytes, plait_type, task["op"]),
                *(comm.ranks, task["root"], task["peer"]),
                shape=task.get("counts", ""),
            )
            if request.count == 0 and has_empty:  # sizes below an element are the same request
                continue
            has_empty = has_empty or request.count == 0
            runnables, refusals = chosen(comm, request, task["strategies"])
            if comm.rank == 0:
                for name, reason in refusals:
                    emit({"refused": name, "reason": reason})
            _emit_rows(comm, task, request, runnables, emit)


def _emit_rows(
    comm: plait.Communicator,
    task: dict[str, Any],
    request: plait.Request,
    runnables: list[RunnablePlan],
    emit: Emit,
) -> None:
    oracle = Oracle(request, task["seed"])
    for runnable in runnables:
        row = _row(comm, task, oracle, runnable)
        if comm.rank == 0:
            emit(row)


def _as_it_is(comm: plait.Communicator, plan: plait.Plan) -> RunnablePlan:
    return RunnablePlan(plan, lambda source, result: comm._core.run_plan(plan, source, result, 1.0))


def _by_name(
    comm: plait.Communicator, request: plait.Request, name: str, params: dict[str, int]
) -> RunnablePlan:
    def run(source: int, result: int) -> None:
        comm._core.run_request(request, source, result, name, params, 1.0)

    return RunnablePlan(comm.plan_for(request, name, params), run)


def chosen(
    comm: plait.Communicator, request: plait.Request, wanted: list[str]
) -> tuple[list[RunnablePlan], list[tuple[str, str]]]:
    """Returns the plans to run, and (name, reason) of named strategies without a plan.

    [] = plait's choice; ["all"] = the best proposal of each strategy. A name without parameters
    takes the best proposal.
    """
    if not wanted:
        plan = comm.plan_for(request)
        return [_by_name(comm, request, plan.strategy, plan.params)], []
    plans, refused = plait.propose(comm.topology, request)
    best: dict[str, dict[str, int]] = {}
    for plan in plans:
        if not plan.symmetric:  # ranks cannot access each other's arrays
            best.setdefault(plan.strategy, plan.params)
    if wanted == ["all"]:
        return [_by_name(comm, request, name, best[name]) for name in sorted(best)], []
    runnables, refusals, why = [], [], dict(refused)
    for word in wanted:
        name, params = parse_strategy(word, "strategies such as ring:segments=2")
        if not params and name not in best:
            refusals.append((word, why.get(name, "it wants buffers that all ranks see")))
            continue
        try:
            runnables.append(_by_name(comm, request, name, params or best[name]))
        except plait.UnsupportedError as error:
            refusals.append((word, str(error)))
    return runnables, refusals


def _row(
    comm: plait.Communicator,
    task: dict[str, Any],
    oracle: Oracle,
    runnable: RunnablePlan,
) -> dict[str, Any]:
    request, plan = oracle.request, runnable.plan
    source = oracle.input(comm.rank)
    size = DTYPE_OF_TYPE[request.type].itemsize
    output = np.empty(request.output_bytes(comm.rank) // size, source.dtype)
    poison(output)
    addresses = source.ctypes.data, output.ctypes.data

    def call() -> None:
        runnable.run(*addresses)

    call()
    bitwise = plan.sum_order == "rank_order"
    wrong, digest = _check(comm, oracle, output, bitwise) if task["check"] else (0, "")
    seconds = _time(comm, call, task["warmup"], task["iters"])
    in_place_wrong, in_place_seconds = _in_place(comm, task, oracle, runnable.run, bitwise)
    worst = _largest(comm, seconds)
    return {
        "size": request.message_bytes(),
        "count": request.count,
        "type": request.type,
        "op": request.op,
        "root": request.root,
        "strategy": plan.label,
        "name": plan.strategy,
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
    run: Run,
    bitwise: bool,
) -> tuple[int | None, float | None]:
    """Returns (wrong, seconds) of the in-place call, for all_reduce only."""
    request = oracle.request
    if not task["in_place"] or request.collective != "all_reduce":
        return None, None
    buffer = oracle.input(comm.rank).copy()
    address = buffer.ctypes.data

    def call() -> None:
        run(address, address)

    call()
    wrong = _check(comm, oracle, buffer, bitwise)[0] if task["check"] else 0
    buffer[:] = oracle.input(comm.rank)
    return wrong, _largest(comm, _time(comm, call, task["warmup"], task["iters"]))


def _check(
    comm: plait.Communicator, oracle: Oracle, output: np.ndarray[Any, Any], bitwise: bool
) -> tuple[int, str]:
    """Returns (wrong elements of all ranks, digest of all ranks' outputs).

    If all ranks have the same output, each checks a part and digests cover the rest. Else each
    checks the whole output.
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
    """Returns mean s a call on this rank, over as many calls as the row's budget allows."""
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
    """Returns the largest of all ranks' values."""
    return max(float(part) for part in comm.exchange(repr(value).encode()))


def bitwise_groups(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Groups rank-order rows by request; digests of a group must be equal."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["sum_order"] == "rank_order" and row["digest"]:
            groups.setdefault((row["type"], row["op"], row["count"]), []).append(row)
    return groups


def bitwise_equal(rows: list[dict[str, Any]]) -> bool:
    """Returns whether all rank-order strategies gave the same bits for each request."""
    return all(
        len({row["digest"] for row in group}) == 1 for group in bitwise_groups(rows).values()
    )
