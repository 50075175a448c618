"""Tests overloads of a group's methods: values in place of options, tensors in place of lists."""

from __future__ import annotations

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")

from torch_ranks import on_ranks  # noqa: E402

TEN_S = timedelta(seconds=10)
MAX = dist.ReduceOp.MAX


def plain(found):
    """Returns tensors as lists of numbers."""
    if isinstance(found, list):
        return [plain(one) for one in found]
    return found if found is None else found.tolist()


def rows(rank):
    return torch.arange(6.0).reshape(3, 2) + 10 * rank


def reductions(group, rank):
    """Yields what each overload of a reduction gives."""
    for arguments, names in (
        ((), {}),
        ((MAX,), {}),
        ((MAX, TEN_S), {}),
        ((), {"op": MAX, "timeout": TEN_S}),
    ):
        whole, root, part = rows(rank), rows(rank), torch.zeros(2)
        group.allreduce(whole, *arguments, **names).wait()
        yield whole
        group.reduce(root, 1, *arguments, **names).wait()
        yield root if rank == 1 else None
        group.reduce_scatter(part, list(rows(rank)[:2]), *arguments, **names).wait()
        yield part


def moves(group, rank, ranks):
    """Yields what each overload of a move gives."""
    for arguments, names in (((1,), {}), ((1, TEN_S), {}), ((), {"root": 1, "timeout": TEN_S})):
        tensor, parts, found = rows(rank), [torch.zeros(3, 2) for _ in range(ranks)], rows(0)
        group.broadcast(tensor, *arguments, **names).wait()
        yield tensor
        group.gather(parts if rank == 1 else [], rows(rank), *arguments, **names).wait()
        yield parts
        given = [rows(3), rows(4)] if rank == 1 else []
        group.scatter(found, given, *arguments, **names).wait()
        yield found
    for arguments, names in (((), {}), ((TEN_S,), {}), ((), {"timeout": TEN_S})):
        parts, out = [torch.zeros(3, 2) for _ in range(ranks)], torch.zeros(4)
        group.allgather(parts, rows(rank), *arguments, **names).wait()
        yield parts
        mine = torch.arange(4.0) + 10 * rank
        group.alltoall_base(out, mine, [], [], *arguments, **names).wait()
        yield out
        group.barrier(*arguments, **names).wait()


def overloads(rank, ranks):
    group = dist.group.WORLD
    return [plain(one) for one in (*reductions(group, rank), *moves(group, rank, ranks))]


def tensors_in_place_of_lists(rank, ranks):
    """A tensor alone means all of its rows."""
    group = dist.group.WORLD
    mine, found = rows(rank), torch.zeros(3, 2)
    group.reduce(mine, dist.ReduceOptions()).wait()
    if rank == 0:
        group.send(rows(0), 1, 0).wait()
        group.send(rows(3), 1, 0).wait()
        return mine.tolist()
    group.recv(found, 0, 0).wait()
    assert found.equal(rows(0))
    group.recv_anysource(found, 0).wait()
    return found.tolist()


def test_values_in_place_of_options_give_what_gloo_gives():
    assert on_ranks(overloads, 2) == on_ranks(overloads, 2, backend="gloo")


def test_a_tensor_in_place_of_a_list_is_one_tensor():
    reduced, received = on_ranks(tensors_in_place_of_lists, 2)
    assert reduced == (rows(0) + rows(1)).tolist()
    assert received == rows(3).tolist()
