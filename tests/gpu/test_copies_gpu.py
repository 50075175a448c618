"""plait.copy on real GPUs: any size, alignment and library, stream order, masked links, errors."""

from __future__ import annotations

import random

import numpy as np
import pytest

import plait
from plait import gpu
from plait.bench import copies as bench_copy
from plait.copies import copies

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(gpu.count() < 2, reason=f"wants two GPUs: {gpu.why_none()}"),
]
MASK = ["nvlink:0-1"]


def torch():
    return pytest.importorskip("torch")


def fresh(count: int, device: int, dtype: str = "uint8"):
    generator = torch().Generator(f"cuda:{device}").manual_seed(count)
    bits = torch().randint(0, 256, (count,), device=f"cuda:{device}", generator=generator)
    return bits.to(getattr(torch(), dtype))


@pytest.mark.parametrize("without", [None, MASK])
@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20, (3 << 20) + 5, (64 << 20) + 1, 300_000_001])
def test_sizes_and_alignments(size, without):
    rng = random.Random(size)
    for src, dst in ((0, 1), (1, 0)):
        head, tail = rng.randrange(300), 64
        source = fresh(size + head, src)[head:]
        whole = torch().full(
            (size + 2 * tail + 3,), 0xAB, dtype=torch().uint8, device=f"cuda:{dst}"
        )
        target = whole[tail + 3 : tail + 3 + size]
        assert plait.copy(target, source, without=without) is target
        assert torch().equal(target.cpu(), source.cpu())
        assert bool((whole[: tail + 3] == 0xAB).all()) and bool(
            (whole[tail + 3 + size :] == 0xAB).all()
        )


def test_the_masked_pair_uses_what_is_there():
    plan = copies("", MASK).plan_for(1, 0, 256 << 20)
    routes = {route for route, _, _ in plan.stripes}
    assert "nvlink" not in routes
    assert any(route.startswith("relay:") for route in routes) == (gpu.count() > 2)


def test_types_same_gpu_and_cupy():
    for dtype in ("float32", "bfloat16", "int64"):
        source = fresh(1_000_003, 0, dtype)
        for device in (0, 1):
            target = torch().empty_like(source, device=f"cuda:{device}")
            assert torch().equal(plait.copy(target, source).cpu(), source.cpu())
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.Device(0):
        source = cupy.arange(5_000_001, dtype=cupy.float32)
    with cupy.cuda.Device(1):
        target = cupy.zeros(5_000_001, dtype=cupy.float32)
    plait.copy(target, source)
    np.testing.assert_array_equal(target.get(), source.get())


@pytest.mark.parametrize("without", [None, MASK])
def test_stream_order_and_copies_in_a_row(without):
    """Writes a source just before the copy and reads a target just after the copy, on side
    streams."""
    size = 200 << 20
    streams = [torch().cuda.Stream(device) for device in (0, 1)]
    source = torch().empty(size, dtype=torch().uint8, device="cuda:0")
    target = torch().empty(size, dtype=torch().uint8, device="cuda:1")
    back = torch().empty(size, dtype=torch().uint8, device="cuda:0")
    sums = []
    for number in range(12):
        with torch().cuda.stream(streams[0]):
            source.fill_(number + 1)
        plait.copy(target, source, dst_stream=streams[1], src_stream=streams[0], without=without)
        if number % 3 == 0:
            plait.copy(back, target, dst_stream=streams[0], src_stream=streams[1], without=without)
        with torch().cuda.stream(streams[1]):
            sums.append((target.max() - target.min(), target[::4097].max()))
            target.fill_(0)
    torch().cuda.synchronize(0)
    torch().cuda.synchronize(1)
    assert [(int(spread), int(one)) for spread, one in sums] == [(0, n + 1) for n in range(12)]
    assert bool((back == 10).all())


def host_share(size):
    plan = copies().plan_for(1, 0, size)
    return sum(part for route, _, part in plan.stripes if route == "host") / size


def test_the_host_share_follows_a_load_and_results_stay_right():
    """Loads PCIe with copies to and from pinned memory on both GPUs, in this process."""
    size, load = 256 << 20, 64 << 20
    source = fresh(size, 0)
    target = torch().zeros(size, dtype=torch().uint8, device="cuda:1")
    plait.copy(target, source)
    torch().cuda.synchronize(1)
    work = []
    for device in (0, 1):
        for _ in range(2):
            near = torch().zeros(load, dtype=torch().uint8, device=f"cuda:{device}")
            far = torch().zeros(load, dtype=torch().uint8, pin_memory=True)
            work.append((near, far, torch().cuda.Stream(device)))
    before, least = host_share(size), 1.0
    for number in range(40):
        for index, (near, far, stream) in enumerate(work):
            with torch().cuda.stream(stream):
                (near if index % 2 else far).copy_(far if index % 2 else near, non_blocking=True)
        target.fill_(0)
        source[number] ^= 255
        plait.copy(target, source)
        assert torch().equal(
            target.cpu() if number % 20 == 0 else target[:4096].cpu(),
            source.cpu() if number % 20 == 0 else source[:4096].cpu(),
        )
        least = min(least, host_share(size))
    assert least < before
    for _ in range(20):
        plait.copy(target, source)
    assert torch().equal(target.cpu(), source.cpu())


def test_what_is_refused():
    one = torch().ones(1000, device="cuda:0")
    with pytest.raises(plait.InvalidArgumentError, match="overlap"):
        plait.copy(one[1:], one[:-1])
    with pytest.raises(plait.InvalidArgumentError, match="host memory"):
        plait.copy(one, one.cpu())
    with pytest.raises(plait.Error):
        plait.copy(torch().ones(1000, device="cuda:1"), one, without=["nvlink:0-9"])
    graph, side = torch().cuda.CUDAGraph(), torch().cuda.Stream(0)
    other = torch().ones(1000, device="cuda:1")
    plait.copy(other, one)
    torch().cuda.synchronize()
    with (
        pytest.raises(plait.UnsupportedError, match="captured"),
        torch().cuda.graph(graph, stream=side),
    ):
        plait.copy(other, one, src_stream=side)


def test_the_bench_finds_nothing_wrong():
    task = {
        "pair": (0, 1),
        "params": {},
        "interference": False,
        "sizes": [1000, 40 << 20],
        "topology": "",
        "masks": [],
        "iters": 3,
        "check": True,
        "seed": 1,
    }
    rows = list(bench_copy.bench(task))[1:]
    assert [(row["way"], row["wrong"]) for row in rows] == [("one way", 0), ("both ways", 0)] * 2
