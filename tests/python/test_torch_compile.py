"""Tests torch.compile of functions and modules that call a group of the torch backend."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

from torch_ranks import on_ranks  # noqa: E402

import plait.torch  # noqa: E402


def compiled(function, **options):
    return torch.compile(function, backend="aot_eager", **options)


def doubled_sum(x):
    x = x * 2
    dist.all_reduce(x)
    return x + dist.get_rank() + dist.get_world_size()


def gathered(x):
    out = x.new_empty(4 * dist.get_world_size())
    dist.all_gather_into_tensor(out, x)
    return out + 1


def async_sum(x):
    x = x * 2
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return x + 1


def polled_sum(x):
    """Polls until rank 1 comes to the call."""
    x = x * 2
    if dist.get_rank() == 1:
        time.sleep(0.3)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    return x + 1


def async_future(x):
    x = x * 2
    future = dist.all_reduce(x, async_op=True).get_future()
    return future.wait()[0] + 1


def behind_barrier(x):
    x = x * 2
    dist.barrier()
    return x + 1


def around(x):
    """Sends to the next rank, and receives from the rank before."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = x * 2
    work = dist.isend(x, (rank + 1) % ranks)
    found = torch.empty_like(x)
    dist.recv(found, (rank - 1) % ranks)
    work.wait()
    return found + 1


def batched(x):
    y = x * 2
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(y)
    return x + y


def new_group(x):
    x = x * 2
    group = dist.new_group([0, 1])
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    return x + 1


BROKEN = [gathered, async_sum, polled_sum, async_future, behind_barrier, around, batched, new_group]


def functions(rank, ranks):
    for function in [doubled_sum, *BROKEN]:
        mine = torch.arange(4.0) + rank
        expected = function(mine.clone())
        for _ in range(2):
            found = compiled(function)(mine.clone())
            assert torch.equal(found, expected), (function.__name__, found, expected)
    whole = compiled(doubled_sum, fullgraph=True)
    assert torch.equal(whole(mine.clone()), doubled_sum(mine.clone()))


def data_parallel(rank, ranks):
    """Trains a compiled DDP and a DDP on rank-dependent input, to the same weights."""
    models = []
    for wrap in (compiled, lambda model: model):
        torch.manual_seed(0)
        model = torch.nn.Linear(20, 50)
        wrapped = wrap(torch.nn.parallel.DistributedDataParallel(model))
        descent = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            descent.zero_grad()
            wrapped(torch.full((3, 20), 1.0 + rank + step)).square().mean().backward()
            descent.step()
        models.append(model)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


CALL_OF_ONE_RANK = """
import datetime, sys, torch, plait.torch
store = torch.distributed.HashStore()
group = plait.torch.create(store, 0, 1, datetime.timedelta(seconds=60))
group.allreduce([torch.ones(1)]).wait()
assert "torch._dynamo" not in sys.modules
"""


def test_a_group_does_not_import_the_compiler():
    subprocess.run([sys.executable, "-c", CALL_OF_ONE_RANK], check=True, timeout=100)


@pytest.mark.parametrize("program", [functions, data_parallel])
def test_compiled_programs_break_their_graph_at_calls(program):
    assert plait.torch is not None
    on_ranks(program, 2, timeout_s=100)
