"""Tests forked children of ranks of the torch backend: errors at once, and groups of their own."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from datetime import timedelta
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

from torch_ranks import on_ranks  # noqa: E402

import plait.torch  # noqa: E402

ENDS_S = 20


def in_child(call):
    """Returns what call() returns in a forked child, or "hangs"."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = call()
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(theirs, str(told).encode())
        os._exit(0)
    os.close(theirs)
    end = time.monotonic() + ENDS_S
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hangs"
        time.sleep(0.01)
    with os.fdopen(ours) as pipe:
        return pipe.read()


def future(work):
    return work.get_future().wait()


def sum_of(async_op=False):
    return dist.all_reduce(torch.ones(3), async_op=async_op)


CALLS = {
    "blocking": sum_of,
    "async": lambda: sum_of(True).wait(),
    "future": lambda: future(sum_of(True)),
    "callback": lambda: sum_of(True).get_future().then(lambda found: found.value()).wait(),
    "time of its own": lambda: dist.barrier(timeout=timedelta(seconds=9)),
    "send": lambda: dist.send(torch.ones(3), 1 - dist.get_rank()),
    "receive": lambda: dist.recv(torch.ones(3), 1 - dist.get_rank()),
    "monitored": lambda: dist.group.WORLD.monitored_barrier(),
}


def each_call(rank, ranks):
    """The group has made calls and callbacks of all kinds."""
    works = [dist.isend(torch.ones(3), 1 - rank), dist.irecv(torch.ones(3), 1 - rank)]
    works += [sum_of(True), sum_of(True)]
    for work in works:
        work.wait()
        future(work)
    return check_calls(ranks)


def check_calls(ranks):
    for name, call in CALLS.items():
        told = in_child(call)
        assert "belongs to the process that forked" in told, (name, told)
    mine = torch.ones(3)
    dist.all_reduce(mine)  # the parent goes on
    assert torch.all(mine == ranks)
    return True


def before_any_call(rank, ranks):
    """A child that makes the first call does not take the parent's part in the set-up."""
    return check_calls(ranks)


def during_a_call(rank, ranks):
    """Forks while threads of the group wait in a call, in a receive and in a callback."""
    found, peer = torch.ones(3), 1 - rank
    dist.barrier()
    callback, go = threading.Event(), threading.Event()
    before = sum_of(True)
    after = before.get_future().then(lambda _: (callback.set(), go.wait()))
    receive = dist.irecv(found, peer)
    assert callback.wait(ENDS_S)
    told = {}
    if rank == 0:
        running, queued = sum_of(True), sum_of(True)
        time.sleep(0.1)
        told = {name: in_child(call) for name, call in CALLS.items()}
        for name, work in (("running", running), ("queued", queued), ("message", receive)):
            told[name] = in_child(work.wait)
            told[f"future of {name}"] = in_child(lambda work=work: future(work))
        told["destroy"] = in_child(dist.destroy_process_group)
        works = [running, queued]
    else:
        dist.distributed_c10d._get_default_store().wait(["forked"])
        works = [sum_of(True), sum_of(True)]
    if rank == 0:
        dist.distributed_c10d._get_default_store().set("forked", "")
    go.set()
    for work in works:
        work.wait()
    after.wait()
    dist.send(torch.full((3,), 7.0), peer)
    receive.wait()
    assert found.tolist() == [7.0] * 3
    assert rank == 1 or told.pop("destroy") == "None"
    for name, one in told.items():
        assert "belongs to the process that forked" in one, (name, one)
    return True


def during_a_blocking_call(rank, ranks):
    """Forks in a thread while the main thread is in a blocking call."""
    dist.barrier()
    told = {}

    def fork():
        time.sleep(0.3)
        told.update((name, in_child(call)) for name, call in CALLS.items())
        dist.distributed_c10d._get_default_store().set("forked", "")

    if rank == 0:
        thread = threading.Thread(target=fork)
        thread.start()
        sum_of()
        thread.join()
    else:
        dist.distributed_c10d._get_default_store().wait(["forked"])
        sum_of()
    for name, one in told.items():
        assert "belongs to the process that forked" in one, (name, one)
    return True


def groups_of_children(rank, ranks, folder):
    """Children destroy the inherited group, and make one of their own."""
    sum_of(True).wait()

    def call():
        dist.destroy_process_group()
        dist.init_process_group(
            "plait", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
        )
        mine, found = torch.ones(3), torch.ones(3)
        dist.all_reduce(mine)
        work = dist.all_reduce(mine, async_op=True)
        future(work)
        gone = dist.isend(mine, 1 - rank)
        dist.recv(found, 1 - rank)
        gone.wait()
        dist.destroy_process_group()
        return found.tolist()

    assert in_child(call) == str([float(ranks * ranks)] * 3)
    sum_of()
    return True


@pytest.mark.parametrize(
    "program", [each_call, before_any_call, during_a_call, during_a_blocking_call]
)
def test_a_forked_child_gets_errors_at_once(program):
    assert plait.torch is not None
    assert on_ranks(program) == [True, True]


def test_a_forked_child_makes_a_group_of_its_own():
    with tempfile.TemporaryDirectory() as folder:
        assert on_ranks(partial(groups_of_children, folder=folder)) == [True, True]
