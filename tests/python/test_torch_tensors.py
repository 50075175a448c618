"""Tests tensors of the torch backend: wrong sizes and types, layouts, special values; and waits."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

from torch_ranks import on_ranks  # noqa: E402

import plait.torch  # noqa: E402

Op = dist.ReduceOp

# Sizes and types.


def room(count: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns an output, and the memory behind it."""
    whole = torch.full((count + 4096,), -1, dtype=dtype)
    return whole[:count], whole[count:]


def pair_of(whole: torch.Tensor) -> list[torch.Tensor]:
    return list(whole.view(2, -1).unbind())


def batch(call):
    with dist._coalescing_manager(device=torch.device("cpu")):
        call()


# Calls of two ranks with an output of `count` elements; 8 is right. Calls the group directly, since
# torch.distributed checks some lists first.
SIZED = {
    "all_gather": lambda group, out: group.allgather([pair_of(out)], [torch.ones(4)]),
    "all_gather_single": lambda group, out: group.all_gather_single(out, torch.ones(4)),
    "all_gather_coalesced": lambda group, out: batch(
        lambda: dist.all_gather_into_tensor(out, torch.ones(4))
    ),
    "allgather_coalesced": lambda group, out: group.allgather_coalesced(
        [[part] for part in pair_of(out)], [torch.ones(4)]
    ),
    "reduce_scatter": lambda group, out: group.reduce_scatter(
        [out], [pair_of(torch.ones(16))], dist.ReduceScatterOptions()
    ),
    "reduce_scatter_single": lambda group, out: group.reduce_scatter_single(out, torch.ones(16)),
    "reduce_scatter_coalesced": lambda group, out: batch(
        lambda: dist.reduce_scatter_tensor(out, torch.ones(16))
    ),
    "all_to_all_single": lambda group, out: group.all_to_all_single(out, torch.ones(8)),
    "all_to_all_single, sizes": lambda group, out: group.all_to_all_single(
        out, torch.ones(8), [4, 4], [4, 4]
    ),
    "gather": lambda group, out: group.gather(
        [pair_of(out)] if group.rank() == 1 else [], [torch.ones(4)], rooted(dist.GatherOptions())
    ),
    "scatter": lambda group, out: group.scatter(
        [torch.ones(4)], [pair_of(out)] if group.rank() == 1 else [], rooted(dist.ScatterOptions())
    ),
    "scatter into": lambda group, out: group.scatter(
        [out], [pair_of(torch.ones(16))] if group.rank() == 0 else [], dist.ScatterOptions()
    ),
    "expanded": lambda group, out: group.allreduce([out if len(out) == 8 else out[:1].expand(8)]),
}


def rooted(opts):
    opts.rootRank = 1
    return opts


def sizes_of_one_rank(rank, ranks):
    """Rank 1's output is too short, too long, or of another type."""
    group = dist.group.WORLD
    for name, call in SIZED.items():
        for count, dtype in ((4, torch.float32), (16, torch.float32), (8, torch.float64)):
            if name == "expanded" and count != 4:
                continue
            out, behind = room(count if rank == 1 else 8, dtype if rank == 1 else torch.float32)
            began = time.monotonic()
            with pytest.raises(
                RuntimeError, match="rank 1" if rank == 0 else "size|wanted|disagree"
            ):
                work = call(group, out)
                if work is not None:
                    work.wait()
            assert time.monotonic() - began < 30, name
            assert torch.all(out == -1) and torch.all(behind == -1), (name, count)
            mine = torch.ones(3)
            dist.all_reduce(mine)  # ranks are still in step
            assert torch.all(mine == ranks), name
    return True


def test_a_size_that_is_wrong_on_one_rank_is_an_error_on_all():
    assert on_ranks(sizes_of_one_rank) == [True, True]


def wrong_alone(rank, ranks):
    """A rank passes wrong arguments: short lists, a type or layout without sums."""
    group = dist.group.WORLD
    empty, short = torch.empty(0), torch.ones(5)
    calls = [
        lambda ok: dist.all_reduce(torch.ones(4) if ok else empty),
        lambda ok: dist.all_gather_into_tensor(torch.empty(8), torch.ones(4) if ok else empty),
        lambda ok: group.alltoall(*([list(torch.ones(2, 4))[: 2 if ok else 1]] * 2)).wait(),
        lambda ok: group.all_to_all_single(*([torch.ones(4) if ok else short] * 2)).wait(),
        lambda ok: group.allgather([list(torch.ones(2, 4))[: 2 if ok else 1]], [short[:4]]).wait(),
        lambda ok: dist.all_reduce(torch.ones(4, dtype=None if ok else torch.float8_e8m0fnu)),
        lambda ok: dist.all_reduce(torch.ones(4) if ok else torch.ones(2, 2).to_sparse_csr()),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(RuntimeError):
            call(rank == 0)
        mine = torch.ones(3)
        dist.all_reduce(mine)
        assert torch.all(mine == ranks), number
    return True


def test_what_one_rank_alone_finds_wrong_is_an_error_on_all():
    assert on_ranks(wrong_alone) == [True, True]


@contextmanager
def failing(owner, name, last):
    """Makes the last-th call of owner.name from now on fail, as without memory."""
    calls, real = iter(range(1, last + 1)), getattr(owner, name)

    def fails(*given, **named):
        if next(calls, last + 1) == last:
            raise torch.OutOfMemoryError(f"{name} has no memory")
        return real(*given, **named)

    with patch.object(owner, name, fails):
        yield


def sparse_of_failing_rank(rank, ranks):
    """Rank 1 fails in a step between the collectives of a sparse sum, and goes on with a dense sum
    of as many values."""
    steps = [(torch, "unique", 1), (torch, "searchsorted", 1), (torch.Tensor, "new_zeros", 2)]
    steps += [(torch.Tensor, "coalesce", 1), (torch.Tensor, "new_empty", 1)]
    for owner, name, last in steps:
        mine = torch.sparse_coo_tensor([[0, 1 + rank]], torch.ones(2, 4), (ranks + 1, 4))
        with (
            failing(owner, name, last) if rank == 1 else nullcontext(),
            pytest.raises(RuntimeError, match=f"{name} has no memory"),
        ):
            dist.all_reduce(mine)
        dense = torch.full((ranks + 1, 4), 5.0)
        dist.all_reduce(dense)
        assert torch.all(dense == 5 * ranks), name
    return True


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_fails_amid_a_sparse_sum_fails_the_sum_on_all(ranks):
    assert on_ranks(sparse_of_failing_rank, ranks) == [True] * ranks


def sparse_of_other_shapes(rank, ranks):
    """Shapes of as many places, and other types."""
    for shape, dtype in (((2, 10), torch.float32), ((4, 5), torch.float64)):
        given = (shape, dtype) if rank == 1 else ((4, 5), torch.float32)
        mine = torch.ones(given[0], dtype=given[1]).to_sparse()
        with pytest.raises(RuntimeError, match="wanted one type and shape on all ranks"):
            dist.all_reduce(mine)
    dense = torch.ones(3)
    dist.all_reduce(dense)
    assert torch.all(dense == ranks)
    return True


def test_sparse_tensors_of_two_shapes_are_an_error_on_all():
    assert on_ranks(sparse_of_other_shapes, 2) == [True, True]


def exchange_parts(rank, step):
    outputs = [torch.zeros(2), torch.zeros(3)]  # not adjacent
    dist.all_to_all(outputs, [torch.full((2 + rank,), step + rank) for _ in range(2)])
    return torch.cat(outputs), torch.tensor([step] * 2 + [step + 1] * 3)


def exchange_in_place(rank, step):
    both = torch.full((4,), step + rank)
    dist.all_to_all_single(both, both)
    return both, torch.tensor([step, step, step + 1, step + 1])


def gather_sizes(rank, step):
    outputs = [torch.zeros(2), torch.zeros(3)]
    dist.all_gather(outputs, torch.full((2 + rank, 2), step + rank)[:, 0])  # not contiguous
    return torch.cat(outputs), torch.tensor([step] * 2 + [step + 1] * 3)


def copy_columns(rank, step):
    both = torch.full((2, 3), step + rank).t()
    dist.broadcast(both, 1)
    return both, torch.full((3, 2), step + 1)


def multiply_complex(rank, step):
    both = torch.full((3,), step + rank, dtype=torch.complex64)
    dist.group.WORLD.allreduce([both], Op.PRODUCT).wait()
    return both, torch.full((3,), step * (step + 1), dtype=torch.complex64)


# What lacks memory for the call's buffers.
STAGED = [
    (exchange_parts, torch, "cat", 1),
    (exchange_parts, torch, "empty", 1),
    (exchange_in_place, torch.Tensor, "clone", 1),
    (gather_sizes, torch.Tensor, "contiguous", 1),
    (gather_sizes, torch, "empty", 1),
    (copy_columns, torch.Tensor, "contiguous", 1),
    (multiply_complex, torch.Tensor, "new_empty", 1),
]


def staged_without_memory(rank, ranks):
    """Rank 1 has no memory for a call's buffers, and goes on with the next step's call."""
    for call, owner, name, last in STAGED:
        with (
            failing(owner, name, last) if rank == 1 else nullcontext(),
            pytest.raises(RuntimeError, match=f"{name} has no memory"),
        ):
            call(rank, 1.0)
        found, expected = call(rank, 10.0)
        assert torch.equal(found, expected), (call.__name__, name, found)
    return True


def test_a_rank_without_memory_for_its_buffers_fails_the_call_on_all():
    assert on_ranks(staged_without_memory) == [True, True]


# Values and layouts.


def sums_of_bool(rank, ranks):
    """A sum of bools has the byte 1 (equal to True), not the number of ranks."""
    mine = torch.tensor([True, rank == 0, False])
    dist.all_reduce(mine)
    assert mine.view(torch.uint8).tolist() == [1, 1, 0]
    assert (mine == True).tolist() == [True, True, False]  # noqa: E712


def averages_of_whole_numbers(rank, ranks):
    """Integers round toward zero, as in NCCL; bool has no average, and nothing is written."""
    for dtype in (torch.int64, torch.int8):
        mine = torch.tensor([-3 - rank, 3 + rank, 7]).to(dtype)
        total = [sum(3 + r for r in range(ranks)) // ranks, 7]
        dist.all_reduce(mine, op=Op.AVG)
        assert mine.tolist() == [-total[0], *total]
    mine, part = torch.tensor([True, False]), torch.tensor([False])
    row = [torch.tensor([True]) for _ in range(ranks)]
    for call in (
        lambda: dist.all_reduce(mine, op=Op.AVG),
        lambda: dist.reduce(mine, 0, op=Op.AVG),
        lambda: dist.reduce_scatter(part, row, op=Op.AVG),
    ):
        with pytest.raises(plait.UnsupportedError, match="avg"):
            call()
    assert mine.tolist() == [True, False] and part.tolist() == [False]


def not_a_number(rank, ranks):
    """A NaN of any rank at any index is in all results."""
    for op in (Op.MAX, Op.MIN):
        for source in range(ranks):
            for place in (0, 1, 17, 36):
                mine = torch.arange(37.0) + rank
                if rank == source:
                    mine[place] = float("nan")
                dist.all_reduce(mine, op=op)
                assert mine.isnan().nonzero().flatten().tolist() == [place], (op, source)


def lazily_negated(rank, ranks):
    """Uses lazily negated and conjugated tensors with bytes unlike the values."""
    negated = torch._neg_view(torch.full((4,), float(rank + 1)))  # -1, -2 ...
    assert negated.is_neg() and negated.is_contiguous()
    for op, wanted in ((Op.MAX, -1.0), (Op.SUM, -0.5 * ranks * (ranks + 1))):
        mine = torch._neg_view(torch.full((4,), float(rank + 1)))
        dist.all_reduce(mine, op=op)
        assert mine.tolist() == [wanted] * 4, op
    into = torch._neg_view(torch.zeros(ranks))
    dist.all_gather_into_tensor(into, negated[:1])
    assert into.tolist() == [-r - 1.0 for r in range(ranks)]
    parts = list(torch._neg_view(torch.zeros(ranks, 2)).unbind())
    dist.all_gather(parts, negated[:2])
    assert [part.tolist() for part in parts] == [[-r - 1.0] * 2 for r in range(ranks)]
    conjugate = torch.full((2,), 1 + 2j).conj()
    dist.group.WORLD.allreduce([conjugate]).wait()
    assert conjugate.tolist() == [ranks * (1 - 2j)] * 2


def channels_last(rank, ranks):
    """Every call uses the logical order of elements, for any memory format."""
    plain = torch.arange(24.0).view(1, 2, 3, 4)
    last = (plain + rank).contiguous(memory_format=torch.channels_last)
    moved = last.clone() if rank == 0 else plain.clone()  # same shape, different layout
    dist.broadcast(moved, 0)
    assert torch.equal(moved, plain)
    summed = last.clone() if rank == 0 else (plain + rank)
    dist.all_reduce(summed)
    assert torch.equal(summed, ranks * plain + sum(range(ranks)))
    parts = [torch.empty_like(last) for _ in range(ranks)]
    dist.all_gather(parts, last)
    assert all(torch.equal(part, plain + r) for r, part in enumerate(parts))
    if rank == 0:
        dist.send(last, 1)
    elif rank == 1:
        found = torch.empty_like(plain)
        dist.recv(found, 0)
        assert torch.equal(found, plain)
    empty = torch.zeros(2, 0, 4, 4).to(memory_format=torch.channels_last)
    assert 0 in empty.stride()
    dist.broadcast(empty, 0)
    dist.all_gather([torch.empty_like(empty) for _ in range(ranks)], empty)
    dist.all_to_all([torch.empty_like(empty) for _ in range(ranks)], [empty] * ranks)


def single_elements(rank, ranks):
    """Contiguous tensors of an element with a stride go through each call."""

    def column(value, dtype=torch.float32):
        return torch.full((4, 3), value, dtype=dtype)[:1, 1]

    assert column(0).is_contiguous() and column(0).stride() == (3,)
    every = [float(r) for r in range(ranks)]
    rows = torch.full((ranks, 2), float(rank))[:, 0]
    found = torch.zeros(ranks, 2)[:, 1]
    dist.all_to_all_single(found, rows, [1] * ranks, [1] * ranks)
    assert found.tolist() == every
    parts = [column(-1) for _ in range(ranks)]
    dist.all_to_all(parts, [column(rank) for _ in range(ranks)])
    assert [part.item() for part in parts] == every
    dist.all_gather(parts, column(rank))
    assert [part.item() for part in parts] == every
    uneven = [torch.zeros(1 + r, 2)[:, 1] for r in range(ranks)]
    dist.all_gather(uneven, torch.full((1 + rank, 2), float(rank))[:, 0])
    assert [part.tolist() for part in uneven] == [[r] * (1 + r) for r in range(ranks)]
    for dtype in (torch.float32, torch.complex64):
        mine = column(1, dtype)
        dist.all_reduce(mine, op=dist._make_nccl_premul_sum(2.0))
        assert mine.item() == 2 * ranks
        dist.reduce_scatter(mine, [column(3, dtype) for _ in range(ranks)])
        assert mine.item() == 3 * ranks
    gone = dist.isend(column(rank), (rank + 1) % ranks)
    dist.recv(one := column(-1), (rank - 1) % ranks)
    gone.wait()
    assert one.item() == (rank - 1) % ranks


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "program",
    [
        *(sums_of_bool, averages_of_whole_numbers, not_a_number),
        *(lazily_negated, channels_last, single_elements),
    ],
)
def test_values_and_layouts(program, ranks):
    on_ranks(program, ranks)


def bits_of_floats(rank, ranks):
    """An operation without a meaning is an error in a group of one rank too."""
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2):
        for op, name in ((Op.BAND, "bit_and"), (Op.BOR, "bit_or"), (Op.BXOR, "bit_xor")):
            mine = torch.ones(4).to(dtype)
            with pytest.raises(plait.UnsupportedError, match=f"has {name}, found {dtype}"):
                dist.all_reduce(mine, op=op)
    return True


@pytest.mark.parametrize("ranks", [1, 2])
def test_bits_of_floats_are_an_error(ranks):
    assert on_ranks(bits_of_floats, ranks) == [True] * ranks


# Waits.


def waited_for_twice(rank, ranks):
    """A completed work can be waited for repeatedly, without delay."""
    peer, mine = (rank + 1) % ranks, torch.ones(4)
    works = [
        dist.isend(mine, peer),
        dist.irecv(torch.empty(4), (rank - 1) % ranks),
        dist.all_reduce(mine.clone(), async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in works:
        work.wait()
    began = time.monotonic()
    for work in works:
        work.wait()
        work.wait(timedelta(seconds=30))
    assert time.monotonic() - began < 5
    dist.barrier()


def waits_that_raise(rank, ranks):
    """After a timeout a collective continues; a receive is cancelled and leaves the buffer."""
    dist.barrier()
    if rank > 0:
        time.sleep(2)
    mine, found = torch.ones(4), torch.zeros(4)
    work = dist.all_reduce(mine, async_op=True)
    if rank == 0:
        with pytest.raises(RuntimeError, match="Timed out waiting 200ms for all_reduce"):
            work.wait(timedelta(seconds=0.2))
        assert not work.is_completed() and mine.tolist() == [1] * 4
        receive = dist.irecv(found, 1)
        with pytest.raises(RuntimeError, match="Timed out waiting 200ms for recv from rank 1"):
            receive.wait(timedelta(seconds=0.2))
    work.wait()
    assert mine.tolist() == [ranks] * 4
    if rank == 1:
        dist.send(mine, 0)
    dist.barrier()
    assert torch.all(found == 0)
    if rank == 0:
        dist.recv(found, 1)
        assert found.tolist() == [ranks] * 4


def receives_nothing(group):
    """Destroys a group with a sent, never received message."""
    dist.isend(torch.ones(1 << 18), 1, group=group)
    dist.destroy_process_group(group)


INTERRUPTED = {
    "first call": lambda group: dist.all_reduce(torch.ones(1), group=group),
    "call": lambda group: dist.all_reduce(torch.ones(1), group=group),
    "wait": lambda group: dist.all_reduce(torch.ones(1), group=group, async_op=True).wait(),
    "refused": lambda group: dist.all_gather_into_tensor(
        torch.empty(3), torch.ones(4), group=group
    ),
    "future": lambda group: (
        dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future().wait()
    ),
    "time of its own": lambda group: dist.barrier(group, timeout=timedelta(seconds=50)),
    "receive": lambda group: dist.recv(torch.ones(1), 1, group=group),
    "any source": lambda group: dist.recv(torch.ones(1), group=group),
    "destroy": receives_nothing,
}


def interrupted(rank, ranks):
    """Interrupts each wait of rank 0 for a rank that does not come."""
    store = dist.distributed_c10d._get_default_store()
    made = {name: dist.new_group(timeout=timedelta(seconds=60)) for name in INTERRUPTED}
    for name, group in made.items():
        if name != "first call":
            dist.barrier(group)
    if rank == 1:
        while not store.check(["interrupted"]):
            time.sleep(0.05)
        return {}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    took = {}
    for name, call in INTERRUPTED.items():
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            call(made[name])
            time.sleep(20)  # the call must not end by itself
        took[name] = time.monotonic() - began - 0.3
    began = time.monotonic()  # the end does not wait for these calls
    for name in ("call", "wait", "future"):
        dist.destroy_process_group(made[name])
    took["destroy later"] = time.monotonic() - began
    store.set("interrupted", "")
    return took


@pytest.mark.parametrize("program", [waited_for_twice, waits_that_raise])
def test_waits(program):
    on_ranks(program, 3)


def test_an_interrupt_ends_each_wait():
    took = on_ranks(interrupted)[0]
    assert max(took.values()) < 10, took  # 0.1 s on an idle machine; the call sleeps 20 s
