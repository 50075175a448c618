"""Programs of tests on several ranks; each runs as (task, emit) on every rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
from array_libraries import library
from gpu_stand_ins import FakeGpuArray

import plait
from plait.arrays import DTYPE_OF_TYPE
from plait.bench.oracle import Oracle, poison
from plait.launch import Emit


def wrong_through_core(
    comm: plait.Communicator, request: plait.Request, plait_type: str, seed: int
) -> int:
    """Runs a request with random input and poisoned output; returns wrong elements."""
    oracle = Oracle(request, seed=seed)
    size = DTYPE_OF_TYPE[plait_type].itemsize
    output = np.empty(request.output_bytes(comm.rank) // size, DTYPE_OF_TYPE[plait_type])
    poison(output)
    source = oracle.input(comm.rank)
    comm._core.run_request(request, source.ctypes.data, output.ctypes.data, "", {}, 1.0)
    return oracle.wrong(comm.rank, output, bitwise=False)


def one_large_call(task: dict[str, Any], emit: Emit) -> None:
    """Runs an all_reduce of 32 MiB."""
    plait.init().all_reduce(np.ones(1 << 22))


def half_an_identity(task: dict[str, Any], emit: Emit) -> None:
    """Makes communicators with a rank alone and a number of ranks alone; emits the errors."""
    whole = plait.init()
    by_rank, by_ranks = plait.init(rank=whole.rank), plait.init(ranks=whole.ranks)
    said = []
    for wrong in ({"rank": (whole.rank + 1) % whole.ranks}, {"ranks": whole.ranks + 1}):
        try:
            plait.init(**wrong)
        except plait.InvalidArgumentError as error:
            said.append(str(error))
    total = [comm.all_reduce(np.ones(1)).tolist() for comm in (by_rank, by_ranks)]
    emit({"rank": by_ranks.rank, "total": total, "said": said})


def refused(task: dict[str, Any], emit: Emit) -> None:
    """Fails with an error of plait."""
    plait.load_topology("no such machine")


def wait_for_ever(task: dict[str, Any], emit: Emit) -> None:
    """Writes the pid to a file and runs for ever."""
    plait.init().all_reduce(np.ones(4))
    with open(task["pids"], "a") as file:
        file.write(f"{os.getpid()}\n")
    while True:
        time.sleep(0.1)


def collectives(task: dict[str, Any], emit: Emit) -> None:
    """Runs every request of the task by the core's call; emits wrong elements."""
    comm = plait.init()
    wrong = []
    for collective, count, plait_type, op, root in task["requests"]:
        peer = (root + 1) % comm.ranks
        request = plait.Request(collective, count, plait_type, op, comm.ranks, root, peer)
        wrong.append(wrong_through_core(comm, request, plait_type, seed=count + 7))
    emit({"rank": comm.rank, "wrong": wrong})


def methods(task: dict[str, Any], emit: Emit) -> None:
    """Calls every method of Communicator once, on small integers; emits results as lists."""
    del task
    comm = plait.init()
    n, me = comm.ranks, comm.rank
    mine = np.arange(n * 2, dtype=np.int32) + 100 * me
    said: dict[str, Any] = {
        "all_reduce": comm.all_reduce(mine),
        "max": comm.all_reduce(mine, "max"),
        "reduce_scatter": comm.reduce_scatter(mine),
        "all_gather": comm.all_gather(mine),
        "broadcast": comm.broadcast(mine, root=1),
        "reduce": comm.reduce(mine, root=1),
        "all_to_all": comm.all_to_all(mine),
        "gather": comm.gather(mine, root=1),
        "scatter": comm.scatter(mine, root=1),
        "send_recv": comm.send_recv(mine),
        "copy": comm.copy(mine, src=0, dst=1),
    }
    in_place = mine.copy()
    comm.all_reduce(in_place, out=in_place)
    said["in_place"] = in_place
    comm.barrier()
    said["exchange"] = np.array([len(part) for part in comm.exchange(b"x" * (me + 1))])
    calls = comm.counters().calls
    lists = {name: None if value is None else value.tolist() for name, value in said.items()}
    emit({"rank": me, "calls": calls, **lists})


def pairs(task: dict[str, Any], emit: Emit) -> None:
    """Sends, receives and exchanges between every pair of ranks."""
    comm = plait.init()
    me, wrong = comm.rank, []
    for one in range(comm.ranks):
        for other in range(one + 1, comm.ranks):
            if me not in (one, other):
                continue
            peer = one + other - me
            for count in task["counts"]:
                mine = np.arange(count, dtype=np.float32) + 1000 * me
                theirs = mine + 1000 * (peer - me)
                got = np.full(count, -1, np.float32)
                if me == one:
                    comm.send(mine, peer)
                    comm.recv(got, peer)
                else:
                    comm.recv(got, peer)
                    comm.send(mine, peer)
                both = comm.exchange_with(mine, peer)
                if not (np.array_equal(got, theirs) and np.array_equal(both, theirs)):
                    wrong.append([peer, count])
    said = {}
    for name, peer in {"self": me, "none": comm.ranks, "kind": "1"}.items():
        try:
            comm.send(np.zeros(1), peer)
        except plait.Error as error:
            said[name] = type(error).__name__
    emit({"rank": me, "wrong": wrong, "said": said, "calls": comm.counters().calls})


def arrays_of_many_kinds(task: dict[str, Any], emit: Emit) -> None:
    """Runs all_reduce on a bytearray (buffer protocol), a DLPack object and a bf16 array."""
    del task
    comm = plait.init()

    class OnlyDlpack:
        """Hides an array behind DLPack."""

        def __init__(self, array: np.ndarray[Any, Any]) -> None:
            self.array = array

        def __dlpack__(self, **how: Any) -> Any:
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    by_buffer = comm.all_reduce(bytearray([1, 2, 3]))
    by_dlpack = comm.all_reduce(OnlyDlpack(np.ones(5, np.float32)))
    half = comm.all_reduce(np.full(3, 1.5, DTYPE_OF_TYPE["bf16"]))
    emit(
        {
            "rank": comm.rank,
            "buffer": by_buffer.tolist(),
            "dlpack": by_dlpack.tolist(),
            "bf16": half.astype(np.float32).tolist(),
            "bf16_type": str(half.dtype),
        }
    )


def arrays_of_a_library(task: dict[str, Any], emit: Emit) -> None:
    """Calls every method that makes an array, on every type; emits differences from numpy."""
    comm, one = plait.init(), library(task["library"])
    wrong, tried = [], 0
    calls = {
        "all_reduce": {},
        "reduce_scatter": {},
        "all_gather": {},
        "broadcast": {"root": 1},
        "reduce": {"root": 1},
        "all_to_all": {},
        "gather": {"root": 1},
        "scatter": {"root": 1},
        "send_recv": {},
        "copy": {"src": 0, "dst": 1},
        "exchange_with": {"peer": 1 - comm.rank},
    }
    for plait_type in one.types:
        mine = (np.arange(8).reshape(4, 2) + comm.rank).astype(DTYPE_OF_TYPE[plait_type])
        array = one.make(mine)
        for name, how in calls.items():
            wanted, found = getattr(comm, name)(mine, **how), getattr(comm, name)(array, **how)
            tried += 1
            if wanted is None or found is None:
                same = wanted is found
            else:
                same = type(found) is type(array)
                read = one.read(found) if same else wanted
                same = same and (read.dtype, read.shape) == (wanted.dtype, wanted.shape)
                same = same and read.tobytes() == wanted.tobytes()
            if not same:
                wrong.append([plait_type, name, type(found).__name__])
    emit({"rank": comm.rank, "wrong": wrong, "tried": tried})


def late(task: dict[str, Any], emit: Emit) -> None:
    """Rank 1 is 4 s late for bootstrap, the first call, or its end of a send."""
    late_to, is_late = task["late_to"], os.environ["RANK"] == "1"
    time.sleep(4 if is_late and late_to == "meeting" else 0)
    comm = plait.init()
    time.sleep(4 if is_late and late_to == "call" else 0)
    comm.barrier()
    time.sleep(4 if is_late and late_to == "send" else 0)
    word = np.ones(1, np.float32)
    if late_to == "send" and comm.rank != 2:
        comm.exchange_with(word, 1 - comm.rank)
    comm.barrier()
    emit({"rank": comm.rank})


def hangs(task: dict[str, Any], emit: Emit) -> None:
    """Rank 2 is late for the second call, is stopped before it or never makes it; or all idle, for
    2 s or until a file exists."""
    how, comm = task["how"], plait.init()
    comm.barrier()
    emit({"rank": comm.rank, "pid": os.getpid()})
    if how == "until":
        while not os.path.exists(task["file"]):
            time.sleep(0.02)
    elif how == "idle":
        time.sleep(2)
    elif how == "stopped" and comm.rank == 2:
        resume = f"import os, time; time.sleep(6); os.kill({os.getpid()}, {int(signal.SIGCONT)})"
        with subprocess.Popen([sys.executable, "-c", resume]):
            os.kill(os.getpid(), signal.SIGSTOP)
    elif comm.rank == 2:
        time.sleep(6 if how == "absent" else 600)
    comm.all_reduce(np.ones(64, np.float32))


def bad_call(task: dict[str, Any], emit: Emit) -> None:
    """Makes a call that is wrong on some rank; emits the error and the seconds taken."""
    comm = plait.init(arrive_s=20.0)
    me, kind = comm.rank, task["kind"]
    array = np.ones(64, np.float32)
    whole = plait.Request("all_reduce", 64, "fp32", "sum", comm.ranks)
    calls = {
        "type": lambda: comm.all_reduce(array if me else array.astype(np.float64)),
        "count": lambda: comm.all_reduce(array[: 64 - me]),
        "op": lambda: comm.all_reduce(array, "sum" if me else "max"),
        "collective": lambda: comm.all_reduce(array) if me else comm.all_gather(array),
        "root": lambda: comm.broadcast(array, root=me),
        "strategy": lambda: comm.all_reduce(array, strategy="direct" if me else "ring"),
        "read_only": lambda: comm.all_reduce(array, out=_read_only(array) if me else array.copy()),
        "strided": lambda: comm.all_reduce(np.ones(128, np.float32)[::2] if me else array),
        "unknown_op": lambda: comm.all_reduce(array, "average" if me else "sum"),
        "not_array": lambda: comm.all_reduce("text" if me else array),
        "small_output": lambda: comm.all_reduce(array, out=np.empty(3, np.float32) if me else None),
        "bad_root": lambda: comm.broadcast(array, root=7 if me else 0),
        "null": lambda: comm._core.run_request(
            plait.Request("all_reduce", 64, "fp32", "sum", comm.ranks),
            0 if me else array.ctypes.data,
            array.ctypes.data,
        ),
        "scalar": lambda: comm.all_reduce(array, "premul_sum", scalar="two" if me else 2.0),
        "params": lambda: comm.all_reduce(
            array, strategy="ring", params={"segments": "two"} if me else {"segments": 2}
        ),
        "params_kind": lambda: comm.all_reduce(array, strategy="ring", params=7 if me else None),
        "params_size": lambda: comm.all_reduce(
            array, strategy="ring", params={"segments": 1 << 70} if me else None
        ),
        "strategy_kind": lambda: comm.all_reduce(array, strategy=7 if me else "ring"),
        "strategy_text": lambda: comm.all_reduce(array, strategy="\ud800" if me else ""),
        "unknown_word": lambda: comm.all_reduce(array, **({"stratagem": "ring"} if me else {})),
        "unknown_word_on_gpu": lambda: (
            comm.all_reduce(FakeGpuArray(), stratagem="ring") if me else comm.all_reduce(array)
        ),
        "memory": lambda: comm.all_to_all_v(array, [32, 32], [1 << 58 if me else 32, 32]),
        "two_ways": lambda: comm.all_reduce(
            array, strategy="ring:segments=2", params={"segments": 2} if me else None
        ),
        "way": lambda: comm.all_reduce(array, strategy="ring:2" if me else "ring:segments=2"),
        "params_alone": lambda: comm.all_reduce(array, params={"segments": 2} if me else None),
        "no_parts": lambda: comm.scatter_v(None if me else array, [32, 32], out=None),
        "one_array": lambda: comm.all_reduce_rms_norm(
            rows, rows.copy() if not me else twice, rows[0], out=None if not me else twice
        ),
        "root_kind": lambda: comm.broadcast(array, root="zero" if me else 0),
        "plan_scalar": lambda: comm.run(
            comm.plan_for(plait.Request("all_reduce", 64, "fp32", "premul_sum", comm.ranks)),
            array,
            array.copy(),
            scalar="two" if me else 2.0,
        ),
        "no_plan": lambda: comm.run("a plan" if me else comm.plan_for(whole), array, array.copy()),
        "exchange_kind": lambda: comm.exchange("text" if me else b"text"),
        "bits_on_floats": lambda: comm.all_reduce(array, "bit_and" if me else "sum"),
    }
    rows = np.ones((2, 8), np.float16)
    twice = rows.copy()
    start = time.monotonic()
    try:
        calls[kind]()
        outcome = {"error": "", "class": ""}
    except (plait.Error, TypeError, AttributeError, MemoryError) as error:
        outcome = {"error": str(error), "class": type(error).__name__}
    # All ranks are in step again: the next call works.
    seconds, after = time.monotonic() - start, comm.all_reduce(array)
    emit({"rank": me, "seconds": seconds, "after": float(after[0]), **outcome})


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def until_a_rank_dies(task: dict[str, Any], emit: Emit) -> None:
    """Runs all_reduces until the victim kills itself; survivors emit the error."""
    comm = plait.init()
    array = np.ones(task["count"], np.float32)
    for call in range(1_000_000):
        if comm.rank == task["victim"] and call == task["calls"]:
            emit({"rank": comm.rank, "died_at": time.monotonic()})
            os.kill(os.getpid(), getattr(signal, task["signal"]))
        try:
            comm.all_reduce(array, strategy=task["strategy"])
        except plait.Error as error:
            emit(
                {
                    "rank": comm.rank,
                    "class": type(error).__name__,
                    "error": str(error),
                    "noticed_at": time.monotonic(),
                }
            )
            return


def wrong_topology(task: dict[str, Any], emit: Emit) -> None:
    """Joins with a topology that a rank cannot read; emits the error."""
    rank = int(os.environ["RANK"])
    start = time.monotonic()
    try:
        plait.init(topology=task["topology"] if rank else "")
        outcome = {"error": "", "class": ""}
    except plait.Error as error:
        outcome = {"error": str(error), "class": type(error).__name__}
    emit({"rank": rank, "seconds": time.monotonic() - start, **outcome})


def gpu_on_one_rank(task: dict[str, Any], emit: Emit) -> None:
    """Joins with a device on rank 1 alone; emits the error."""
    del task
    rank = int(os.environ["RANK"])
    start = time.monotonic()
    try:
        plait.init(device=0 if rank else -1)
        outcome = {"error": "", "class": ""}
    except plait.Error as error:
        outcome = {"error": str(error), "class": type(error).__name__}
    emit({"rank": rank, "seconds": time.monotonic() - start, **outcome})


def device_by_launcher(task: dict[str, Any], emit: Emit) -> None:
    """Gets a GPU from the launcher; emits the GPU's number, and a sum in host memory."""
    del task
    comm = plait.init()
    total = comm.all_reduce(np.ones(8, np.float32))
    emit({"rank": comm.rank, "device": comm.device, "total": total.tolist()})


def no_memory(task: dict[str, Any], emit: Emit) -> None:
    """Raises the error of numpy for a too large array."""
    raise MemoryError("Unable to allocate 931. GiB")


def block_requests(task: dict[str, Any], emit: Emit) -> None:
    """Runs requests with counts by the core; emits wrong elements of each."""
    comm = plait.init()
    wrong = []
    for collective, counts, plait_type, op, root in task["requests"]:
        request = plait.Request(collective, 0, plait_type, op, comm.ranks, root, counts=counts)
        wrong.append(wrong_through_core(comm, request, plait_type, seed=sum(counts)))
    emit({"rank": comm.rank, "wrong": wrong})


def block_methods(task: dict[str, Any], emit: Emit) -> None:
    """Calls the five methods with counts on rows of two numbers; emits lists."""
    comm = plait.init()
    n, me = comm.ranks, comm.rank
    make, read = library(task["library"])[:2]
    counts = [3, 0, 5][:n]
    rows = np.arange(2 * 20, dtype=np.float32).reshape(20, 2) + 100 * me
    sends = [me + 1] * n
    gets = [rank + 1 for rank in range(n)]

    def told(array: Any) -> Any:
        if array is None:
            return None
        return (array if isinstance(array, np.ndarray) else read(array)).tolist()

    scattered = np.zeros((counts[me], 2), np.float32)
    said = {
        "all_gather": told(comm.all_gather_v(make(rows[: counts[me]]), counts)),
        "reduce_scatter": told(
            comm.reduce_scatter_v(make(rows[: sum(counts)]), np.array(counts), "max")
        ),
        "all_to_all": told(comm.all_to_all_v(make(rows[: n * (me + 1)]), sends, tuple(gets))),
        "gather": told(comm.gather_v(make(rows[: counts[me]]), counts if me == 1 else None, 1)),
        "scatter": told(
            comm.scatter_v(make(rows[: sum(counts)]), counts, root=1)
            if me == 1
            else comm.scatter_v(out=scattered, root=1)
        ),
    }
    emit({"rank": me, **said, "calls": dict(comm.counters().calls_of)})


def block_refusals(task: dict[str, Any], emit: Emit) -> None:
    """Passes bad counts on rank 1 only: every rank fails, and the next call works."""
    del task
    comm = plait.init()
    data = np.ones(8, np.float32)
    odd = comm.rank == 1
    calls = {
        "negative": lambda: comm.all_gather_v(data[:4], [4, -4 if odd else 4]),
        "short": lambda: comm.all_gather_v(data[:4], [4] if odd else [4, 4]),
        "sum": lambda: comm.reduce_scatter_v(data, [4, 5 if odd else 4]),
        "words": lambda: comm.all_gather_v(data[:4], ["x", 4] if odd else [4, 4]),
        "lists": lambda: comm.all_gather_v(data[: 5 if odd else 4], [4, 5 if odd else 6]),
        "ends": lambda: comm.all_to_all_v(data, [4, 4], [4, 3] if odd else [4, 4]),
        "none": lambda: comm.gather_v(data, None if odd else [8, 8], root=1),
        "root": lambda: comm.gather_v(data, [8, 8], root=2),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
        except plait.Error as error:
            said[name] = f"{type(error).__name__}: {error}"
        right = comm.all_gather_v(data[: comm.rank + 1], [1, 2])
        said[name] += "" if right.tolist() == [1.0] * 3 else " (and then a wrong result)"
    emit({"rank": comm.rank, "said": said})
