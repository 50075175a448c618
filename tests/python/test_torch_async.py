"""Tests calls of the torch backend that run behind earlier calls: lists of the caller, futures."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

from torch_ranks import on_ranks  # noqa: E402

import plait.torch  # noqa: E402


def whole(value: float, count: int = 4) -> torch.Tensor:
    return torch.full((count,), float(value))


# Each call gets the rank and lists of two ranks. Returns its work, the lists, the output and the
# values of the output.


def reduced(group, rank):
    tensors = [whole(rank), whole(10 * rank)]
    return group.allreduce(tensors), [tensors], tensors, [whole(1), whole(10)]


def copied(group, rank):
    tensors = [whole(5 + rank), whole(7 + rank)]
    work = group.broadcast(tensors, dist.BroadcastOptions())
    return work, [tensors], tensors, [whole(5), whole(7)]


def gathered(group, rank):
    outputs = [whole(-1), whole(-1)]
    return group.allgather([outputs], [whole(rank)]), [outputs], outputs, [whole(0), whole(1)]


def gathered_of_sizes(group, rank):
    outputs = [whole(-1, 2), whole(-1, 3)]
    work = group.allgather([outputs], [whole(rank, 2 + rank)])
    return work, [outputs], outputs, [whole(0, 2), whole(1, 3)]


def gathered_singles(group, rank):
    outputs, inputs = [whole(-1, 2), whole(-1, 2)], [whole(rank, 1), whole(rank, 1)]
    work = group.allgather_into_tensor_coalesced(outputs, inputs)
    return work, [outputs, inputs], outputs, [torch.arange(2.0)] * 2


def gathered_several(group, rank):
    rows, inputs = [[whole(-1)], [whole(-1)]], [whole(rank)]
    work = group.allgather_coalesced(rows, inputs)
    return work, [*rows, rows, inputs], [rows[0][0], rows[1][0]], [whole(0), whole(1)]


def gathered_on_root(group, rank):
    outputs = [whole(-1), whole(-1)] if rank == 0 else []
    work = group.gather([outputs] if rank == 0 else [], [whole(rank)], dist.GatherOptions())
    return work, [outputs], outputs, [whole(0), whole(1)][: len(outputs)]


def scattered(group, rank):
    inputs, output = [whole(3), whole(4)] if rank == 0 else [], whole(-1)
    work = group.scatter([output], [inputs] if rank == 0 else [], dist.ScatterOptions())
    return work, [inputs], [output], [whole(3 + rank)]


def reduced_parts(group, rank):
    inputs, output = [whole(rank), whole(rank + 10)], whole(-1)
    work = group.reduce_scatter([output], [inputs], dist.ReduceScatterOptions())
    return work, [inputs], [output], [whole(1 + 20 * rank)]


def reduced_singles(group, rank):
    outputs, inputs = [whole(-1, 2), whole(-1, 2)], [whole(rank), whole(rank)]
    work = group.reduce_scatter_tensor_coalesced(outputs, inputs)
    return work, [outputs, inputs], outputs, [whole(1, 2)] * 2


def exchanged(group, rank):
    outputs, inputs = [whole(-1), whole(-1)], [whole(rank), whole(rank + 10)]
    work = group.alltoall(outputs, inputs)
    return work, [outputs, inputs], outputs, [whole(10 * rank), whole(1 + 10 * rank)]


def exchanged_rows(group, rank):
    """Rank 0 keeps a row, and the ranks exchange 3 rows; rank 1 keeps 2 rows."""
    takes, gives = ([1, 3], [1, 3]) if rank == 0 else ([3, 2], [3, 2])
    output = whole(-1, sum(takes))
    work = group.alltoall_base(output, whole(rank, sum(gives)), takes, gives)
    expected = torch.tensor([0.0, 1, 1, 1] if rank == 0 else [0.0, 0, 0, 1, 1])
    return work, [takes, gives], [output], [expected]


CALLS = [reduced, copied, gathered, gathered_of_sizes, gathered_singles, gathered_several]
CALLS += [gathered_on_root, scattered, reduced_parts, reduced_singles, exchanged, exchanged_rows]


def lists_of_other_values(rank, ranks):
    """A list has other values once its call has returned. In turn each rank waits for the peer's
    earlier call meanwhile."""
    group = dist.group.WORLD
    for call in CALLS:
        for late in range(ranks):
            dist.barrier()
            if rank == late:
                time.sleep(0.1)
            before = dist.all_reduce(torch.ones(1), async_op=True)
            work, lists, outputs, expected = call(group, rank)
            outputs = list(outputs)
            for one in lists:
                one[:] = [1, 1] if one and isinstance(one[0], int) else [whole(-5)]
            before.wait()
            work.wait()
            for output, wanted in zip(outputs, expected, strict=True):
                assert torch.equal(output, wanted), (call.__name__, output, wanted)
    return True


def results(rank, ranks):
    """The result of a call is a list of outputs, of blocking and of asynchronous calls."""
    one, two, root = whole(rank), torch.zeros(8), rank == 0
    parts, both = list(two.view(2, 4).unbind()), [whole(1), whole(2)]
    calls = {
        "all_reduce": (lambda **how: dist.all_reduce(one, **how), [one]),
        "broadcast": (lambda **how: dist.broadcast(one, 0, **how), [one]),
        "reduce": (lambda **how: dist.reduce(one, 0, **how), [one]),
        "all_gather": (lambda **how: dist.all_gather(parts, one, **how), [parts]),
        "all_gather_into_tensor": (
            lambda **how: dist.all_gather_into_tensor(two, one, **how),
            [two],
        ),
        "reduce_scatter": (lambda **how: dist.reduce_scatter(one, both, **how), [one]),
        "reduce_scatter_tensor": (lambda **how: dist.reduce_scatter_tensor(one, two, **how), [one]),
        "gather": (
            lambda **how: dist.gather(one, parts if root else None, 0, **how),
            parts if root else [],
        ),
        "scatter": (lambda **how: dist.scatter(one, both if root else None, 0, **how), [one]),
        "all_to_all": (lambda **how: dist.all_to_all(parts, both, **how), parts),
        "all_to_all_single": (lambda **how: dist.all_to_all_single(two, two, **how), [two]),
        "all_to_all_single, sizes": (
            lambda **how: dist.all_to_all_single(two, two.clone(), [4, 4], [4, 4], **how),
            [two],
        ),
        "barrier": (lambda **how: dist.barrier(**how), []),
    }
    for name, (call, expected) in calls.items():
        work = call(async_op=True)
        work.wait()
        for found in (work.get_future().value(), work.result()):
            assert type(found) is list and same(found, expected), (name, found)
    opts = dist.distributed_c10d.AllgatherOptions()
    opts.asyncOp = False
    assert same(dist.group.WORLD.all_gather_single(two, one, opts).result(), [two])
    return True


def same(found, expected):
    """Returns whether nested lists hold the same tensors."""
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found is expected


def test_a_result_is_a_list_of_outputs():
    assert on_ranks(results) == [True, True]


def test_a_call_copies_the_lists_of_its_caller():
    assert plait.torch is not None
    assert on_ranks(lists_of_other_values) == [True, True]
