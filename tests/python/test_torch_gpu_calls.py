"""Tests the host's part of calls on GPU tensors, with stand-ins for GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import time
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")

from torch_ranks import on_ranks  # noqa: E402

import plait.torch  # noqa: E402
from plait.torch.gpu import GpuBackend  # noqa: E402


class OnGpu(torch.Tensor):
    """A tensor in host memory with the attributes of a tensor on a GPU."""

    is_cpu = property(lambda _: False)
    __torch_function__ = torch._C._disabled_torch_function_impl


A_GPU = object()  # stands for the GPU backend of a call


# Exchanges of sizes on the host, inside calls on a GPU.


def queued_calls(rank, ranks):
    """Queues calls on host memory; rank 1 comes to its next call later than rank 0."""
    tensors = [torch.ones(1 << 18) for _ in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if rank == 1:
        time.sleep(0.2)
    return tensors, works


def exchanges_behind_queued_calls(rank, ranks):
    host = dist.group.WORLD._host()
    for _ in range(5):
        tensors, works = queued_calls(rank, ranks)
        found = host.exchange(b"rank %d" % rank, A_GPU)
        assert found == [b"rank %d" % one for one in range(ranks)]
        assert all(work.is_completed() for work in works)
        assert all(tensor[0] == ranks for tensor in tensors)
    assert host.exchange(b"x", A_GPU) == [b"x"] * ranks  # with an empty queue


def refusals_behind_queued_calls(rank, ranks):
    host = dist.group.WORLD._host()
    for _ in range(3):
        tensors, works = queued_calls(rank, ranks)
        if rank == 1:
            host.refuse(plait.InvalidArgumentError("a wrong tensor"), A_GPU)
        else:
            with pytest.raises(plait.InvalidArgumentError, match="rank 1: a wrong tensor"):
                host.exchange(b"x", A_GPU)
        for tensor, work in zip(tensors, works, strict=True):
            work.wait()
            assert tensor[0] == ranks


@pytest.mark.parametrize("program", [exchanges_behind_queued_calls, refusals_behind_queued_calls])
def test_exchanges_of_calls_on_gpus_keep_the_order_of_the_program(program):
    on_ranks(program, timeout_s=20)


# Receives into tensors on a GPU. Messages arrive in host memory.


class Cuda:
    """Replaces torch.cuda in this process: notes the order of streams and events."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.is_busy = False  # the current stream has work left
        self.failure: Exception | None = None
        self.watched: Any = None  # a tensor whose value is noted with each step
        self._replace()

    def note(self, what: str) -> None:
        self.log.append((what, self.watched[0].item()))

    def _replace(self) -> None:
        cuda: Any = torch.cuda
        seen = self

        class Event:
            def record(self, stream: Any) -> None:
                seen.note(f"record on {stream}")

            def query(self) -> bool:
                return not seen.is_busy

        class Stream:
            def __init__(self, device: Any, priority: int = 0) -> None:
                pass

            def wait_event(self, event: Event) -> None:
                seen.note("wait for the event")

            def synchronize(self) -> None:
                seen.note("synchronize")
                if seen.failure is not None:
                    raise seen.failure

        @contextlib.contextmanager
        def entered(what: Any) -> Any:
            seen.note(f"enter {type(what).__name__}")
            yield
            seen.note(f"leave {type(what).__name__}")

        cuda.Event, cuda.Stream = Event, Stream
        cuda.device = cuda.stream = entered
        cuda.current_stream = lambda _: "the program's stream"


def received(rank, cuda):
    """Sends a message to rank 0 and posts its receive on a GPU; returns the tensor and the Work."""
    group = dist.group.WORLD
    if rank == 1:
        group.send([torch.full((4,), 5.0)], 0, 1).wait()
        return None, None
    cuda.watched = torch.zeros(4)
    tensor = cuda.watched.as_subclass(OnGpu)
    cuda.log.clear()
    return tensor, group.recv([tensor], 1, 1)


def completion_shows_the_data(rank, ranks):
    cuda = Cuda()
    cuda.is_busy = True
    tensor, work = received(rank, cuda)
    if rank == 0:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:  # the message comes, and the program's stream is busy
            assert not work.is_completed() and not work.is_success()
        assert cuda.watched.tolist() == [0.0] * 4
        cuda.is_busy = False
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert cuda.watched.tolist() == [5.0] * 4
        assert cuda.log == [
            ("record on the program's stream", 0.0),
            ("enter device", 0.0),
            ("wait for the event", 0.0),
            ("enter Stream", 0.0),
            ("leave Stream", 5.0),
            ("synchronize", 5.0),
            ("leave device", 5.0),
        ]
        work.wait()
        assert len(cuda.log) == 7  # one copy
        assert work.result()[0] is tensor
    dist.barrier()


def waits_copy(rank, ranks):
    cuda = Cuda()
    _, work = received(rank, cuda)
    if rank == 0:
        work.wait()
        assert cuda.watched.tolist() == [5.0] * 4
    dist.barrier()


def callbacks_see_the_data(rank, ranks):
    cuda = Cuda()
    tensor, work = received(rank, cuda)
    if rank == 0:
        seen = work.get_future().then(lambda one: (cuda.watched.tolist(), one.value()[0])).wait()
        assert seen[0] == [5.0] * 4
        assert seen[1].data_ptr() == tensor.data_ptr()
    dist.barrier()


def failed_copies_fail_the_message(rank, ranks):
    cuda = Cuda()
    cuda.failure = RuntimeError("CUDA error: launch failure")
    for by_future in (False, True):
        _, work = received(rank, cuda)
        if rank == 0:
            with pytest.raises(RuntimeError, match="launch failure"):
                work.get_future().wait() if by_future else work.wait()
            assert work.is_completed() and not work.is_success()
            assert "launch failure" in str(work.exception())
    dist.barrier()


@pytest.mark.parametrize(
    "program",
    [
        completion_shows_the_data,
        waits_copy,
        callbacks_see_the_data,
        failed_copies_fail_the_message,
    ],
)
def test_a_receive_on_a_gpu_ends_with_its_copy(program):
    on_ranks(program, timeout_s=20)


def strided_result(rank, ranks):
    group = dist.group.WORLD
    if rank == 1:
        group.send([torch.full((4,), 5.0)], 0, 1).wait()
        return
    tensor = torch.zeros(8)[::2]
    value = group.recv([tensor], 1, 1).get_future().then(lambda one: one.value()[0]).wait()
    assert value.data_ptr() == tensor.data_ptr() and value.tolist() == [5.0] * 4


def test_the_result_of_a_receive_is_the_tensor_of_the_call():
    on_ranks(strided_result, timeout_s=20)


# Pre-multiplied sums: each rank multiplies its own input, and the core sums the products.


class OnDevice(OnGpu):
    """A tensor on the device of the backend. Code on the host may not read the value."""

    def get_device(self) -> int:
        return 0

    def __float__(self) -> float:
        raise RuntimeError("a capture reads no factor on the host")


class Core:
    """Stands for the core: notes the sum, and the bytes that the rank gives."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def enqueue(self, request: Any, source: int, out: int, stream: int, *factors: Any) -> None:
        assert not factors
        self.op = request.op
        self.given = ctypes.string_at(source, request.input_bytes(self.rank))


def products_of(rank, collective, factor, tensors, monkeypatch):
    """Returns what rank `rank` of 2 gives to a sum of the core. tensors: source, and out if any."""
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda _: type("Stream", (), {"cuda_stream": 0})
    )
    group = plait.torch.create(dist.HashStore(), rank, 2, timedelta(seconds=5))
    backend = GpuBackend(None, rank, 2, 5.0)
    backend._core, backend._device = Core(rank), torch.device("cuda", 0)
    views = [None if one is None else one.as_subclass(OnDevice) for one in tensors]
    if tensors[-1] is tensors[0]:
        views[-1] = views[0]
    group._reduce(backend, collective, *views, dist._make_nccl_premul_sum(factor))
    assert backend._core.op == "sum"
    return torch.frombuffer(bytearray(backend._core.given), dtype=tensors[0].dtype)


TYPES = [torch.float32, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.complex64]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("on_gpu", [False, True])
def test_each_rank_applies_its_own_factor_on_a_gpu(dtype, on_gpu, monkeypatch):
    for rank in range(2):
        factor = 1.0 + 0.5 * rank
        given = torch.arange(4.0).to(dtype)
        wanted = (torch.arange(4.0) * factor).to(dtype)
        kind = torch.complex64 if dtype.is_complex else torch.float32
        by = torch.tensor([factor]).as_subclass(OnDevice) if on_gpu else factor
        for collective, out in (("all_reduce", given), ("reduce_scatter", given.new_zeros(2))):
            mine = given.clone()
            tensors = [mine, mine if out is given else out]
            found = products_of(rank, collective, by, tensors, monkeypatch)
            assert torch.equal(found.to(kind), wanted.to(kind)), (collective, found, wanted)
            if out is not given:
                assert torch.equal(mine.to(kind), given.to(kind))  # an input stays


def test_a_reduce_leaves_the_tensors_of_peers(monkeypatch):
    given = torch.ones(4)
    assert products_of(0, "reduce", 2.0, [given, given], monkeypatch).tolist() == [2.0] * 4
    given = torch.ones(4)
    assert products_of(1, "reduce", 3.0, [given, None], monkeypatch).tolist() == [3.0] * 4
    assert given.tolist() == [1.0] * 4


def test_factors_keep_the_version_of_a_tensor(monkeypatch):
    given = torch.ones(4)
    before = given._version
    products_of(0, "all_reduce", 2.0, [given, given], monkeypatch)
    assert given._version == before


def test_integers_have_no_factors_on_a_gpu(monkeypatch):
    given = torch.ones(4, dtype=torch.int32)
    with pytest.raises(plait.UnsupportedError, match=r"premul_sum: wanted .* found torch.int32"):
        products_of(0, "all_reduce", 2.0, [given, given], monkeypatch)


def host_factors(rank, ranks):
    for dtype in (torch.float32, torch.float64, torch.complex64):
        tensor = torch.ones(4, dtype=dtype)
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(2.0 + rank))
        assert tensor.tolist() == [sum(2.0 + one for one in range(ranks))] * 4


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_rank_applies_its_own_factor_on_host_memory(ranks):
    on_ranks(host_factors, ranks)
