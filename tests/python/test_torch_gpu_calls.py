"""Tests the host's part of calls on GPU tensors, with stand-ins for GPUs."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")

from torch_ranks import on_ranks  # noqa: E402

import plait.torch  # noqa: E402

A_GPU = object()  # stands for the GPU backend of a call


# Exchanges of sizes, which a call on a GPU makes on the host.


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
