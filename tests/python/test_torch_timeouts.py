"""Tests timeouts of the torch.distributed backend that change while a group has calls."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")

from torch_ranks import await_told, on_ranks, tell  # noqa: E402

import plait.torch  # noqa: E402
from plait.torch.gpu import GpuBackend  # noqa: E402
from plait.torch.works import PendingWork  # noqa: E402

SHORT_S = 3  # a group's timeout, which its first call keeps on a busy machine too


def barrier_of_its_own_time(rank, ranks):
    dist.barrier()
    if rank == 0:
        with pytest.raises(RuntimeError, match="Timed out waiting 200ms for barrier"):
            dist.barrier(timeout=timedelta(seconds=0.2))
        tell("over")
        with pytest.raises(RuntimeError, match="did not complete within its own timeout"):
            dist.barrier()
    else:
        await_told("over")
        with pytest.raises(RuntimeError, match=r"closed|rank 0"):
            dist.barrier()  # rank 0 has come to this barrier, hence an error is no must
            dist.barrier()
    return True


def barrier_that_the_core_ends(rank, ranks):
    within = PendingWork.wait_within
    PendingWork.wait_within = lambda work, seconds: within(work, seconds + 20)
    return barrier_of_its_own_time(rank, ranks)


def late_rank_is_awaited(rank, ranks):
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=30))
    for is_async in (False, True):
        if rank == 1:
            time.sleep(SHORT_S + 1)
        tensor = torch.ones(3)
        work = dist.all_reduce(tensor, async_op=is_async)
        if is_async:
            work.wait()
        assert tensor.tolist() == [2.0] * 3


def shorter_limit_ends_calls(rank, ranks):
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=1))
    if rank == 1:
        await_told("over")
        return None
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="Timed out waiting 1000ms for all_reduce"):
        dist.all_reduce(torch.ones(3))
    tell("over")
    return time.monotonic() - began


def calls_before_keep_their_limit(rank, ranks):
    """A call that was queued before keeps the former timeout."""
    dist.barrier()
    if rank == 1:
        time.sleep(2)
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(2)]
    dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
    for work in works:
        work.wait()


def own_limit_may_be_longer(rank, ranks):
    dist.barrier()
    if rank == 1:
        time.sleep(SHORT_S + 1)
    opts = dist.BarrierOptions()
    opts.asyncOp = False
    opts.timeout = timedelta(seconds=30)
    dist.group.WORLD.barrier(opts)


def waits_without_an_end(rank, ranks):
    """Makes calls of all kinds in a group that never gives up, and destroys the group."""
    world = dist.new_group(timeout=timedelta.max)
    tensor, found = torch.ones(3), torch.zeros(3)
    dist.all_reduce(tensor, async_op=True).wait(timedelta.max)
    work = dist.all_reduce(tensor, group=world, async_op=True)
    work.get_future().then(lambda _: dist.all_reduce(tensor, group=world)).wait()
    world.monitored_barrier()
    world.monitored_barrier(timedelta.max)
    dist.barrier(world, timeout=timedelta.max)
    dist.isend(tensor, 1 - rank, group=world)
    dist.irecv(found, 1 - rank, group=world).wait(timedelta.max)
    world.set_timeout(timedelta.max)
    dist.destroy_process_group(world)
    return found.tolist()


def test_the_longest_timeout_is_a_wait_without_an_end():
    assert on_ranks(waits_without_an_end, 2) == [[8.0] * 3] * 2


def test_a_longer_timeout_holds_for_later_calls():
    on_ranks(late_rank_is_awaited, timeout_s=SHORT_S)


def test_a_shorter_timeout_holds_for_later_calls():
    waited, _ = on_ranks(shorter_limit_ends_calls, timeout_s=60)
    assert 0.9 < waited < 30  # on a busy machine


def test_a_timeout_does_not_hold_for_earlier_calls():
    on_ranks(calls_before_keep_their_limit, timeout_s=60)


def test_a_call_may_have_a_longer_timeout_than_its_group():
    on_ranks(own_limit_may_be_longer, timeout_s=SHORT_S)


@pytest.mark.parametrize("program", [barrier_of_its_own_time, barrier_that_the_core_ends])
def test_a_call_that_exceeds_its_own_timeout_aborts_its_group(program):
    on_ranks(program, timeout_s=60)


def test_kernels_keep_the_timeout_of_the_first_call_on_a_gpu():
    group = plait.torch.group.create(dist.HashStore(), 0, 1, timedelta(seconds=5))
    backend = group._gpu_backend = GpuBackend(None, 0, 2, 5.0)
    group.set_timeout(timedelta(seconds=7))
    assert backend.timeout_s == 7.0
    backend._core = object()
    group.set_timeout(timedelta(seconds=7))
    with pytest.raises(plait.UnsupportedError, match=r"wanted 7\.0 s.* found 12\.0 s"):
        group.set_timeout(timedelta(seconds=12))
    assert group._timeout_s == backend.timeout_s == group._host().timeout_s == 7.0
