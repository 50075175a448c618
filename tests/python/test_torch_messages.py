"""Tests point-to-point messages of the torch backend: contents, order, end of the group."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

from torch_ranks import await_told, on_ranks, tell  # noqa: E402

import plait.torch  # noqa: E402


def crossed_tags(rank, ranks):
    if rank == 0:
        works = [dist.isend(torch.full((9,), float(tag)), 1, tag=tag) for tag in (1, 2, 3)]
    else:
        found = {tag: torch.empty(9) for tag in (3, 1, 2)}
        works = [dist.irecv(one, 0, tag=tag) for tag, one in found.items()]
    for work in works:
        work.wait()
    if rank == 1:
        assert all(torch.equal(one, torch.full((9,), float(tag))) for tag, one in found.items())


def all_send_first(rank, ranks):
    """Sends more than a ring holds, and waits only at the end."""
    mine = torch.full((3 << 20,), float(rank))
    gone = [dist.isend(mine, to) for to in range(ranks) if to != rank]
    for source in range(ranks):
        if source != rank:
            found = torch.empty(3 << 20).view(3, 1 << 20).t()  # not contiguous
            dist.recv(found, source)
            assert bool((found == source).all())
    for work in gone:
        work.wait()


def to_itself_first(rank, ranks):
    """Sends to itself, then receives from peers that connect later, by rank and from any source."""
    if rank != ranks - 1:
        time.sleep(0.5)
        for _ in range(2):
            dist.send(torch.full((4,), float(rank)), ranks - 1)
        return
    found = torch.empty(4)
    own = [dist.irecv(found, rank), dist.isend(torch.full((4,), 9.0), rank)]
    for work in own:
        work.wait()
    assert found.tolist() == [9.0] * 4
    for peer in range(ranks - 1):
        dist.recv(found, peer)
        assert found.tolist() == [float(peer)] * 4
    seen = []
    for _ in range(ranks - 1):
        seen.append(dist.recv(found))
        assert found.tolist() == [float(seen[-1])] * 4
    assert sorted(seen) == list(range(ranks - 1))


def from_anybody(rank, ranks):
    if rank != 0:
        time.sleep(0.05 * (ranks - rank))  # the last rank is first
        dist.send(torch.tensor([rank, 7]), 0, tag=5)
        return
    seen = []
    for _ in range(ranks - 1):
        found = torch.empty(2, dtype=torch.int64)
        source = dist.recv(found, tag=5)
        assert found.tolist() == [source, 7]
        seen.append(source)
    assert sorted(seen) == list(range(1, ranks))


def nobody_waits(rank, ranks):
    """Posted messages progress without a waiting thread."""
    peer = 1 - rank
    found = torch.empty(1 << 20)
    works = [dist.irecv(found, peer), dist.isend(torch.full((1 << 20,), 4.0 + rank), peer)]
    end = time.monotonic() + 30
    while not all(work.is_completed() for work in works):
        assert time.monotonic() < end
        time.sleep(0.001)
    assert bool((found == 4.0 + peer).all())
    dist.barrier()


def hundreds_both_ways(rank, ranks):
    """Sends more rendezvous messages both ways than a direction has offers, and destroys a group
    with offers in flight."""
    peer, count = 1 - rank, 600
    mine = torch.arange(count, dtype=torch.float32).repeat_interleave(1 << 15).view(count, -1)
    found = torch.empty_like(mine)
    dist.barrier()
    for _ in range(2):  # the first messages are eager: the peer has not yet accepted the stream
        gone = [dist.isend(one, peer) for one in mine]
        come = [dist.irecv(one, peer) for one in found]
        for work in come + gone:
            work.wait()
        assert torch.equal(found, mine)
        found.zero_()
    gone = [dist.isend(one, peer) for one in mine]
    for one in found:
        dist.recv(one, peer)
    dist.destroy_process_group()
    for work in gone:
        work.wait()
    assert torch.equal(found, mine)


def wrong_size(rank, ranks):
    if rank == 0:
        dist.send(torch.ones(4), 1)
        dist.send(torch.ones(4), 1, tag=1)
    else:
        with pytest.raises(plait.MismatchError, match="wanted 12 bytes, found a message of 16"):
            dist.recv(torch.empty(3), 0)
        found = torch.empty(4)
        dist.recv(found, 0, tag=1)  # the stream still works
        assert torch.equal(found, torch.ones(4))


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        (crossed_tags, 2),
        (all_send_first, 3),
        (from_anybody, 4),
        (to_itself_first, 2),
        (to_itself_first, 3),
        (nobody_waits, 2),
        (hundreds_both_ways, 2),
        (wrong_size, 2),
    ],
)
def test_messages(program, ranks):
    on_ranks(program, ranks)


SIZES = (3, 100_000, 2_000_000)  # floats: in the ring, then by rendezvous


def sent_and_destroyed(rank, ranks):
    """The sender destroys the group at once; the receivers come 1 s later."""
    if rank == 0:
        for to in range(1, ranks):
            for tag, count in enumerate(SIZES):
                dist.isend(torch.full((count,), 7.0 * to + tag), to, tag=tag)
        began = time.monotonic()
        tell("sent")
        dist.destroy_process_group()
        return time.monotonic() - began
    await_told("sent")
    time.sleep(1)
    for tag in (0, 2, 1):
        found = torch.empty(SIZES[tag])
        dist.recv(found, 0, tag=tag)
        assert bool((found == 7.0 * rank + tag).all())
    dist.destroy_process_group()
    return 1


def sent_and_destroyed_without_pulls(rank, ranks):
    """Runs without process_vm_readv, as on kernels that forbid it."""
    dist.group.WORLD._mail._core.set_may_pull(False)
    return sent_and_destroyed(rank, ranks)


def a_last_word(rank, ranks):
    """Receives from a rank before and after the process has ended, without ever sending to it."""
    if rank == 0:
        dist.send(torch.tensor([5.0]), 1)
        dist.send(torch.tensor([6.0]), 1)
        os._exit(0)
    time.sleep(1)
    for expected in (5.0, 6.0):
        found = torch.empty(1)
        dist.recv(found, 0)
        assert found.item() == expected
    with pytest.raises(dist.DistNetworkError, match="rank 0 has ended"):
        dist.recv(torch.empty(1), 0)
    return True


def a_last_word_after_a_send_in_vain(rank, ranks):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.send(torch.tensor([5.0]), 1)
        store.set("pid", str(os.getpid()))
        os._exit(0)
    state = Path(f"/proc/{store.get('pid').decode()}/stat")
    end = time.monotonic() + 60
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)
    with pytest.raises(dist.DistNetworkError, match=r"send of 4 bytes.*: rank 0 has ended"):
        dist.send(torch.empty(1), 0)
    found = torch.empty(1)
    dist.recv(found, 0)
    return found.item() == 5.0


def never_received(rank, ranks, count):
    if rank == 1:
        await_told("over")
        return True
    store = dist.distributed_c10d._get_default_store()
    dist.isend(torch.ones(count), 1, tag=9)
    began = time.monotonic()
    said = rf"Timed out waiting 3000ms for the send of {4 * count} bytes to rank 1 \(tag 9\)"
    with pytest.raises(dist.DistBackendError, match=said):
        dist.destroy_process_group()
    waited = time.monotonic()
    assert 2.9 < waited - began < 20
    dist.destroy_process_group()  # torch drops the group; no second wait
    assert time.monotonic() - waited < 2.9
    store.set("over", "")
    return True


def never_received_by_a_rank_that_leaves(rank, ranks, count):
    """The sender gets the error at once."""
    if rank == 1:
        time.sleep(0.5)
        dist.destroy_process_group()
        return True
    dist.isend(torch.ones(count), 1, tag=9)
    began = time.monotonic()
    said = rf"send of {4 * count} bytes to rank 1 \(tag 9\).*: rank 1 has ended"
    with pytest.raises(dist.DistNetworkError, match=said):
        dist.destroy_process_group()
    return time.monotonic() - began < 10


def both_leave(rank, ranks):
    """Both ranks leave without receiving, hence neither waits for the peer."""
    dist.send(torch.ones(3), 1 - rank)
    dist.barrier()
    began = time.monotonic()
    with contextlib.suppress(dist.DistNetworkError):
        dist.destroy_process_group()
    return time.monotonic() - began < 10


def kept_after_its_end(rank, ranks):
    """A destroyed group that the program keeps has no descriptors, and refuses messages."""
    before = len(os.listdir("/proc/self/fd"))
    tensor, peer, kept = torch.ones(3), 1 - rank, []
    for _ in range(3):
        group = dist.new_group()
        for _ in range(2):
            gone = dist.isend(tensor, peer, group=group)
            dist.recv(torch.empty(3), peer, group=group)
            gone.wait()
        dist.all_reduce(tensor, group=group)
        del gone
        dist.destroy_process_group(group)
        kept.append(group)
    # A rank that has waited for a second also listens for `plait status`.
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    for call in (
        lambda: group.send([tensor], peer, 0),
        lambda: group.recv([tensor], peer, 0),
        lambda: group.recv_anysource([tensor], 0),
        group.monitored_barrier,
    ):
        with pytest.raises(dist.DistBackendError, match="it was destroyed"):
            call()
    return True


def aborted_with_a_message(rank, ranks):
    if rank == 1:
        await_told("over")
        return True
    store = dist.distributed_c10d._get_default_store()
    work = dist.isend(torch.ones(SIZES[2]), 1)
    began = time.monotonic()
    dist.group.WORLD.abort()
    dist.destroy_process_group()
    assert time.monotonic() - began < 20  # of a timeout of 60 s
    store.set("over", "")
    with pytest.raises(dist.DistBackendError, match="closed : it was aborted"):
        work.wait()
    return True


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("program", [sent_and_destroyed, sent_and_destroyed_without_pulls])
def test_messages_are_received_from_a_group_that_is_destroyed(program, ranks):
    waited = on_ranks(program, ranks, timeout_s=30)
    assert 0.8 < waited[0] < 20


@pytest.mark.parametrize("program", [a_last_word_after_a_send_in_vain, a_last_word])
def test_messages_are_received_from_a_process_that_has_ended(program):
    assert on_ranks(program)[1]


@pytest.mark.parametrize("count", SIZES)
def test_a_message_that_nobody_receives_is_an_error_when_its_group_is_destroyed(count):
    assert all(on_ranks(functools.partial(never_received, count=count), timeout_s=3))
    leaving = functools.partial(never_received_by_a_rank_that_leaves, count=count)
    assert all(on_ranks(leaving, timeout_s=60))


def test_groups_that_are_destroyed_together_do_not_wait_for_each_other():
    assert all(on_ranks(both_leave, timeout_s=60))


def test_an_abort_does_not_wait_for_receivers():
    assert all(on_ranks(aborted_with_a_message, timeout_s=60))


def test_a_destroyed_group_keeps_no_descriptor():
    assert on_ranks(kept_after_its_end, 2) == [True, True]
