"""`plait bench`: time and check every strategy of a collective, as nccl-tests does.

Each row is one (type, size, strategy). What rank-order strategies give is compared bit by bit with
what it must be and with every other; other orders' floats with a sum in float64, within their
roundings. Outputs are poisoned before each check.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import plait
from plait import reductions
from plait.arrays import DTYPE_OF_TYPE
from plait.launch import Emit

# A row's timed calls take about this long at most, however slow the strategy.
ROW_BUDGET_S = 1.0


# No machine has as much memory; numbers much larger would not even fit the core's integers.
MOST_BYTES = 1 << 40
MOST_SIZES = 10_000  # rows of a run


def parse_bytes(text: str) -> int:
    """'64M' -> 67108864; K, M and G are powers of two, as in nccl-tests."""
    wanted = "wanted a size such as 8, 1K, 64M or 1G, 1024G at most"
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    try:
        scale = units.get(number[-1:], 1)
        size = float(number[:-1] if scale > 1 else number) * scale
    except ValueError:
        raise plait.InvalidArgumentError(f"{wanted}, found {text!r}") from None
    if not 0 <= size <= MOST_BYTES:  # nor is a NaN
        raise plait.InvalidArgumentError(f"{wanted}, found {text!r}")
    return int(size)


def parse_strategy(text: str, wanted: str) -> tuple[str, dict[str, int]]:
    """'direct:pieces=2,throttle=1' -> ('direct', {...}); `wanted` is what the error asks for."""
    name, _, rest = text.partition(":")
    try:
        pairs = [part.split("=") for part in rest.split(",") if part]
        return name, {key: int(value) for key, value in pairs}
    except ValueError:
        raise plait.InvalidArgumentError(f"wanted {wanted}, found {text!r}") from None


def sizes(first: int, last: int, factor: int, step: int) -> Iterator[int]:
    """The message sizes from first to last, times factor (or plus step where step > 0)."""
    if first < 0 or last < first or (step <= 0 and factor < 2):
        raise plait.InvalidArgumentError(
            f"wanted 0 <= first <= last and a factor >= 2 or a step > 0, found {first}, {last}, "
            f"factor {factor}, step {step}"
        )
    if step > 0 and (last - first) // step >= MOST_SIZES:
        raise plait.InvalidArgumentError(
            f"wanted at most {MOST_SIZES} sizes, found {(last - first) // step + 1}: take a larger "
            "--step-bytes"
        )
    size = first
    while size <= last:
        yield size
        size = size + step if step > 0 else max(size, 1) * factor


def pattern(seed: int, count: int, plait_type: str) -> np.ndarray[Any, Any]:
    """`count` elements that a seed determines: small enough that no sum of 64 overflows."""
    generator = np.random.Generator(np.random.SFC64(seed))
    dtype = DTYPE_OF_TYPE[plait_type]
    if plait_type.startswith(("int", "uint")):
        low = 0 if plait_type.startswith("uint") else -2
        return generator.integers(low, 3, count).astype(dtype)
    return generator.random(count, dtype=np.float32).astype(dtype)


def count_for(collective: str, size_bytes: int, plait_type: str, ranks: int) -> int:
    """The request count whose message is `size_bytes`, by nccl-tests' conventions."""
    elements = size_bytes // DTYPE_OF_TYPE[plait_type].itemsize
    gathers = collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    return elements // ranks if gathers else elements


class Oracle:
    """What a request's outputs must be, from the ranks' seeds."""

    def __init__(self, request: plait.Request, seed: int) -> None:
        self.request = request
        size = DTYPE_OF_TYPE[request.type].itemsize
        self.inputs = [
            pattern(seed * 1000 + rank, request.input_bytes(rank) // size, request.type)
            for rank in range(request.ranks)
        ]

    def expected(
        self, rank: int, lo: int, hi: int, in_rank_order: bool = True
    ) -> np.ndarray[Any, Any]:
        """Elements lo..hi of this rank's output; sums in rank order, else in float64."""
        request, count, ranks = self.request, self.request.count, self.request.ranks
        name = request.collective
        if name in reductions.REDUCING:
            at = rank * count if name == "reduce_scatter" else 0
            parts = [source[at + lo : at + hi] for source in self.inputs]
            if not in_rank_order:
                return reductions.in_float64(request.op, parts)
            return reductions.in_rank_order(request.op, request.type, parts)
        if name in ("all_gather", "gather"):
            return np.concatenate(self.inputs)[lo:hi]
        if name in ("broadcast", "copy"):
            return self.inputs[request.root][lo:hi]
        if name == "scatter":
            return self.inputs[request.root][rank * count + lo : rank * count + hi]
        if name == "send_recv":
            return self.inputs[(rank - 1) % ranks][lo:hi]
        parts = [source[rank * count : (rank + 1) * count] for source in self.inputs]
        return np.concatenate(parts)[lo:hi]

    def wrong(
        self, rank: int, output: np.ndarray[Any, Any], lo: int, hi: int, bitwise: bool = False
    ) -> int:
        """How many of output[lo:hi] are not what they must be; see reductions.wrong_elements."""
        return reductions.wrong_elements(
            self.request, output[lo:hi], bitwise, partial(self.expected, rank, lo, hi)
        )


def poison(output: np.ndarray[Any, Any]) -> None:
    """Fills an output with bytes that no right result has, so that an unwritten one shows."""
    output.view(np.uint8).fill(0xAB)


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
    source = oracle.inputs[comm.rank]
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


def bandwidth(request: plait.Request, seconds: float) -> dict[str, float]:
    algbw = request.message_bytes() / max(seconds, 1e-12) / 1e9
    return {"algbw": algbw, "busbw": algbw * request.busbw_factor()}


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
    buffer = oracle.inputs[comm.rank].copy()
    address = buffer.ctypes.data

    def call() -> None:
        comm._core.run_request(request, address, address, *chosen, 1.0)

    call()
    wrong = _check(comm, oracle, buffer, bitwise)[0] if task["check"] else 0
    buffer[:] = oracle.inputs[comm.rank]
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
    wrong = oracle.wrong(comm.rank, output, lo, hi, bitwise) if len(output) else 0
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
