"""Tests monitored barriers of the torch backend, to which a rank comes late or never."""

from __future__ import annotations

import contextlib
import functools
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

from torch_ranks import await_told, on_ranks, tell  # noqa: E402


def missing_at_a_monitored_barrier(rank, ranks):
    group = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=20))
    if rank > 1:
        await_told("over 0", "over 1")
        return True
    with pytest.raises(RuntimeError) as found:  # rank 1 may come late on a busy machine
        group.monitored_barrier(timedelta(seconds=3), wait_all_ranks=True)
    tell(f"over {rank}")
    expected = "Ranks 2, 3 failed to pass monitoredBarrier in 3000 ms"
    assert (expected if rank == 0 else "Rank 1 successfully reached") in str(found.value)
    return True


def test_a_monitored_barrier_names_the_ranks_that_do_not_come():
    assert all(on_ranks(missing_at_a_monitored_barrier, 4))


def late_at_a_monitored_barrier(rank, ranks, late):
    """After a barrier that failed for a late rank, the next barrier waits for that rank again."""
    group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
    group.monitored_barrier(timedelta(seconds=20))
    if rank == late:
        store.wait(["failed"])
    with (
        contextlib.nullcontext()
        if rank == late == 0
        else pytest.raises(RuntimeError, match="monitored")
    ):
        group.monitored_barrier(timedelta(seconds=0.3))
    store.set("failed" if rank != late else "late", "")
    store.wait(["late"])
    if rank == late:
        time.sleep(3)
    began = time.monotonic()
    group.monitored_barrier(timedelta(seconds=20))
    return time.monotonic() - began


@pytest.mark.parametrize("late", [0, 1])
def test_a_barrier_waits_for_a_rank_that_was_late_before(late):
    waited = on_ranks(functools.partial(late_at_a_monitored_barrier, late=late))
    assert 0.8 < waited[1 - late] < 15, waited
