"""Tests plait as a backend of torch.distributed: results, order, errors."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

from torch_ranks import await_told, on_ranks, tell  # noqa: E402

import plait.torch.group  # noqa: E402
from plait.torch.works import StreamWork  # noqa: E402

Op = dist.ReduceOp
SOON_S = 20.0  # on a busy machine, of timeouts of 60 s


def given(rank: int, dtype: torch.dtype, count: int = 1000) -> torch.Tensor:
    """Returns the input of a rank, independent of the computing rank."""
    generator = torch.Generator().manual_seed(rank)
    if dtype is torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    if dtype.is_complex or dtype.is_floating_point:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(count, dtype=wide, generator=generator).to(dtype)
    return torch.randint(0, 50, (count,), generator=generator).to(dtype)


# Reductions. Sums are taken in rank order, hence the expected bits are the bits of a loop.


def in_rank_order(op, parts):
    total = parts[0].clone()
    for part in parts[1:]:
        total = op(total, part)
    return total


KINDS = [
    (Op.SUM, torch.float32, torch.add),
    (Op.SUM, torch.float64, torch.add),
    (Op.SUM, torch.int64, torch.add),
    (Op.SUM, torch.complex64, torch.add),
    (Op.PRODUCT, torch.float32, torch.mul),
    (Op.PRODUCT, torch.complex128, torch.mul),
    (Op.MIN, torch.int32, torch.minimum),
    (Op.MAX, torch.float16, torch.maximum),
    (Op.BAND, torch.uint8, torch.bitwise_and),
    (Op.BXOR, torch.int16, torch.bitwise_xor),
    (Op.SUM, torch.bool, torch.logical_or),
    (Op.PRODUCT, torch.bool, torch.logical_and),
    (Op.BXOR, torch.bool, torch.logical_xor),
]


def reductions(rank, ranks):
    group = dist.group.WORLD
    for op, dtype, function in KINDS:
        parts = [given(r, dtype, 12 * ranks) for r in range(ranks)]
        expected = in_rank_order(function, parts)
        opts = dist.AllreduceOptions()
        opts.reduceOp = op
        mine = parts[rank].clone()
        group.allreduce([mine], opts).wait()
        assert torch.equal(mine, expected), (op, dtype)
        wide = parts[rank].clone().view(12, ranks).t()  # not contiguous
        group.allreduce([wide], opts).wait()
        assert torch.equal(wide, expected.view(12, ranks).t()), (op, dtype)
        if dtype.is_complex:
            continue
        mine = parts[rank].clone()
        dist.reduce(mine, 1, op=op)
        assert torch.equal(mine, expected if rank == 1 else parts[rank])
        part = torch.empty(12, dtype=dtype)
        dist.reduce_scatter_tensor(part, parts[rank], op=op)
        assert torch.equal(part, expected[12 * rank : 12 * rank + 12])
    mean = given(rank, torch.float64)
    dist.all_reduce(mean, op=Op.AVG)
    assert torch.allclose(mean, sum(given(r, torch.float64) for r in range(ranks)) / ranks)


def uneven_reduce_scatter(rank, ranks):
    parts = [given(10 * rank + r, torch.float32, 5 + r) for r in range(ranks)]
    mine = torch.empty(5 + rank)
    dist.reduce_scatter(mine, parts)
    theirs = [given(10 * r + rank, torch.float32, 5 + rank) for r in range(ranks)]
    assert torch.equal(mine, in_rank_order(torch.add, theirs))


def sparse_sums(rank, ranks):
    rows = torch.tensor([[rank, ranks]])
    mine = torch.sparse_coo_tensor(rows, torch.ones(2, 3) * (rank + 1), (ranks + 1, 3))
    dist.all_reduce(mine)
    dense = torch.cat([torch.arange(1.0, ranks + 1), torch.tensor([ranks * (ranks + 1) / 2])])
    assert torch.equal(mine.to_dense(), dense[:, None].expand(-1, 3))


def sparse_sums_of_inference(rank, ranks):
    """A tensor of torch.inference_mode() is summed in the caller's thread and in the group's."""
    for is_async in (False, True):
        with torch.inference_mode():
            mine = torch.sparse_coo_tensor([[rank, ranks]], [1.0, 2.0], (ranks + 1,))
            if work := dist.all_reduce(mine, async_op=is_async):
                work.wait()
        assert mine.to_dense().tolist() == [1.0] * ranks + [2.0 * ranks]


def sparse_sums_in_order(rank, ranks):
    """In the first row all ranks add 1, 2^24, 1, ...: each order of fp32 has another sum."""
    values = torch.full((2, 4), 2.0**24 if rank == 1 else 1.0)
    mine = torch.sparse_coo_tensor(torch.tensor([[0, 1 + rank], [2, 0]]), values, (ranks + 1, 3, 4))
    dense = mine.to_dense()
    dist.all_reduce(dense)
    dist.all_reduce(mine)
    assert mine._nnz() == ranks + 1 and torch.equal(mine.to_dense(), dense)
    half = torch.sparse_coo_tensor(
        torch.zeros(1, 1, dtype=torch.int64), torch.full((1,), 1 + rank / 256).bfloat16(), (2,)
    )
    wanted = half.to_dense()
    dist.all_reduce(wanted)
    dist.all_reduce(half)
    assert torch.equal(half.to_dense(), wanted)
    none = torch.sparse_coo_tensor(size=(4, 2))
    dist.all_reduce(none)
    assert none._nnz() == 0


@pytest.mark.parametrize("order", ["rank_order", "tree", "tree_rounded"])
def test_sparse_sums_take_the_order_of_other_sums(order, monkeypatch):
    monkeypatch.setenv("PLAIT_SUM_ORDER", order)
    on_ranks(sparse_sums_in_order, 4)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "program", [reductions, uneven_reduce_scatter, sparse_sums, sparse_sums_of_inference]
)
def test_reductions(program, ranks):
    on_ranks(program, ranks)


# Moves.

TYPES = [torch.float32, torch.bool, torch.complex64, torch.float8_e5m2, torch.bfloat16, torch.int64]


def moves(rank, ranks):
    for dtype in TYPES:
        all_of = [given(r, torch.float32).to(dtype) for r in range(ranks)]
        same = [(one.view(torch.uint8) if one.dtype.itemsize == 1 else one) for one in all_of]

        def is_rank(tensor, r, same=same):
            found = tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
            return torch.equal(found, same[r])

        mine = all_of[rank].clone()
        dist.broadcast(mine, 1)
        assert is_rank(mine, 1)
        whole = torch.empty(ranks * 1000, dtype=dtype)
        dist.all_gather_into_tensor(whole, all_of[rank])
        assert all(is_rank(part, r) for r, part in enumerate(whole.chunk(ranks)))
        apart = [torch.empty(1000, dtype=dtype) for _ in range(ranks)]
        dist.all_gather(apart, all_of[rank])
        assert all(is_rank(part, r) for r, part in enumerate(apart))
        dist.gather(all_of[rank], apart if rank == 1 else None, dst=1)
        dist.scatter(mine, all_of if rank == 0 else None, src=0)
        assert is_rank(mine, rank)
        dist.all_to_all_single(whole, all_of[rank].repeat(ranks))
        assert all(is_rank(part, r) for r, part in enumerate(whole.chunk(ranks)))


def uneven_moves(rank, ranks):
    whole = [torch.empty(r + 1) for r in range(ranks)]
    dist.all_gather(whole, torch.full((rank + 1,), float(rank)))
    assert all(torch.equal(part, torch.full((r + 1,), float(r))) for r, part in enumerate(whole))
    column = torch.full((rank + 1000, 2), float(rank))[:, 1]  # not contiguous: a copy is sent
    columns = [torch.empty(r + 1000) for r in range(ranks)]
    dist.all_gather(columns, column)
    assert all(torch.all(part == r) for r, part in enumerate(columns))
    gives = [torch.full((rank + to, 2), 10.0 * rank + to) for to in range(ranks)]
    takes = [torch.empty(source + rank, 2) for source in range(ranks)]
    expected = [torch.full((source + rank, 2), 10.0 * source + rank) for source in range(ranks)]
    dist.all_to_all(takes, gives)
    assert all(map(torch.equal, takes, expected))
    flat = torch.empty(sum(map(len, takes)), 2)
    sizes = [len(one) for one in takes], [len(one) for one in gives]
    for kind in (list, tuple, np.array, torch.tensor):
        dist.all_to_all_single(flat.zero_(), torch.cat(gives), *map(kind, sizes))
        assert torch.equal(flat, torch.cat(expected))


def sizes_that_disagree(rank, ranks):
    given_rows = torch.ones(5)
    with pytest.raises(
        plait.MismatchError, match="rank 0 sends rank 1 16 elements, of which that one wants 8"
    ):
        sent, taken = ([1, 4], [1, 3]) if rank == 0 else ([3, 2], [2, 2])
        dist.all_to_all_single(torch.empty(4), given_rows, taken, sent)
    return True


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("program", [moves, uneven_moves])
def test_moves(program, ranks):
    on_ranks(program, ranks)


def test_split_sizes_that_disagree_are_an_error_on_every_rank():
    assert on_ranks(sizes_that_disagree) == [True, True]


# Order, works, groups.


def in_order(rank, ranks):
    tensor = torch.ones(1000) * (rank + 1)
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(4)]
    chained = works[-1].get_future().then(lambda done: done.value()[0] * 2)
    dist.barrier()  # blocking, behind them
    assert all(work.is_completed() for work in works)
    total = float(sum(range(1, ranks + 1)) * ranks**3)
    assert torch.equal(tensor, torch.full((1000,), total))
    assert torch.equal(chained.wait(), 2 * tensor)


def coalesced(rank, ranks):
    tensors = [torch.full((k + 1,), float(rank)) for k in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(tensors[0])
    total = float(sum(range(ranks)))
    assert [one[0].item() for one in tensors] == [total * ranks, total, total]


def of_unequal_numbers(rank, ranks):
    """The last rank has a tensor more than the rest, which make a like call next."""
    group, few = dist.group.WORLD, 2 + rank // (ranks - 1)
    wide = [torch.ones(4 * ranks) for _ in range(few)]
    small = [torch.ones(4) for _ in range(few)]
    calls = [
        ("all_reduce", lambda: group.allreduce_coalesced(small).wait()),
        ("broadcast", lambda: group.broadcast(small, dist.BroadcastOptions()).wait()),
        ("all_gather", lambda: group.allgather_into_tensor_coalesced(wide, small).wait()),
        ("all_gather", lambda: group.allgather_coalesced([small] * ranks, small).wait()),
        ("reduce_scatter", lambda: group.reduce_scatter_tensor_coalesced(small, wide).wait()),
    ]
    for name, call in calls:
        with pytest.raises(plait.MismatchError, match=rf"{name} of {few} tensors, .* rank 0 asks"):
            call()
        mine = torch.full((4,), float(rank))
        dist.all_reduce(mine)
        assert mine.tolist() == [sum(range(ranks))] * 4


def groups(rank, ranks):
    made = [dist.new_group([r]) for r in range(ranks)]
    alone = made[rank]
    mine = torch.tensor([5.0])
    dist.all_reduce(mine, group=alone)
    dist.all_gather([mine], torch.tensor([6.0]), group=alone)
    assert mine.item() == 6.0 and alone._host_backend._core is None and alone._mail is None
    pair = dist.new_group([0, ranks - 1])
    if rank in (0, ranks - 1):
        assert pair._host_backend._core is None  # before the first call
        dist.all_reduce(mine, group=pair)
        assert mine.item() == 12.0
        dist.destroy_process_group(pair)
    half = dist.group.WORLD.split_group([0, 1], group_name="half")
    assert (half is None) == (rank > 1)
    if half is not None:
        mine = torch.tensor([1.0 + rank])
        half.allreduce([mine]).wait()
        assert mine.item() == 3.0 and half.size() == 2
    dist.destroy_process_group()


def seen_by_the_profiler(rank, ranks):
    from torch.profiler import profile

    with profile() as seen:
        dist.all_reduce(torch.ones(2))
        dist.barrier()
    assert {"plait::all_reduce", "plait::barrier"} <= {event.name for event in seen.events()}


@pytest.mark.parametrize(
    "program", [in_order, coalesced, of_unequal_numbers, groups, seen_by_the_profiler]
)
def test_order_and_groups(program):
    on_ranks(program, 3)


def blocking(name):
    """Returns options of a call in this thread: the default device holds for one thread. Functions
    of torch.distributed with tensors switch it off."""
    opts = getattr(dist.distributed_c10d, name)()
    opts.asyncOp = False
    return opts


def barriers(rank, ranks):
    dist.barrier()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=60))


def empty_lists(rank, ranks):
    dist.group.WORLD.allgather_into_tensor_coalesced([], []).wait()


def uneven_parts(rank, ranks):
    """Rank r gathers r + 1 elements of every rank r, and sends each rank r + 1 elements."""
    parts = [torch.empty(r + 1, device="cpu") for r in range(ranks)]
    mine = torch.full((rank + 1,), float(rank), device="cpu")
    dist.group.WORLD.allgather([parts], [mine], blocking("AllgatherOptions"))
    assert [part.tolist() for part in parts] == [[r] * (r + 1) for r in range(ranks)]
    sizes = [r + 1 for r in range(ranks)]
    out = torch.empty(sum(sizes), device="cpu")
    gives, opts = mine.repeat(ranks), blocking("AllToAllOptions")
    dist.group.WORLD.alltoall_base(out, gives, sizes, [rank + 1] * ranks, opts)
    assert torch.equal(out, torch.cat(parts))


def sparse_sum(rank, ranks):
    mine = torch.eye(ranks, device="cpu").to_sparse()
    dist.group.WORLD.allreduce([mine], blocking("AllreduceOptions"))
    assert mine.device.type == "cpu"
    assert torch.equal(mine.to_dense(), ranks * torch.eye(ranks, device="cpu"))


def with_default_device(program, rank, ranks):
    """Sets the device before the backend is imported."""
    torch.set_default_device("meta")
    importlib.reload(plait.torch.group)
    program(rank, ranks)


@pytest.mark.parametrize("program", [barriers, empty_lists, uneven_parts, sparse_sum])
def test_the_default_device_changes_no_call_on_host_memory(program):
    on_ranks(functools.partial(with_default_device, program), 3)


# Failures.


def barrier_alone(rank, ranks):
    if rank == 1:
        await_told("over")
        return 0.0
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=r"Timed out waiting 1000ms for barrier"):
        dist.barrier()
    tell("over")
    return time.monotonic() - began


def receive_alone(rank, ranks):
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"Timed out waiting 300ms for recv from rank 1"):
            dist.irecv(torch.empty(1), 1).wait(timedelta(seconds=0.3))
        tell("over")
    else:
        await_told("over")
    return True


def peer_that_ends(rank, ranks):
    dist.barrier()
    if rank == 1:
        os._exit(0)
    began = time.monotonic()
    with pytest.raises(dist.DistNetworkError, match="Connection closed by peer: rank 1"):
        dist.recv(torch.empty(1), 1)
    with pytest.raises(RuntimeError, match=r"Connection closed by peer|rank 1"):
        dist.all_reduce(torch.ones(1))
    return time.monotonic() - began


def aborted(rank, ranks):
    if rank == 1:
        await_told("over")
        return True
    began = time.monotonic()
    works = [dist.irecv(torch.empty(1), 1), dist.all_reduce(torch.ones(1), async_op=True)]
    dist.group.WORLD.abort()
    for work in works:
        with pytest.raises(RuntimeError, match="closed"):
            work.wait()
    with pytest.raises(RuntimeError, match="closed"):
        dist.all_reduce(torch.ones(1))
    tell("over")
    return time.monotonic() - began < SOON_S


def test_a_barrier_that_a_rank_does_not_come_to_times_out():
    waited = on_ranks(barrier_alone, timeout_s=1)
    assert 0.9 < waited[0] < SOON_S


def test_a_rank_that_ends_is_named_soon():
    waited = on_ranks(peer_that_ends)
    assert waited[0] < SOON_S


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        (receive_alone, 2),
        (aborted, 2),
    ],
)
def test_failures(program, ranks):
    assert all(on_ranks(program, ranks))


# GPU calls with stand-ins for events; tests/gpu/torch_backend.py runs on GPUs.

PROGRAM = Path(__file__).resolve().parents[1] / "gpu" / "torch_backend.py"


class NeverDone:
    """An event that never completes."""

    def record(self, stream=None):
        pass

    def query(self):
        return False

    def synchronize(self):
        raise AssertionError("wanted a wait with an end")


class Interrupted(Exception):
    """Replaces KeyboardInterrupt, which would interrupt the runner of the ranks."""


def interrupted(rank, ranks, wait):
    """Raises in a signal handler while rank 0 waits; returns the time in s."""
    tensor = torch.ones(10)
    if wait != "meet":
        dist.all_reduce(tensor)
    if rank == 1:
        await_told("over")
        return 0.0

    def raises(*_):
        raise Interrupted

    signal.signal(signal.SIGALRM, raises)
    began = time.monotonic()
    with pytest.raises(Interrupted):
        signal.setitimer(signal.ITIMER_REAL, 0.4)
        if wait in ("call", "meet"):
            dist.all_reduce(tensor)
        elif wait == "work":
            dist.all_reduce(tensor, async_op=True).wait()
        elif wait == "barrier":
            dist.barrier()
        elif wait == "recv":
            dist.recv(tensor, 1)
        elif wait == "large send":
            dist.send(torch.ones(8 << 20), 1)
    took = time.monotonic() - began
    tell("over")
    return took


@pytest.mark.parametrize("wait", ["call", "meet", "work", "barrier", "recv", "large send"])
def test_a_signal_is_heard_in_every_wait_of_the_host(wait):
    took, _ = on_ranks(functools.partial(interrupted, wait=wait))
    assert 0.4 <= took < SOON_S, took


def sums_under_a_long_folder(rank, ranks):
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return tensor.tolist()


@pytest.mark.parametrize("variable", ["TMPDIR", "XDG_RUNTIME_DIR"])
def test_ranks_meet_where_a_folder_is_too_long_for_a_socket(variable, tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 110)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv(variable, str(deep))
    monkeypatch.setattr(tempfile, "tempdir", None)  # cached otherwise
    assert on_ranks(sums_under_a_long_folder) == [[2.0] * 3] * 2
    assert not any(deep.iterdir())


def test_the_native_door_takes_a_lazily_negated_tensor_as_it_reads():
    negated = torch.tensor([1 + 2j]).conj().imag
    assert negated.is_neg() and negated.tolist() == [-2.0]
    comm = plait.Communicator(0, 1, topology="local-cpu")
    assert comm.all_reduce(negated).tolist() == [-2.0]
    with pytest.raises(plait.InvalidArgumentError, match="resolve_neg"):
        comm.all_reduce(torch.ones(1), out=negated)


def test_a_wait_for_a_gpu_has_an_end(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", NeverDone)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    work = StreamWork("all_reduce", None, None, None, False, lambda: None)
    assert work.wait() and not work.is_completed()  # the host does not wait
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="Timed out waiting 200ms for all_reduce"):
        work.wait(timedelta(seconds=0.2))
    assert 0.2 <= time.monotonic() - began < 5


def test_a_wait_for_a_gpu_raises_what_its_call_met(monkeypatch):
    def check():
        raise dist.DistBackendError("the process group was closed")

    monkeypatch.setattr(torch.cuda, "Event", NeverDone)
    with pytest.raises(dist.DistBackendError, match="closed"):
        StreamWork("all_reduce", None, None, None, False, check).wait(timedelta(seconds=60))


def test_the_program_for_gpus_passes_on_host_memory():
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAM)]
    checks = ["all_reduce_operations", "moves", "uneven", "unfit", "messages", "aborted", "world"]
    done = subprocess.run(
        [sys.executable, *words, *checks, "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["check"] for row in rows] == checks and all(row["ok"] for row in rows)


ENDS_EARLY = """
import sys
import torch
import torch.distributed as dist
store, rank = dist.FileStore(sys.argv[1], 2), int(sys.argv[2])
dist.init_process_group("plait", store=store, rank=rank, world_size=2)
mine = torch.ones(1 << 18)
dist.barrier()
for _ in range(1000):
    dist.all_reduce(mine, async_op=True)
"""


def test_a_program_may_end_with_calls_under_way(tmp_path):
    """Python ends while threads are in calls and release works."""
    words = [sys.executable, "-W", "ignore", "-c", ENDS_EARLY, str(tmp_path / "store")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*words, str(rank)], **pipes) for rank in range(2)]
    found = [(*one.communicate(timeout=100), one.returncode) for one in ranks]
    assert found == [("", "", 0)] * 2


# Registration.


def made_again(rank, ranks):
    """Destroys a default group and makes it again in the same store."""
    store = dist.distributed_c10d._get_default_store()
    for turn in range(3):
        dist.destroy_process_group()
        dist.init_process_group("plait", store=store, rank=rank, world_size=ranks)
        mine = torch.full((10,), float(rank + turn))
        dist.all_reduce(mine)
        assert torch.equal(mine, torch.full((10,), float(sum(range(ranks)) + ranks * turn)))
        peer = (rank + 1) % ranks
        gone = dist.isend(mine, peer)
        dist.recv(torch.empty(10), (rank - 1) % ranks)
        gone.wait()
    return True


def test_a_group_that_is_made_again_in_one_store_finds_its_own_ranks():
    assert all(on_ranks(made_again, 3, timeout_s=20))


def test_a_group_bound_to_a_gpu_connects_at_once(monkeypatch):
    asked = []
    side = plait.torch.group.GpuBackend
    monkeypatch.setattr(side, "connect", lambda _, device: asked.append(device))
    group = plait.torch.create(dist.HashStore(), 0, 2, timedelta(seconds=1))
    group.eager_connect_single_device(torch.device("cuda", 0))
    assert asked == [torch.device("cuda", 0)]


class CoreWithMemory:
    """A stand-in for a communicator: 5 bytes stay, 7 go."""

    def __init__(self):
        self.calls = []

    def suspend(self):
        self.calls.append("suspend")

    def resume(self):
        self.calls.append("resume")

    def gpu_memory(self):
        return 5, 7


def test_a_group_suspends_the_communicator_of_its_gpu():
    group = plait.torch.create(dist.HashStore(), 0, 2, timedelta(seconds=1))
    nothing = {"suspend": 0, "suspended": 0, "persist": 0, "total": 0}
    group.suspend()  # no GPU yet
    assert group.memory_stats() == nothing
    backend = group._gpu(torch.device("cuda", 0))
    group.suspend()  # no communicator yet
    group.resume()
    assert group.memory_stats() == nothing
    core = backend._core = CoreWithMemory()
    group.suspend()
    assert group.memory_stats() == {"suspend": 7, "suspended": 1, "persist": 5, "total": 12}
    group.resume()
    assert group.memory_stats()["suspended"] == 0 and core.calls == ["suspend", "resume"]


def training(rank, ranks):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(10):
        images = given(100 * step + rank, torch.float32, 640).view(10, 64)
        loss = ddp(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = torch.cat([one.detach().view(-1) for one in model.parameters()])
    return losses, hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def test_ddp_trains_to_the_bits_of_gloo():
    plaits, gloos = on_ranks(training), on_ranks(training, backend="gloo")
    assert plaits == gloos
    assert plaits[0][1] == plaits[1][1]


def test_the_example_of_ddp_shows_the_bits_of_gloo():
    example = Path(__file__).resolve().parents[2] / "examples" / "05_train_ddp.py"
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(example)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"(plait|gloo) +rank (\d): loss (\S+), weights (\w{12}),", done.stdout)
    losses = {(name, rank): loss for name, rank, loss, _ in said}
    assert len(losses) == 4, done.stdout
    assert all(losses["plait", rank] == losses["gloo", rank] for rank in "01")
    assert len({weights for *_, weights in said}) == 1


def test_importing_torch_makes_it_known_and_imports_no_plait():
    source = (
        "import sys, torch.distributed as dist\n"
        "assert dist.Backend('plait') == 'plait' and 'plait' in dist.Backend.backend_list\n"
        "assert 'plait' not in sys.modules and 'plait_torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", source], check=True, timeout=120)


def test_where_torch_has_backends_in_python_it_is_one(monkeypatch):
    class BackendBase:
        def __init__(self, rank, ranks):
            self.made_of = (rank, ranks)

    monkeypatch.setattr(dist, "BackendBase", BackendBase, raising=False)
    made = plait.torch.create(dist.HashStore(), 0, 1, timedelta(seconds=1))
    assert isinstance(made, BackendBase) and made.made_of == (0, 1)
    assert made.getBackendName() == "plait"
    tensor = torch.ones(3)
    made.allreduce([tensor]).wait()
    assert torch.equal(tensor, torch.ones(3))


def test_more_ranks_than_plait_joins_are_an_error():
    with pytest.raises(plait.UnsupportedError, match="wanted at most"):
        plait.torch.bootstrap.bootstrap(dist.HashStore(), 0, 1000, -1, 1.0)
