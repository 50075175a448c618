"""Tests tensors of the torch backend without memory of their own: pending results, wrappers, meta
tensors."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

import torch.distributed._functional_collectives as functional  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402
from torch_ranks import on_ranks  # noqa: E402

import plait.torch  # noqa: E402


def adjacent_parts_are_not_copied(rank, ranks):
    """Rank r sends each rank r + 1 rows, and gets s + 1 rows of rank s."""
    mine = torch.arange(1.0, ranks * (rank + 1) * 2 + 1).view(-1, 2) + 100 * rank
    gives, takes = [rank + 1] * ranks, [source + 1 for source in range(ranks)]
    rows = [
        torch.arange(1.0, ranks * one * 2 + 1).view(-1, 2)[rank * one : (rank + 1) * one]
        + 100 * source
        for source, one in enumerate(takes)
    ]
    found = torch.full((sum(takes), 2), -1.0)
    cat = torch.cat

    def no_copy(*_):
        raise AssertionError("a copy")

    torch.cat = no_copy
    dist.all_to_all_single(found, mine, takes, gives)
    torch.cat = cat
    assert torch.equal(found, cat(rows))
    # In place, and between parts that overlap: by a copy. Apart: by a copy too.
    memory = torch.full((40 * ranks, 2), -1.0)
    for source, target in ((0, 0), (1, 0), (0, 1), (0, 20 * ranks)):
        given = memory[source : source + len(mine)]
        given.copy_(mine)
        into = memory[target : target + sum(takes)]
        dist.all_to_all_single(into, given, takes, gives)
        assert torch.equal(into, cat(rows)), (source, target)
    parts = [torch.full((one, 2), -1.0) for one in takes]
    dist.all_to_all(parts, [part.clone() for part in mine.split(gives)])
    assert torch.equal(cat(parts), cat(rows))
    few = [row.t().contiguous().t() for row in mine.split(gives)]
    dist.all_to_all(list(found.split(takes)), few)
    assert torch.equal(found, cat(rows))


def pending(value, count=4):
    """Returns the result of a functional collective that nobody has waited for: value, once for
    each rank."""
    mine = torch.full((count,), float(value))
    found = functional.all_gather_tensor(mine, 0, dist.group.WORLD)
    assert found.data_ptr() == 0
    return found


def values(tensors):
    return [(one + 0).tolist() for one in tensors]


def results_that_are_pending(rank, ranks):
    """Results of functional collectives are inputs and outputs of calls, as with gloo."""
    group, peer = dist.group.WORLD, 1 - rank
    given = [float(rank)] * 8
    mine = pending(1)
    dist.all_reduce(mine)
    assert values([mine]) == [[2.0] * 8]
    work = dist.all_reduce(mine, async_op=True)
    work.wait()
    assert values([mine]) == [[4.0] * 8]
    dist.broadcast(mine := pending(3 if rank == 0 else 0), 0)
    assert values([mine]) == [[3.0, 3, 3, 3, 0, 0, 0, 0]]
    outputs = [pending(-1), pending(-1)]
    dist.all_gather(outputs, pending(5))
    assert values(outputs) == [[5.0] * 8] * 2
    outputs = [pending(-1, 1), pending(-1, 2)]  # 2 and 4 elements
    mine = [pending(8, 1), pending(9, 2)][rank]
    dist.all_gather(outputs, mine)
    assert values(outputs) == [[8.0] * 2, [9.0] * 4]
    dist.reduce_scatter(mine := pending(-1), [pending(1), pending(2)])
    assert values([mine]) == [[2.0 + 2 * rank] * 8]
    dist.all_to_all_single(mine := pending(-1), pending(rank))
    assert values([mine]) == [given]
    dist.all_to_all_single(mine := pending(-1), pending(7), [4, 4], [4, 4])
    assert values([mine]) == [[7.0] * 8]
    outputs = [pending(-1), pending(-1)]
    dist.all_to_all(outputs, [pending(8), pending(9)])
    assert values(outputs) == [[8.0 + rank] * 8] * 2
    complex_one = functional.all_reduce(torch.full((2,), 1j), "sum", group)
    group.allreduce([complex_one], dist.ReduceOp.PRODUCT).wait()
    assert values([complex_one]) == [[-4] * 2]
    found = pending(0)
    both = [dist.isend(pending(6), peer), dist.irecv(found, peer)]
    assert both[1].wait() and values([found]) == [[6.0] * 8]
    both[0].wait()
    columns = pending(0).view(2, 4).t()
    both = [dist.isend(columns + 1, peer), dist.irecv(columns, peer)]
    assert both[1].wait() and values([columns]) == [[[1.0, 1.0]] * 4]
    both[0].wait()

    return True


def parts_that_overlap(rank, ranks):
    expected = torch.tensor([[10.0 * source + rank] for source in range(ranks)]).expand(-1, 1 << 18)
    for target in (0, 1, ranks - 1, ranks):
        memory = torch.full((2 * ranks, 1 << 18), -1.0)
        given, into = memory[:ranks], memory[target : target + ranks]
        given.copy_(torch.arange(ranks)[:, None] + 10.0 * rank)
        dist.all_to_all_single(into, given)
        assert torch.equal(into, expected), target


def test_an_all_to_all_may_overlap_its_input():
    on_ranks(parts_that_overlap, 3)


def test_a_result_of_a_functional_collective_is_awaited():
    assert on_ranks(results_that_are_pending, timeout_s=4) == [True, True]


def fake():
    with torch._subclasses.FakeTensorMode() as mode:
        return mode.from_tensor(torch.ones(4))


def freed():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def nested():
    return torch.nested.nested_tensor([torch.ones(1), torch.ones(3)], layout=torch.jagged)


def sharded():
    return distribute_tensor(torch.arange(4.0), init_device_mesh("cpu", (2,)), [Shard(0)])


# Kind: maker, part of the error.
WITHOUT_MEMORY = {
    "DTensor": (sharded, r"found a DTensor; pass this rank's part, tensor.to_local\(\)"),
    "meta": (lambda: torch.ones(4, device="meta"), "found a meta or fake tensor"),
    "fake": (fake, "found a meta or fake tensor"),
    "sparse": (lambda: torch.ones(4).to_sparse(), "found layout torch.sparse_coo"),
    "csr": (lambda: torch.ones(2, 2).to_sparse_csr(), "found layout torch.sparse_csr"),
    "nested": (nested, "found layout torch.jagged"),
    "freed": (freed, "found one whose storage is empty"),
    "zeros": (lambda: torch._efficientzerotensor(4), "found one whose storage is empty"),
}
PLAIN = torch.ones(4)

CALLS = {
    "broadcast": lambda one: dist.broadcast(one, 0),
    "all_gather": lambda one: dist.all_gather([torch.ones(4), torch.ones(4)], one),
    "all_gather, output": lambda one: dist.group.WORLD.allgather([[torch.ones(4), one]], [PLAIN]),
    "all_gather, other size": lambda one: dist.group.WORLD.allgather(
        [[torch.ones(4), torch.ones(5)]], [one]
    ),
    "all_gather_into_tensor": lambda one: dist.group.WORLD.all_gather_single(torch.ones(8), one),
    "reduce_scatter": lambda one: dist.group.WORLD.reduce_scatter(
        [torch.ones(4)], [[torch.ones(4), one]], dist.ReduceScatterOptions()
    ),
    "all_to_all": lambda one: dist.group.WORLD.alltoall([PLAIN, PLAIN], [one, PLAIN]),
    "all_to_all, output": lambda one: dist.group.WORLD.alltoall([PLAIN, one], [PLAIN, PLAIN]),
    "all_to_all_single": lambda one: dist.group.WORLD.all_to_all_single(torch.ones(4), one),
    "all_to_all_single, sizes": lambda one: dist.group.WORLD.all_to_all_single(
        torch.ones(4), one, [2, 2], [2, 2]
    ),
}


def without_memory(rank, ranks):
    """Rank 1's tensor has no memory: an error of each collective on all ranks, and of its
    messages."""
    warnings.simplefilter("ignore")
    for kind, (make, found) in WITHOUT_MEMORY.items():
        broken = make()  # collective for a DTensor
        calls = dict(CALLS)
        if kind not in ("sparse", "csr", "nested"):  # all_reduce sums sparse tensors
            calls["all_reduce"] = dist.all_reduce
        for name, call in calls.items():
            with pytest.raises(RuntimeError, match="rank 1" if rank == 0 else found) as raised:
                work = call(broken if rank == 1 else torch.ones(4))
                if work is not None:
                    work.wait()
            assert rank == 0 or isinstance(raised.value, plait.InvalidArgumentError), (kind, name)
            mine = torch.ones(3)
            dist.all_reduce(mine)  # ranks are still in step
            assert torch.all(mine == ranks), (kind, name)
        for message in (dist.send, dist.recv):
            with pytest.raises(plait.InvalidArgumentError, match=found):
                message(broken, 1 - rank)
    for transform in (torch.vmap, torch.func.grad):
        for call in (lambda one: dist.send(one, 1 - rank), dist.all_reduce):
            with pytest.raises(plait.InvalidArgumentError, match="inside a transform"):
                transform(call)(torch.ones(4))
    return True


def test_a_tensor_without_memory_is_an_error_on_all():
    assert on_ranks(without_memory, timeout_s=4) == [True, True]


@pytest.mark.parametrize("ranks", [2, 3])
def test_adjacent_parts_of_an_all_to_all_are_not_copied(ranks):
    on_ranks(adjacent_parts_are_not_copied, ranks)
