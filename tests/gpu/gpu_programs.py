"""Programs that GPU tests run on several ranks, a GPU each, as program(task, emit)."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import plait
from plait import gpu
from plait.arrays import DTYPE_OF_TYPE
from plait.bench.oracle import Oracle
from plait.launch import Emit

POISON = 0xAB


class Bench:
    """A rank's GPU with an input and an output buffer."""

    def __init__(self, most_bytes: int, **options: Any) -> None:
        self.gpu = gpu.Gpu(int(os.environ["RANK"]))
        self.comm = plait.init(device=int(os.environ["RANK"]), **options)
        self.rank = self.comm.rank
        self.stream = self.gpu.make_stream()
        self.input, self.output = (self.gpu.allocate(most_bytes + 512) for _ in range(2))

    def put(self, address: int, array: np.ndarray[Any, Any]) -> None:
        self.gpu.copy(address, array.ctypes.data, array.nbytes)

    def get(self, address: int, count: int, plait_type: str) -> np.ndarray[Any, Any]:
        array = np.empty(count, DTYPE_OF_TYPE[plait_type])
        self.gpu.copy(array.ctypes.data, address, array.nbytes)
        return array

    def finish(self) -> None:
        """Waits for the stream. The communicator reports the cause before the driver, which takes
        up to some seconds to fail a stream."""
        try:
            while not self.gpu.is_done(self.stream):
                self.comm.check()
        finally:
            self.comm.check()

    def stream_failed(self) -> bool:
        try:
            self.gpu.synchronize(self.stream)
        except Exception:
            return True
        return False

    def after(self, call: Callable[[], None], output: int, count: int, kind: str) -> Any:
        """Output of the call of all ranks; the output is poisoned before."""
        size = DTYPE_OF_TYPE[kind].itemsize
        if output == self.output:
            self.gpu.fill(output, POISON, count * size + 64, self.stream)
        self.finish()
        call()
        self.finish()
        return self.get(output, count, kind)

    def replayed(self, call: Callable[[], None], replays: int) -> Callable[[], None]:
        """Wraps `call` into a call that launches a graph of it `replays` times."""
        self.gpu.begin_capture(self.stream)
        call()
        graph = self.gpu.end_capture(self.stream)

        def launch() -> None:
            for _ in range(replays):
                self.gpu.launch(graph, self.stream)

        return launch


def in_place_offsets(request: plait.Request, rank: int) -> tuple[int, int] | None:
    """Byte offsets of input and output in one buffer, in NCCL's layout; None = none."""
    part = request.count * DTYPE_OF_TYPE[request.type].itemsize * rank
    return {
        "all_reduce": (0, 0),
        "reduce": (0, 0),
        "broadcast": (0, 0),
        "all_gather": (part, 0),
        "gather": (part, 0),
        "reduce_scatter": (0, part),
        "scatter": (0, part),
    }.get(request.collective)


def collectives(task: dict[str, Any], emit: Emit) -> None:
    """Runs every request on device memory and compares the result with float64 and with host
    memory.

    The comparison with host memory is bit by bit. Each request runs out of place, in place, and
    three times replayed from a graph. Emits the errors and the paths that plans took.
    """
    bench = Bench(task["most_bytes"], **task.get("options", {}))
    comm, wrong, refused, checked = bench.comm, [], [], 0
    for seed, (name, count, kind, op, root, strategy) in enumerate(task["requests"]):
        peer = (root + 1) % comm.ranks
        request = plait.Request(name, count, kind, op, comm.ranks, root, peer)
        oracle = Oracle(request, seed=seed + 11)
        size = DTYPE_OF_TYPE[kind].itemsize
        out_count = request.output_bytes(bench.rank) // size
        source = oracle.input(bench.rank)
        on_host = np.zeros(out_count, DTYPE_OF_TYPE[kind])
        comm._core.run_request(request, source.ctypes.data, on_host.ctypes.data)
        bench.put(bench.input, source)

        def call(
            request: plait.Request = request,
            strategy: str = strategy,
            at: tuple[int, int] = (bench.input, bench.output),
        ) -> None:
            comm._core.enqueue(request, *at, bench.stream, strategy, task.get("params", {}))

        try:
            found = {"eager": bench.after(call, bench.output, out_count, kind)}
        except (plait.UnsupportedError, plait.InvalidArgumentError) as error:
            refused.append(f"{name} {count} {kind} {op} {strategy}: {error}")
            continue
        found["graph"] = bench.after(bench.replayed(call, 3), bench.output, out_count, kind)
        if (offsets := in_place_offsets(request, bench.rank)) is not None:
            at = (bench.output + offsets[0], bench.output + offsets[1])
            bench.put(at[0], source)

            def in_place(call: Any = call, at: tuple[int, int] = at) -> None:
                call(at=at)

            bench.finish()
            in_place()
            bench.finish()
            found["in place"] = bench.get(at[1], out_count, kind)
        for variant, output in found.items():
            checked += 1
            off = oracle.wrong(bench.rank, output, bitwise=False) if out_count else 0
            same = output.tobytes() == on_host.tobytes()
            if off or not (same or strategy):
                wrong.append(f"{variant} {name} {count} {kind} {op} {strategy}: {off}, bits {same}")
    counters = comm.counters()
    emit(
        {
            "rank": bench.rank,
            "wrong": wrong[:20],
            "refused": refused,
            "checked": checked,
            "counted": sum(counters.calls_of.values()),
            "ways": sorted(counters.calls_of),
            "paths": sorted(counters.bytes_of_path),
            "explained": comm.explain(request),
        }
    )
    comm.barrier()


class Floats:
    """fp32 numbers on this rank's GPU, in the form used by other libraries."""

    def __init__(self, device: gpu.Gpu, count: int) -> None:
        self.device, self.count, self.address = device, count, device.allocate(max(count, 1) * 4)
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "<f4",
            "data": (self.address, False),
            "version": 3,
        }

    def put(self, array: np.ndarray[Any, Any]) -> None:
        self.device.copy(self.address, array.ctypes.data, array.nbytes)

    def differ(self, array: np.ndarray[Any, Any]) -> int:
        found = np.empty_like(array)
        self.device.copy(found.ctypes.data, self.address, found.nbytes)
        return int(np.sum(found != array))


class Sends:
    """Sends to other ranks in turn; returns the errors in received messages."""

    def __init__(self, bench: Bench, count: int) -> None:
        self.bench, self.comm, self.me = bench, bench.comm, bench.rank
        self.mine, self.got = (Floats(bench.gpu, count) for _ in range(2))
        self.numbers = np.arange(count, dtype=np.float32) % 4096
        self.mine.put(self.numbers + 10000 * self.me)
        self.wrong: list[Any] = []

    def poison(self) -> None:
        self.got.put(np.full(self.got.count, -1, np.float32))

    def check(self, variant: str, peer: int) -> None:
        self.bench.finish()
        if off := self.got.differ(self.numbers + 10000 * peer):
            self.wrong.append([variant, self.got.count, peer, off])
        self.poison()

    def there_and_back(self, peer: int) -> None:
        if self.me < peer:
            self.comm.send(self.mine, peer, stream=self.bench.stream)
        self.comm.recv(self.got, peer, stream=self.bench.stream)
        if self.me > peer:
            self.comm.send(self.mine, peer, stream=self.bench.stream)

    def with_one(self, peer: int) -> None:
        self.poison()
        self.there_and_back(peer)
        self.check("eager", peer)
        self.comm.exchange_with(self.mine, peer, self.got, stream=self.bench.stream)
        self.check("exchange", peer)
        self.bench.replayed(lambda: self.there_and_back(peer), 3)()
        self.check("graph", peer)

    def round_a_ring(self, aside: int) -> None:
        ranks = self.comm.ranks
        self.comm.send(self.mine, (self.me + 1) % ranks, stream=aside)
        self.comm.recv(self.got, (self.me - 1) % ranks, stream=self.bench.stream)
        self.bench.gpu.synchronize(aside)
        self.check("ring", (self.me - 1) % ranks)


def pairs(task: dict[str, Any], emit: Emit) -> None:
    """Every two ranks send to each other, eagerly and from a graph, and exchange; then a ring."""
    bench = Bench(1 << 20, **task.get("options", {}))
    comm, aside = bench.comm, bench.gpu.make_stream()
    wrong = []
    for count in task["counts"]:
        sends = Sends(bench, count)
        for one in range(comm.ranks):
            for other in range(one + 1, comm.ranks):
                if bench.rank in (one, other):
                    sends.with_one(one + other - bench.rank)
        if comm.ranks > 2:
            sends.round_a_ring(aside)
        wrong += sends.wrong
    comm.barrier()
    emit({"rank": bench.rank, "wrong": wrong, "ways": sorted(comm.counters().calls_of)})


def many_communicators(task: dict[str, Any], emit: Emit) -> None:
    """Three communicators of the same ranks, with calls interleaved on separate streams."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = gpu.Gpu(rank)
    comms = [
        plait.Communicator(
            rank, ranks, rendezvous=f"unix:{task['folder']}/meet{i}", device=rank, sm_budget=32
        )
        for i in range(3)
    ]
    streams = [device.make_stream() for _ in comms]
    count = task["count"]
    source = np.arange(count, dtype=np.float32) % 1000 + rank
    buffers = [device.allocate(count * 4) for _ in range(1 + len(comms))]
    device.copy(buffers[0], source.ctypes.data, source.nbytes)
    request = plait.Request("all_reduce", count, "fp32", "sum", ranks)
    for _ in range(task["rounds"]):
        for comm, stream, output in zip(comms, streams, buffers[1:], strict=True):
            comm._core.enqueue(request, buffers[0], output, stream)
    wanted = np.arange(count, dtype=np.float32) % 1000 * ranks + ranks * (ranks - 1) / 2
    wrong = 0
    for comm, stream, output in zip(comms, streams, buffers[1:], strict=True):
        device.synchronize(stream)
        comm.check()
        found = np.empty_like(source)
        device.copy(found.ctypes.data, output, found.nbytes)
        wrong += int(np.sum(found != wanted))
    emit({"rank": rank, "wrong": wrong, "calls": [comm.counters().calls for comm in comms]})


def crossing_communicators(task: dict[str, Any], emit: Emit) -> None:
    """Calls of two communicators in turn, eagerly or each in a graph.

    If task["crosses"] is set, every second rank calls the second communicator first. No
    communicator may keep the other's kernels from starting.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device, count, captured = gpu.Gpu(rank), task["count"], task["captured"]
    comms = [
        plait.Communicator(
            rank,
            ranks,
            rendezvous=f"unix:{task['folder']}/meet{i}",
            device=rank,
            sm_budget=budget,
            arrive_s=8.0,
        )
        for i, budget in enumerate(task["budgets"])
    ]
    request = plait.Request(task["collective"], count, task["type"], "sum", ranks)
    most = max(request.input_bytes(rank), request.output_bytes(rank))
    source, *outputs = (device.allocate(most) for _ in range(3))
    device.fill(source, 0, most, device.make_stream())
    streams = [device.make_stream() for _ in comms]

    def calls(at: int, number: int) -> None:
        for _ in range(number):
            comms[at]._core.enqueue(request, source, outputs[at], streams[at])

    graphs = []
    for at, stream in enumerate(streams):
        calls(at, 1)
        device.synchronize(stream)
        if captured:
            device.begin_capture(stream)
            calls(at, task["calls"])
            graphs.append(device.end_capture(stream))
    error = ""
    try:
        for number in range(task["rounds"]):
            comms[0].barrier()
            crosses = task.get("crosses", True) and (rank + number) % 2 == 1
            for at in (1, 0) if crosses else (0, 1):
                if captured:
                    device.launch(graphs[at], streams[at])
                else:
                    calls(at, task["calls"])
            for comm, stream in zip(comms, streams, strict=True):
                device.synchronize(stream)
                comm.check()
    except plait.Error as caught:
        error = str(caught)
    emit({"rank": rank, "error": error, "ways": sorted(comms[0].counters().calls_of)})


def until_a_rank_dies(task: dict[str, Any], emit: Emit) -> None:
    """Calls all_reduce forever; the victim kills itself between or inside calls."""
    bench = Bench(task["count"] * 4)
    request = plait.Request("all_reduce", task["count"], "fp32", "sum", bench.comm.ranks)
    bench.put(bench.input, np.ones(task["count"], np.float32))
    for call in range(1_000_000):
        if bench.rank == task["victim"] and call == task["calls"]:
            emit({"rank": bench.rank, "died_at": time.monotonic()})
            if task["inside"]:
                bench.comm._core.enqueue(request, bench.input, bench.output, bench.stream)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            bench.comm._core.enqueue(
                request, bench.input, bench.output, bench.stream, task["strategy"]
            )
            bench.finish()
        except plait.Error as error:
            noticed_at = time.monotonic()
            emit(
                {
                    "rank": bench.rank,
                    "class": type(error).__name__,
                    "error": str(error),
                    "noticed_at": noticed_at,
                }
            )
            return


def a_rank_that_does_not_come(task: dict[str, Any], emit: Emit) -> None:
    """Rank 0 calls alone; the stream fails at the deadline, or ends at the rank's abort."""
    bench = Bench(4096, arrive_s=task["arrive_s"])
    request = plait.Request("all_reduce", 1000, "fp32", "sum", bench.comm.ranks)
    start, outcome = time.monotonic(), {"class": "", "error": ""}
    if bench.rank == 0:
        bench.comm._core.enqueue(request, bench.input, bench.output, bench.stream)
        try:
            if task["abort"]:
                time.sleep(0.3)
                bench.comm.abort()
            bench.finish()
        except plait.Error as error:
            outcome = {"class": type(error).__name__, "error": str(error)}
        seconds = time.monotonic() - start
        emit({"rank": 0, "seconds": seconds, "failed": bench.stream_failed(), **outcome})
    else:
        time.sleep(task["arrive_s"] + 1.0 if not task["abort"] else 2.0)
        emit({"rank": bench.rank})


def torch_arrays(task: dict[str, Any], emit: Emit) -> None:
    """Tests torch tensors: shapes, types, streams, in place, and every kind of wrong argument."""
    import torch

    del task
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    comm = plait.init(device=rank)
    said: dict[str, Any] = {"rank": rank}
    mine = torch.arange(6, device="cuda", dtype=torch.bfloat16).reshape(2, 3) + rank
    total = sum((torch.arange(6).reshape(2, 3) + r for r in range(ranks)), torch.zeros(2, 3))
    reduced = comm.all_reduce(mine)
    said["all_reduce"] = (
        bool((reduced.cpu().float() == total).all()) and reduced.dtype == mine.dtype
    )
    gathered = comm.all_gather(mine)
    said["all_gather"] = list(gathered.shape) == [ranks, 2, 3] and bool(
        (gathered[rank] == mine).all()
    )
    side = torch.cuda.Stream()
    big = torch.full((1 << 20,), 1.0 + rank, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    comm.all_reduce(big, out=big, stream=side)
    side.synchronize()
    said["in_place"] = bool((big == sum(range(1, ranks + 1))).all())
    out = torch.empty_like(mine)
    comm.all_reduce(mine, out=out, stream=torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    said["by_number"] = bool((out == reduced).all())
    graph = torch.cuda.CUDAGraph()
    captured = torch.ones(1000, device="cuda")
    with torch.cuda.graph(graph):
        comm.all_reduce(captured, out=captured)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    said["graph"] = bool((captured == float(ranks**3)).all())
    comm.check()
    said["errors"] = [_mistake(comm, mine, kind, torch, rank) for kind in MISTAKES]
    emit(said)
    comm.barrier()


def rms_norms(task: dict[str, Any], emit: Emit) -> None:
    """Compares all_reduce_rms_norm on GPUs, eager and in graphs, with the call on host memory."""
    import torch

    del task
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    comm = plait.init(device=rank)
    wrong, checked = [], 0

    def rows(seed: int, *shape: int) -> Any:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    kernels = [("", {})]
    for strategy in ("one_shot", "two_shot"):
        kernels += [
            (strategy, {"units": units, "ahead": ahead})
            for units, ahead in ((2, 0), (4, 1), (8, 2))
        ]
    kernels += [
        ("one_shot", {"cluster": cluster, "units": units})
        for cluster, units in ((1, 1), (2, 1), (4, 1), (8, 1))
    ]
    for tokens, hidden, dtype in (
        (1, 4096, torch.bfloat16),
        (7, 8192, torch.float16),
        (33, 2880, torch.bfloat16),
        (300, 16384, torch.bfloat16),
    ):
        x, weight = rows(rank, tokens, hidden).to(dtype), rows(50, hidden).to(dtype)
        for strategy, params in (*kernels, ("unfused", {})):
            held = {1: 512 * params.get("cluster", 1), 2: 1024, 4: 1024, 8: 2048}
            if hidden // 8 > held[params.get("units", 8)]:
                continue  # an error: the block or cluster does not hold a row
            for kind in (dtype, torch.float8_e4m3fn):
                if strategy == "unfused" and kind is not dtype:
                    continue
                scale = None if kind is dtype else torch.tensor([0.02])
                residual, wanted = (
                    rows(51, tokens, hidden).to(dtype),
                    torch.empty_like(x, dtype=kind),
                )
                its, out = residual.cuda(), torch.full_like(x, float("nan"), device="cuda").to(kind)
                comm.all_reduce_rms_norm(x, residual, weight, out=wanted, scale=scale)
                on_gpu = None if scale is None else scale.cuda()
                call = (x.cuda(), its, weight.cuda(), 1e-6, out, on_gpu)
                comm.all_reduce_rms_norm(*call, strategy=strategy, params=params)
                torch.cuda.synchronize()
                same = torch.equal(out.cpu().view(torch.uint8), wanted.view(torch.uint8))
                checked += 1
                if not same or not torch.equal(its.cpu(), residual):
                    wrong.append([tokens, hidden, str(kind), strategy, params])
    mine, its, out = x.cuda(), torch.zeros_like(x).cuda(), torch.empty_like(x).cuda()
    graph, on_gpu = torch.cuda.CUDAGraph(), weight.cuda()
    with torch.cuda.graph(graph):
        comm.all_reduce_rms_norm(mine, its, on_gpu, out=out)
    residual = torch.zeros_like(x)
    for _ in range(3):
        graph.replay()
        wanted = comm.all_reduce_rms_norm(x, residual, weight)
    torch.cuda.synchronize()
    if not torch.equal(out.cpu(), wanted) or not torch.equal(its.cpu(), residual):
        wrong.append("graph")
    comm.check()
    emit({"rank": rank, "wrong": wrong, "checked": checked})
    comm.barrier()


MISTAKES = ("host output", "other GPU", "strided", "type", "small output", "host stream")


def _mistake(comm: plait.Communicator, mine: Any, kind: str, torch: Any, rank: int) -> str:
    calls = {
        "host output": lambda: comm.all_reduce(mine, out=torch.empty(2, 3, dtype=mine.dtype)),
        "other GPU": lambda: comm.all_reduce(
            torch.ones(3, device=f"cuda:{(rank + 1) % torch.cuda.device_count()}")
        ),
        "strided": lambda: comm.all_reduce(mine.t()),
        "type": lambda: comm.all_reduce(torch.ones(3, dtype=torch.complex64, device="cuda")),
        "small output": lambda: comm.all_reduce(mine, out=mine[:1].clone()),
        "host stream": lambda: comm.all_reduce(np.ones(3, np.float32), stream=1),
    }
    try:
        calls[kind]()
    except plait.Error as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def random_calls(task: dict[str, Any], emit: Emit) -> None:
    """Enqueues batches of random calls without a wait in between, then checks the results."""
    each = 4 << 20  # bytes of a call's input and output
    bench = Bench(task["batch"] * (each + 512))
    comm, ranks = bench.comm, bench.comm.ranks
    random = np.random.default_rng(task["seed"])  # the same on every rank
    wrong, done, start = [], 0, time.monotonic()
    while (
        comm.exchange(b"on" if time.monotonic() - start < task["seconds"] else b"off")[0] == b"on"
    ):
        calls = []
        for slot in range(task["batch"]):
            name = str(random.choice(task["collectives"]))
            kind = str(random.choice(("fp32", "bf16", "int32", "fp16", "int8")))
            size = DTYPE_OF_TYPE[kind].itemsize
            count = int(2 ** random.uniform(0, np.log2(each // size // ranks)))
            root = int(random.integers(ranks))
            request = plait.Request(name, count, kind, "sum", ranks, root, (root + 1) % ranks)
            at = slot * (each + 512) + int(random.integers(0, 4)) * size
            oracle = Oracle(request, seed=done + slot)
            bench.put(bench.input + at, oracle.input(bench.rank))
            calls.append((request, oracle, at))
        bench.gpu.fill(bench.output, POISON, task["batch"] * (each + 512), bench.stream)
        bench.finish()
        for request, _, at in calls:
            comm._core.enqueue(request, bench.input + at, bench.output + at, bench.stream)
        bench.finish()
        for request, oracle, at in calls:
            size = DTYPE_OF_TYPE[request.type].itemsize
            count = request.output_bytes(bench.rank) // size
            output = bench.get(bench.output + at, count, request.type)
            if count and oracle.wrong(bench.rank, output[:count], bitwise=False):
                wrong.append(f"{request.collective} {request.count} {request.type} at {at}")
        done += len(calls)
    free_bytes = bench.gpu.memory()[0]
    emit({"rank": bench.rank, "wrong": wrong[:20], "done": done, "free_bytes": free_bytes})
    comm.barrier()


class COptions(ctypes.Structure):
    """plaitOptions_t."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("rank", ctypes.c_int),
        ("ranks", ctypes.c_int),
        ("rendezvous", ctypes.c_char_p),
        ("topology", ctypes.c_char_p),
        ("masks", ctypes.c_char_p),
        ("arrive_s", ctypes.c_double),
        ("deadline_s", ctypes.c_double),
        ("device", ctypes.c_int),
        ("sm_budget", ctypes.c_int),
        ("overlap_compute", ctypes.c_int),
        ("graph_mixing", ctypes.c_int),
        ("sum_order", ctypes.c_char_p),
    )


def c_api(task: dict[str, Any], emit: Emit) -> None:
    """Calls plait.h through ctypes: all_reduce on host memory and, with a GPU, device memory."""
    rank, ranks, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), task["count"]
    library = ctypes.CDLL(str(Path(plait.__file__).parent / "libplait.so.0"))
    library.plaitGetLastError.restype = ctypes.c_char_p
    options, comm, number = COptions(), ctypes.c_void_p(), ctypes.c_int(-7)
    said: dict[str, Any] = {"rank": rank, "results": []}

    def do(name: str, *arguments: Any) -> int:
        result = int(getattr(library, name)(*arguments))
        said["results"].append(f"{name}: {result} {(library.plaitGetLastError(None) or b'')[:200]}")
        return result

    def all_reduce(source: int, output: int, stream: int) -> int:
        pointers = (ctypes.c_void_p(source), ctypes.c_void_p(output))
        fp32, total = ctypes.c_int(9), ctypes.c_int(0)
        return do(
            "plaitAllReduce",
            *pointers,
            ctypes.c_size_t(count),
            fp32,
            total,
            comm,
            ctypes.c_void_p(stream),
        )

    do("plaitOptionsDefault", ctypes.byref(options), ctypes.c_size_t(ctypes.sizeof(options)))
    options.rank, options.ranks = rank, ranks
    options.rendezvous = f"unix:{task['folder']}/meet".encode()
    options.device, options.arrive_s = (rank if task["gpu"] else -1), 20.0
    do("plaitCommInitRank", ctypes.byref(comm), ctypes.byref(options))
    do("plaitCommDevice", comm, ctypes.byref(number))
    said["device"] = number.value
    source = np.arange(count, dtype=np.float32) + rank
    output = np.zeros_like(source)
    wanted = np.arange(count, dtype=np.float32) * ranks + ranks * (ranks - 1) / 2
    said["host"] = all_reduce(source.ctypes.data, output.ctypes.data, 0)
    said["host_wrong"] = int(np.sum(output != wanted))
    said["host_with_stream"] = all_reduce(source.ctypes.data, output.ctypes.data, 5)
    if task["gpu"]:
        device = gpu.Gpu(rank)
        there = [device.allocate(source.nbytes) for _ in range(2)]
        device.copy(there[0], source.ctypes.data, source.nbytes)
        for name, stream in (("gpu", device.make_stream()), ("default", 0)):
            device.fill(there[1], POISON, source.nbytes, stream)
            said[name] = all_reduce(there[0], there[1], stream)
            device.synchronize(stream)
            device.copy(output.ctypes.data, there[1], output.nbytes)
            said[f"{name}_wrong"] = int(np.sum(output != wanted))
        said["mixed"] = all_reduce(there[0], output.ctypes.data, 0)
        do("plaitCommGetAsyncError", comm, ctypes.byref(number))
        said["async"] = number.value
    do("plaitCommDestroy", comm)
    emit(said)
