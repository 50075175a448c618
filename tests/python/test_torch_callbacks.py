"""Tests callbacks of futures in the torch backend, and DDP's communication hooks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

from torch_ranks import on_ranks  # noqa: E402

import plait.torch.callbacks  # noqa: E402
from plait.torch.callbacks import Callbacks  # noqa: E402


def begun(value: float):
    """Starts an all_reduce of four elements of this value; returns its future."""
    return dist.all_reduce(torch.full((4,), value), async_op=True).get_future()


def waits_for_the_next(rank, ranks):
    """Makes a call in a callback and waits for the result, to a depth of three, as PowerSGD
    does."""

    def then(done):
        return begun(done.value()[0][0].item()).wait()[0]

    def by_way_of_another(done):
        return begun(done.value()[0][0].item()).then(then).wait()

    assert begun(1.0).then(then).wait().tolist() == [ranks**2] * 4
    assert begun(1.0).then(by_way_of_another).wait().tolist() == [ranks**3] * 4
    blocking = torch.ones(4)
    begun(1.0).then(lambda _: dist.all_reduce(blocking)).wait()
    assert blocking.tolist() == [ranks] * 4


def waits_for_one_behind_it(rank, ranks):
    """Waits in a callback for a call with callbacks that come later."""
    first, second = begun(1.0), begun(2.0)
    told = second.then(lambda done: done.value()[0])
    assert first.then(lambda _: told.wait()).wait().tolist() == [2.0 * ranks] * 4
    both = torch.futures.collect_all([begun(1.0), begun(1.0)])
    assert both.then(lambda _: begun(3.0).wait()[0]).wait().tolist() == [3.0 * ranks] * 4


def waits_for_a_message(rank, ranks):
    """Waits for a message in a callback of another message."""
    peer, found = 1 - rank, torch.zeros(2)

    def then(_):
        sent = dist.isend(torch.full((2,), 5.0 + rank), peer, tag=2)
        dist.recv(found, peer, tag=2)
        sent.wait()
        return found

    receive = dist.irecv(torch.empty(1 << 18), peer, tag=1)
    told = receive.get_future().then(then)
    dist.send(torch.ones(1 << 18), peer, tag=1)
    assert told.wait().tolist() == [5.0 + peer] * 2
    dist.barrier()


def come_in_order(rank, ranks):
    """Makes calls in callbacks of several calls; if the order differed, sizes would disagree."""
    told = []

    def then(number):
        def make(_):
            time.sleep(0.002 * ((rank + number) % 2))
            return dist.all_reduce(torch.ones(number + 1), async_op=True).get_future()

        return make

    with dist.group.WORLD._host_backend._turn:  # no call ends before the last call is made
        for number in range(12):
            told.append(begun(1.0).then(then(number)))
    for number, one in enumerate(told):
        assert one.wait().wait()[0].tolist() == [ranks] * (number + 1)


def come_in_order_though_added_late(rank, ranks):
    """Rank 0 adds its first callback, a slow one, during the call; the rest add theirs later."""

    def doubled(done):
        found = done.value()[0]
        time.sleep(0.2 if found[0] < 5 * ranks else 0)
        dist.all_reduce(found, async_op=True).wait()
        return found[0].item()

    for _ in range(3):
        time.sleep(0.3 if rank > 0 else 0)
        works = [dist.all_reduce(torch.full((4,), one), async_op=True) for one in (1.0, 10.0)]
        if rank > 0:
            works[1].wait()
        first = works[0].get_future().then(doubled)
        works[1].wait()
        second = works[1].get_future().then(doubled)
        assert [first.wait(), second.wait()] == [ranks**2, 10 * ranks**2]


def added_late_run_in_threads_of_the_group(rank, ranks):
    def place(done):
        told.append((threading.current_thread().name, done.value()[0][0].item()))

    for future in (begun(1.0), begun(1.0)):
        told = []
        future.wait()
        future.add_done_callback(place)
        future.then(place).wait()
        assert told == [("plait-callbacks", ranks)] * 2

        def fails(_):
            raise ValueError("no such thing")

        with pytest.raises(Exception, match="no such thing"):
            future.then(fails).wait()
    failed = dist.all_reduce(torch.ones(4 + rank), async_op=True).get_future()
    with pytest.raises(RuntimeError, match="rank"):
        failed.wait()
    with pytest.raises(Exception, match="rank"):
        failed.then(lambda done: done.value()).wait()


def added_in_callbacks_are_awaited_there(rank, ranks):
    """Adds a callback to a future of the main thread, which is complete, and waits for it."""
    plait.torch.callbacks._SLOW_CALLBACK_S = 30.0  # a callback behind a slow one starts then
    ended = begun(1.0)
    ended.wait()

    def nested(_):
        began = time.monotonic()
        found = ended.then(lambda done: begun(done.value()[0][0].item()).wait()[0][0].item()).wait()
        return found, time.monotonic() - began

    found, took = begun(2.0).then(nested).wait()
    assert found == ranks**2 and took < 15


def keep_their_order_where_one_takes_long(rank, ranks):
    """A rank starts the next callback early; calls have equal sizes."""
    found = {}

    def twice(name, value):
        def make(_):
            found[name] = [torch.full((4,), value), torch.full((4,), 10 * value)]
            dist.all_reduce(found[name][0])
            if name == "first" and rank == 1:
                time.sleep(1.6)
            dist.all_reduce(found[name][1])

        return make

    for one in [begun(1.0).then(twice(*call)) for call in (("first", 1.0), ("second", 3.0))]:
        one.wait()
    sums = {name: [one[0].item() for one in both] for name, both in found.items()}
    assert sums == {"first": [ranks, 10 * ranks], "second": [3 * ranks, 30 * ranks]}


def errors_reach_the_future(rank, ranks):
    """Checks futures of a failed call and of a failed callback."""
    failed = dist.all_reduce(torch.ones(4 + rank), async_op=True).get_future()
    with pytest.raises(RuntimeError, match="rank"):
        failed.wait()

    def then(_):
        raise ValueError("no such thing")

    with pytest.raises(Exception, match="no such thing"):
        begun(1.0).then(then).wait()
    assert begun(1.0).wait()[0].tolist() == [ranks] * 4


def trained(hook=None, bucket_mb=0.01) -> list[torch.Tensor]:
    """Returns the gradients of a network after some steps of DDP with the hook."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), bucket_cap_mb=bucket_mb
    )
    if hook is not None:
        hook(model)
    given = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(4):
        model(torch.randn(4, 64, generator=given)).square().sum().backward()
    return [one.grad for one in model.parameters()]


def hooks(rank, ranks):
    """Compares DDP's hooks in Python and C++; PowerSGD's makes calls in callbacks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    builtin = dist.BuiltinCommHookType
    wanted = trained()
    exact = (
        lambda model: model._register_builtin_comm_hook(builtin.ALLREDUCE),
        lambda model: model.register_comm_hook(None, default_hooks.allreduce_hook),
    )
    near = (
        lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
        lambda model: model.register_comm_hook(
            None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
        ),
    )
    for hook in exact:
        assert all(map(torch.equal, trained(hook), wanted))
    for hook in near:
        for found, one in zip(trained(hook), wanted, strict=True):
            assert torch.allclose(found, one, rtol=1e-2, atol=1e-2 * one.abs().max().item())
    state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
    hook = powerSGD_hook.powerSGD_hook
    found = trained(lambda model: model.register_comm_hook(state, hook), bucket_mb=25)
    assert all(one.isfinite().all() for one in found)
    with pytest.raises(RuntimeError, match="should return TensorList"):  # docs/pytorch.md, Limits
        trained(lambda model: model._register_builtin_comm_hook(builtin.FP16_COMPRESS))
    theirs = [torch.empty_like(found[0]) for _ in range(ranks)]
    dist.all_gather(theirs, found[0])
    assert torch.equal(theirs[0], theirs[1])


def threads_end(rank, ranks):
    begun(1.0).then(lambda _: begun(1.0).wait()).wait()
    later = begun(1.0).then(lambda _: time.sleep(0.3) or "done")
    dist.destroy_process_group()
    assert later.done()  # destroying waited for this call
    end = time.monotonic() + 10
    while any(one.name.startswith("plait") for one in threading.enumerate()):
        assert time.monotonic() < end, threading.enumerate()
        time.sleep(0.01)


@pytest.mark.parametrize(
    "program",
    [
        *(waits_for_the_next, waits_for_one_behind_it, waits_for_a_message, come_in_order),
        *(come_in_order_though_added_late, added_late_run_in_threads_of_the_group),
        added_in_callbacks_are_awaited_there,
        *(keep_their_order_where_one_takes_long, errors_reach_the_future, hooks, threads_end),
    ],
)
def test_callbacks(program):
    on_ranks(program, timeout_s=20)


ENDS_AMID_CALLBACKS = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group(
    "plait", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(5)]
def slow(done):
    time.sleep(0.2)
    print("ran", flush=True)
futures = [one.get_future().then(slow) for one in works]
works[-1].wait()
"""


def two_programs(program: str, store: Path) -> list[tuple[int, str, str]]:
    """Returns the exit statuses, outputs and errors of a program's two ranks."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(store), str(rank)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=100) for rank in ranks]
    return [(rank.returncode, *one) for rank, one in zip(ranks, told, strict=True)]


def test_a_program_that_ends_runs_the_callbacks_of_ended_calls(tmp_path):
    for status, found, errors in two_programs(ENDS_AMID_CALLBACKS, tmp_path / "store"):
        assert (status, found) == (0, "ran\n" * 5), errors


RAISES_AMID_A_CALLBACK = """
import sys, time, torch, torch.distributed as dist
rank = int(sys.argv[2])
dist.init_process_group("plait", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
work = dist.all_reduce(torch.ones(1), async_op=True)
if rank == 0:
    def waits(_):
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    kept = work.get_future().then(waits)
    work.wait()
    time.sleep(0.2)
    raise ValueError("of this rank")
work.wait()
began = time.monotonic()
try:
    dist.recv(torch.empty(1), 0)
except RuntimeError:
    print(time.monotonic() - began < 8)
"""


def test_a_program_that_raises_is_lost_to_its_peers_soon(tmp_path):
    ended = two_programs(RAISES_AMID_A_CALLBACK, tmp_path / "store")
    assert [found for _, found, _ in ended] == ["", "True\n"], ended


def test_callbacks_that_run_for_long_delay_the_end_of_python_for_a_limited_time():
    callbacks, gate = Callbacks(), threading.Event()
    callbacks.run(lambda: gate.wait(20), 0)
    began = time.monotonic()
    callbacks.end_with_python(0.2)
    assert 0.2 <= time.monotonic() - began < 10
    ran = []
    callbacks.run(lambda: ran.append(threading.current_thread()), 0)  # as a handler of atexit
    assert ran == [threading.current_thread()]
    gate.set()
    callbacks.close(20)


def test_callbacks_run_one_at_a_time_but_for_those_that_others_may_wait_for():
    callbacks, order, gate = Callbacks(), [], threading.Event()

    def first():
        order.append("first")
        callbacks.run(lambda: order.append("nested"), callbacks.current_turn())
        gate.wait(20)
        order.append("first ends")

    callbacks.run(first, 0)
    callbacks.run(lambda: (order.append("behind"), gate.set()), 0)
    callbacks.run(lambda: order.append("last"), 0)
    callbacks.close(20)
    assert order.index("nested") < order.index("behind") < order.index("first ends")
    assert order.index("behind") < order.index("last")


def _late(rank, ranks):
    dist.barrier()
    if rank == ranks - 1:
        time.sleep(6)
    dist.all_reduce(torch.ones(8))
    return os.getpid()


LATE_RANKS = "from test_torch_callbacks import _late, on_ranks; print(on_ranks(_late, 3))"


def test_a_waiting_rank_says_who_is_missing():
    """A process of its own, since a process reads PLAIT_WARN_S once."""
    ran = subprocess.run(
        [sys.executable, "-c", LATE_RANKS],
        env={**os.environ, "PLAIT_WARN_S": "1.5", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    pids = json.loads(ran.stdout)
    lines = [line for line in ran.stderr.splitlines() if " s so far" in line]
    # On a busy machine a rank also waits for peers to join, or to enter the barrier.
    lines = [line for line in lines if " to enter call " in line and " (barrier): " not in line]
    assert len(lines) == 1, lines
    assert re.search(r"rank [01] waits for rank 2 to enter call ", lines[0]), lines
    assert f"; entered by ranks 0, 1 alone; rank 2 (pid {pids[2]}) was last in call " in lines[0]


def _late_messages(rank, ranks):
    for call in ("recv", "any", "send", "irecv"):
        small, large = torch.zeros(4), torch.ones(1 << 20)
        dist.barrier()
        if rank == 1:
            time.sleep(1.5)
            dist.recv(large, 0, tag=7) if call == "send" else dist.send(small, 0, tag=7)
        elif call == "recv":
            dist.recv(small, 1, tag=7)
        elif call == "any":
            dist.recv(small, tag=7)
        elif call == "send":
            dist.send(large, 1, tag=7)
        else:
            dist.irecv(small, 1, tag=7).wait()


LATE_MESSAGES = (
    "from test_torch_callbacks import _late_messages, on_ranks; on_ranks(_late_messages, 2)"
)


def test_a_rank_that_waits_for_a_message_names_peer_and_tag():
    ran = subprocess.run(
        [sys.executable, "-c", LATE_MESSAGES],
        env={**os.environ, "PLAIT_WARN_S": "0.5", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    said = re.findall(r"rank 0 waits in a (.*): 0\.5 s so far", ran.stderr)
    assert said == [
        "recv from rank 1 (tag 7) of 16 bytes",
        "recv from any rank (tag 7) of 16 bytes",
        "send of 4194304 bytes to rank 1 (tag 7)",
        "recv from rank 1 (tag 7) of 16 bytes",
    ], ran.stderr
