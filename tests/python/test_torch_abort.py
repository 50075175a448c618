"""Tests aborts of a torch.distributed group before and during its first call."""

from __future__ import annotations

import functools
import threading
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")

from torch_ranks import await_told, on_ranks, tell  # noqa: E402

import plait.torch  # noqa: E402
from plait.torch.bootstrap import tell_abort  # noqa: E402
from plait.torch.gpu import GpuBackend  # noqa: E402

CLOSED = "the process group was closed"
SOON_S = 20.0  # on a busy machine, of timeouts of 60 s


def sum_is_closed(is_async=False):
    """Returns the seconds until a sum has failed, since the group is closed."""
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=CLOSED):
        work = dist.all_reduce(torch.ones(3), async_op=is_async)
        if is_async:
            work.wait()
    return time.monotonic() - began


def group_is_ended():
    """Later calls and the end of the group do not wait."""
    began = time.monotonic()
    sum_is_closed()
    dist.destroy_process_group()
    assert time.monotonic() - began < SOON_S


def sum_with_a_late_rank(rank, late, aborts, is_async=False):
    """Rank `aborts` aborts the group in a second; rank `late` calls after that."""
    if rank == late:
        await_told("aborted")
    if rank == aborts:
        threading.Timer(1, dist.group.WORLD.abort).start()
    assert sum_is_closed(is_async) < SOON_S
    if rank == aborts:
        tell("aborted")
    group_is_ended()


def abort_in_rendezvous(rank, ranks, is_async=False):
    sum_with_a_late_rank(rank, late=ranks - 1, aborts=0, is_async=is_async)


def abort_in_rendezvous_of_a_queued_call(rank, ranks):
    abort_in_rendezvous(rank, ranks, True)


def abort_with_a_slow_store(rank, ranks):
    """Peers in the rendezvous see the socket of rank 0 close before the abort is in the store."""

    def tell_late(store, rank):
        thread = threading.Timer(0.5, lambda: tell_abort(store, rank).join())
        thread.start()
        return thread

    plait.torch.group.tell_abort = tell_late
    abort_in_rendezvous(rank, ranks)  # whose processes end after destroy_process_group()


def abort_before_rank_zero(rank, ranks):
    """Rank 0 comes late, so the others wait for the store."""
    sum_with_a_late_rank(rank, late=0, aborts=1)


def abort_before_the_first_call(rank, ranks):
    if rank == 0:
        dist.group.WORLD.abort()
    assert sum_is_closed() < SOON_S
    group_is_ended()


def own_timeout_in_the_first_call(rank, ranks):
    """A call that exceeds its own timeout closes the group for peers that come later."""
    if rank == 0:
        opts = dist.BarrierOptions()
        opts.asyncOp = False
        opts.timeout = timedelta(seconds=1)
        with pytest.raises(dist.DistBackendError, match="Timed out waiting 1000ms for barrier"):
            dist.group.WORLD.barrier(opts)
        tell("over")
    else:
        await_told("over")
    assert sum_is_closed() < SOON_S


def message_to_a_rank_without_the_group(rank, ranks):
    """A rank that has no group yet has no mailbox to connect to."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        await_told("over")
        return
    other = plait.torch.create(dist.PrefixStore("late", store), 0, 2, timedelta(seconds=60))
    threading.Timer(1, other.abort).start()
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=CLOSED):
        other.send([torch.ones(3)], 1, 0)
    assert time.monotonic() - began < SOON_S
    tell("over")


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "program",
    [
        abort_in_rendezvous,
        abort_in_rendezvous_of_a_queued_call,
        abort_with_a_slow_store,
        abort_before_rank_zero,
        abort_before_the_first_call,
        own_timeout_in_the_first_call,
    ],
)
def test_an_abort_ends_a_first_call_on_all_ranks(program, ranks):
    on_ranks(program, ranks, timeout_s=60)


def test_an_abort_ends_a_message_to_a_rank_that_has_not_come():
    on_ranks(message_to_a_rank_without_the_group, timeout_s=60)


def abort_on_a_gpu(number, by_peer, rank, ranks):
    """Aborts the set-up of rank `number` of two ranks."""
    store = dist.HashStore()
    backend = GpuBackend(store, number, 2, 60.0)
    backend._device = torch.device("cuda", 0)
    abort = (lambda: tell_abort(store, 1 - number)) if by_peer else backend.abort
    threading.Timer(0.5, abort).start()
    began = time.monotonic()
    with pytest.raises(plait.AbortedError, match="wanted an open process group"):
        backend._bootstrap()
    assert time.monotonic() - began < SOON_S
    assert backend._closed != "" and backend._core is None


# Set-ups run in a process of their own: a process reads PLAIT_WARN_S once.


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("by_peer", [False, True])
def test_an_abort_ends_the_first_call_on_a_gpu(monkeypatch, number, by_peer):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    on_ranks(functools.partial(abort_on_a_gpu, number, by_peer), 1)


def abort_before_a_gpu(rank, ranks):
    group = plait.torch.create(dist.HashStore(), 0, 2, timedelta(seconds=60))
    group.abort()
    backend = group._gpu(torch.device("cuda", 0))
    backend._device = torch.device("cuda", 0)
    with pytest.raises(plait.AbortedError, match="rank 0 aborted it"):
        backend._bootstrap()


def test_an_abort_reaches_a_gpu_that_the_group_has_not_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    on_ranks(abort_before_a_gpu, 1)
