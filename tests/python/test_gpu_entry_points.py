"""GPU entry points on a machine without a GPU: refusals, arrays, streams, expectations."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu_stand_ins import FakeGpuArray, plait_command, without_gpu
from recorded import rows

import plait
from plait import _core, gpu, launch, outputs, what_runs
from plait.arrays import HOST, ON_SOME_GPU, Buffer, buffer_of, empty_like, is_on_gpu, stream_handle
from plait.bench import engines, nccl, oracle
from plait.bench import gpu_ranks as bench_gpu
from plait.bench import links as measure
from plait.bench import tuner as tune
from plait.commands import bench as bench_command
from plait.commands import tune as tune_command


@without_gpu
@pytest.mark.parametrize("words", [("--against", "nccl"), ("--gpus",), ("--gpus", "--ranks", "4")])
def test_bench_on_gpus_says_that_there_are_none(words):
    done = plait_command("bench", "all_reduce", *words)
    assert done.returncode == 3, done
    wanted = "4" if "4" in words else "2"
    assert f"wanted {wanted} GPUs, found 0: " in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--against", "gloo"), "--against: wanted nccl, found 'gloo'"),
        (("--csv", "x.csv"), "ranks on CPUs (without --gpus) go without --csv"),
    ],
)
def test_bench_refuses_what_it_has_not(words, said):
    done = plait_command("bench", "all_reduce", *words)
    assert done.returncode == 2 and said in done.stderr, done


@without_gpu
def test_a_device_that_is_not_there():
    with pytest.raises(plait.NoDeviceError, match="wanted a GPU"):
        plait.Communicator(0, 1, device=0)
    with pytest.raises(plait.NoDeviceError, match="wanted a GPU"):
        gpu.Gpu(0)
    assert gpu.why_none() != ""


def test_a_communicator_without_a_gpu():
    comm = plait.Communicator(0, 1)
    assert comm.device == -1
    with pytest.raises(plait.NoDeviceError, match="has no GPU"):
        comm.check()
    with pytest.raises(plait.NoDeviceError, match="has no GPU"):
        comm._core.enqueue(plait.Request("all_reduce", 4), 0, 0)
    with pytest.raises(plait.UnsupportedError, match="one on a GPU"):
        comm.all_reduce(FakeGpuArray())
    with pytest.raises(plait.UnsupportedError, match="one on a GPU"):
        comm.all_reduce(np.ones(6, np.float32), out=FakeGpuArray())
    with pytest.raises(plait.InvalidArgumentError, match="stream="):
        comm.all_reduce(np.ones(6, np.float32), stream=0)
    for bad in (-3, -100):
        with pytest.raises(plait.InvalidArgumentError, match="device: wanted"):
            plait.Communicator(0, 1, device=bad)
    with pytest.raises(plait.InvalidArgumentError, match="sm_budget: wanted"):
        plait.Communicator(0, 1, sm_budget=-1)


@without_gpu
def test_a_communicator_that_has_no_gpu_to_adopt_serves_host_memory_still():
    comm = plait.Communicator(0, 1)
    with pytest.raises(plait.NoDeviceError, match="wanted a GPU"):
        comm.adopt_device(0)
    with pytest.raises(plait.InvalidArgumentError, match="adopt_device: wanted a CUDA ordinal"):
        comm.adopt_device(-1)
    assert comm.device == -1 and (comm.all_reduce(np.ones(3, np.float32)) == 1).all()


def test_overlap_compute_keeps_its_former_name(monkeypatch):
    options = _core.CommunicatorOptions()
    options.beside_computing = True
    assert options.overlap_compute
    monkeypatch.setattr(_core, "default_options", lambda: options)
    options.overlap_compute = False
    plait.Communicator(0, 1, beside_computing=True)
    assert options.overlap_compute


def test_scalars_of_all_ranks():
    comm, ones = plait.Communicator(0, 1), np.ones(3, np.float32)
    assert (comm.all_reduce(ones, "premul_sum", scalars=[2.5]) == 2.5).all()
    assert (comm.all_reduce(ones, "premul_sum", scalar=0.5) == 0.5).all()
    for scalars in ([1.0, 2.0], 3):
        with pytest.raises(plait.InvalidArgumentError, match="wanted 1 scalars, one a rank, found"):
            comm.all_reduce(ones, "premul_sum", scalars=scalars)


def test_ranks_must_agree_on_having_gpus(run_ranks):
    for row in run_ranks("rank_programs:gpu_on_one_rank", 2):
        assert row["class"] in ("MismatchError", "NoDeviceError"), row
        assert row["seconds"] < 10.0


def test_a_device_by_the_launcher_is_all_ranks_or_none(run_ranks):
    rows = run_ranks("rank_programs:device_by_launcher", 3, env={"PLAIT_DEVICE": ""})
    has_each_one = gpu.count() >= 3
    for row in rows:
        assert row["device"] == (row["rank"] if has_each_one else -1), rows
        assert row["total"] == [3.0] * 8


def test_arrays_on_gpus():
    buffer = buffer_of(FakeGpuArray(), "input")
    assert (buffer.address, buffer.count, buffer.type) == (1 << 40, 6, "fp32")
    assert buffer.device == ON_SOME_GPU and is_on_gpu(FakeGpuArray())
    assert not is_on_gpu(np.ones(3)) and not is_on_gpu("text") and not is_on_gpu(None)
    assert buffer_of(np.ones(3), "input").device == HOST
    assert buffer_of(FakeGpuArray(strides=(12, 4)), "input").count == 6
    with pytest.raises(plait.InvalidArgumentError, match="contiguous"):
        buffer_of(FakeGpuArray(strides=(24, 4)), "input")
    with pytest.raises(plait.InvalidArgumentError, match="read-only"):
        buffer_of(FakeGpuArray(data=(1 << 40, True)), "output", writable=True)
    with pytest.raises(plait.UnsupportedError, match="complex64"):
        buffer_of(FakeGpuArray(typestr="<c8"), "input")
    with pytest.raises(plait.InvalidArgumentError, match="pass out="):
        empty_like(buffer, (2, 3))
    view = gpu.dlpack_view(np.ones((2, 3), np.float32))
    assert (view[0], view[3], view[4], view[5:8]) == (1, (2, 3), (3, 1), (2, 32, 1))


class BroughtAlong(SimpleNamespace):
    """torch.cuda.ExternalStream: the program may destroy the stream before the arrays."""


def test_streams_of_many_kinds(monkeypatch):
    cuda = SimpleNamespace(ExternalStream=BroughtAlong)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    host = [Buffer(0, 0, "fp32", (0,), np.ones(1))]
    kept = []
    tensor = SimpleNamespace(record_stream=kept.append)
    torch_like = SimpleNamespace(cuda_stream=77)
    assert stream_handle(5, host) == 5
    on_gpu = [Buffer(0, 0, "fp32", (0,), tensor, 0)]
    assert stream_handle(torch_like, on_gpu) == 77
    assert stream_handle(BroughtAlong(cuda_stream=76), on_gpu) == 76
    assert kept == [torch_like]
    assert stream_handle(SimpleNamespace(ptr=78), host) == 78

    class ByProtocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 79)

    assert stream_handle(ByProtocol(), host) == 79
    for wrong in ("7", 1.5, object()):
        with pytest.raises(plait.InvalidArgumentError, match="wanted a stream"):
            stream_handle(wrong, host)


def test_nccl_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_NCCL_LIB", str(tmp_path / "libnccl.so.2"))
    with pytest.raises(plait.FileError, match="found no file"):
        nccl.Nccl()
    (tmp_path / "libnccl.so.2").write_text("not a library")
    with pytest.raises(plait.FileError, match="set PLAIT_NCCL_LIB"):
        nccl.Nccl()
    assert not nccl.Nccl.takes(plait.Request("all_reduce", 4, "int16"))
    assert not nccl.Nccl.takes(plait.Request("all_reduce", 4, "int32", "bit_or"))
    assert nccl.Nccl.takes(plait.Request("all_gather", 4, "bf16"))


@pytest.mark.parametrize("name", ["copy", "send_recv", "all_to_all", "gather", "scatter"])
def test_messages_in_place_of_what_nccl_has_no_call_for(name):
    """Sends and receives of all ranks, matched in order, give the collective's result."""
    request = plait.Request(name, 5, "int32", "sum", 3, 1, 2)
    held = oracle.Oracle(request, seed=3)
    inputs = held.inputs()
    outputs = [np.zeros(request.output_bytes(rank) // 4, np.int32) for rank in range(3)]
    sent: dict[tuple[int, int], list[bytes]] = {}
    awaited: list[tuple[int, int, int]] = []
    for rank in range(3):
        ours = nccl.Nccl.__new__(nccl.Nccl)
        ours.rank, ours.ranks, ours._comm = rank, 3, None

        def do(call: str, *words: Any, rank: int = rank) -> None:
            if call == "ncclSend":
                data = ctypes.string_at(words[0].value, 4 * words[1].value)
                sent.setdefault((rank, words[3].value), []).append(data)
            if call == "ncclRecv":
                awaited.append((words[3].value, rank, words[0].value))

        ours._do = do
        ours.call(request, inputs[rank].ctypes.data, outputs[rank].ctypes.data, 0)
    for sender, receiver, address in awaited:
        data = sent[sender, receiver].pop(0)
        ctypes.memmove(address, data, len(data))
    assert not any(sent.values())
    assert [held.wrong(rank, output) for rank, output in enumerate(outputs)] == [0, 0, 0]


@pytest.mark.parametrize("count", [1, 5, 7, 16, 30])
@pytest.mark.parametrize("name", nccl.COLLECTIVES)
def test_expected_outputs_of_repeated_inputs(monkeypatch, name, count):
    """Compares with the definition of each collective; the period is shorter than the message."""
    monkeypatch.setattr(oracle, "PERIOD", 7)
    request = plait.Request(name, count, "int32", "sum", 3, 1, 2)
    held = oracle.Oracle(request, seed=3)
    inputs = [
        np.resize(base, request.input_bytes(rank) // 4) for rank, base in enumerate(held.bases)
    ]
    total = np.sum([np.resize(base, count * 3) for base in held.bases], axis=0)
    for rank in range(3):
        mine = slice(rank * count, (rank + 1) * count)
        wanted = {
            "all_reduce": total[:count],
            "reduce": total[:count],
            "reduce_scatter": total[mine],
            "all_gather": np.concatenate(inputs),
            "gather": np.concatenate(inputs),
            "broadcast": inputs[1],
            "copy": inputs[1],
            "scatter": np.resize(held.bases[1], count * 3)[mine],
            "send_recv": inputs[(rank - 1) % 3],
            "all_to_all": np.concatenate([np.resize(base, count * 3)[mine] for base in held.bases]),
        }[name]
        elements = request.output_bytes(rank) // 4
        if elements == 0:
            continue
        assert (held.expected(rank, 0, elements) == wanted[:elements]).all()
        for lo in range(0, elements, 3):  # any part
            hi = min(elements, lo + 4)
            assert (held.expected(rank, lo, hi) == wanted[lo:hi]).all()
        output = wanted[:elements].astype(np.int32)
        assert held.wrong(rank, output, 0) == 0
        output[-1] += 1
        assert held.wrong(rank, output, 0) == 1


ROW = {
    "collective": "all_reduce",
    "size": 1024,
    "count": 256,
    "type": "fp32",
    "op": "sum",
    "ranks": 2,
    "kernel": "all_reduce/one_shot",
    "way": "",
    "plait_eager_us": 10.0,
    "plait_graph_us": 2.5,
    "plait_busbw": 0.4,
    "plait_wrong": 0,
}
WITH_NCCL = ROW | {
    "nccl_eager_us": 20.0,
    "nccl_graph_us": 10.0,
    "nccl_busbw": 0.1,
    "nccl_wrong": 0,
    "eager_ratio": 2.0,
    "graph_ratio": 4.0,
}


def test_rows_as_text_csv_and_picture(tmp_path):
    assert bench_command.gpu_line(WITH_NCCL).split()[-3:] == ["2.00", "4.00", "all_reduce/one_shot"]
    assert bench_command.gpu_line(ROW).split()[-2] == "-"
    end = bench_command.gpu_end([WITH_NCCL, WITH_NCCL | {"graph_ratio": 1.0}])
    assert "graph: geometric mean 2.00, least 1.00 of 2" in end and "0 OK" in end
    assert "FAILED" in bench_command.gpu_end([ROW | {"plait_wrong": 3}])
    file = tmp_path / "rows.csv"
    outputs.write_csv(str(file), {"gpu": "H200"}, bench_gpu.FIELDS, [WITH_NCCL, ROW])
    lines = file.read_text().splitlines()
    assert lines[0] == "# gpu: H200" and lines[1].startswith("collective,size")
    assert lines[2].endswith("20.000,10.000,0.100,0,2.000,4.000") and lines[3].endswith(",,,,,")
    with pytest.raises(plait.FileError, match="wanted to write"):
        outputs.write_csv(str(tmp_path / "no" / "folder.csv"), {}, bench_gpu.FIELDS, [ROW])
    plots = pytest.importorskip("plait.bench.plots")
    plots.plot_gpu_bench([WITH_NCCL, WITH_NCCL | {"size": 2048}], str(tmp_path / "rows.png"))
    assert Path(tmp_path / "rows.png").stat().st_size > 1000


@without_gpu
def test_links_of_gpus_that_are_not_there():
    done = plait_command("topo", "--measure")
    assert done.returncode == 3 and "wanted GPUs to measure" in done.stderr, done


def test_measured_figures_become_a_topology():
    machine = plait.load_topology("hgx-h200")
    rows = [
        measure.LinkRate("nvlink:0>1", "alone", 301.0),
        measure.LinkRate("nvlink:1>0", "alone", 300.04),
        measure.LinkRate("nvlink:0-1", "both ways", 590.0),
        measure.LinkRate("host:0>numa", "alone", 51.5),
        measure.LinkRate("host:0-numa", "both ways", 90.5),
        measure.LinkRate("host up", "all together", 190.0),
    ]
    found = json.loads(measure.measured_topology(machine, rows).to_json())
    assert next(link for link in found["links"] if link["dst"] == "gpu1")["gb_per_s"] == 301.0
    speeds = {resource["name"]: resource["gb_per_s"] for resource in found["resources"]}
    assert (speeds["gpu0.nvlink.out"], speeds["gpu0.nvlink.in"]) == (301.0, 300.0)
    assert speeds["gpu2.nvlink.out"] == 395.0
    assert (speeds["gpu0.host.up"], speeds["gpu0.host.both"]) == (51.5, 90.5)
    assert (speeds["gpu0.host.down"], speeds["numa0.dram.write"]) == (55.3, 190.0)
    up = next(link for link in found["links"] if link["src"] == "gpu0" and link["dst"] == "numa0")
    assert up["gb_per_s"] == 51.5 and found["source"].startswith("measured by plait")


FACTS = {
    "machine": "hgx",
    "fingerprint": "00",
    "kind": "NVIDIA H200, 132 multiprocessors, 18 NVLinks to switches",
    "cuda_driver": 13000,
    "nccl": "2.28.9",
    "plait": "0",
    "date": "2026-11-21",
}


def tuned(
    size: int, kernel: str, us: float = 3.0, blocks: int = 0, nccl_us: float = 0.0
) -> dict[str, Any]:
    row = {"setting": "alone", "collective": "all_reduce", "type": "bf16", "ranks": 2}
    return row | {"size": size, "kernel": kernel, "blocks": blocks, "us": us, "nccl_us": nccl_us}


def test_tuned_neighbours_become_one_row():
    rows = [tuned(1024, "one_shot"), tuned(4096, "one_shot", 4.0), tuned(16384, "tiled", 5.0, 16)]
    content = tune.table(FACTS, [*rows, tuned(65536, "")])
    assert [(row["upto_bytes"], row["engine"], row.get("params")) for row in content["rows"]] == [
        ("8K", "one_shot", None),
        ("32K", "tiled", {"blocks": 16}),
    ]
    assert content["gpu"] == {
        "model": "NVIDIA H200",
        "multiprocessors": 132,
        "links": ["18 NVLinks to switches"],
        "upto_ranks": 2,
    }
    last = tune.SIZES["alone"][-1]
    ended = tune.table(FACTS, [*rows, tuned(last, "copy_exchange", 9.0)])["rows"]
    assert "upto_bytes" not in ended[-1]
    # Time is up: unmeasured sizes are not in the table.
    assert tune.table(FACTS, rows)["rows"][-1]["upto_bytes"] == "32K"
    large = plait.Request("all_reduce", 4 << 20, "fp32", "sum", 2)
    copied = [one for one in tune.candidates(large, "alone", "", True) if one[0] == "copy_exchange"]
    assert copied == [("copy_exchange", 0)]
    # With computation and a slower NCCL: only kernels with fewer multiprocessors.
    by_what = {
        ("tiled", False): ("direct_ll", "copy_exchange", "tiled"),
        ("tiled", True): ("direct_ll", "copy_exchange", "tiled"),
        ("direct_ll", True): ("direct_ll", "copy_exchange"),
        ("copy_exchange", True): ("copy_exchange",),
        ("one_shot", True): ("one_shot",),
        ("one_shot", False): ("one_shot", "direct_ll", "copy_exchange", "tiled"),
    }
    for (untuned, nccl_is_slower), kernels in by_what.items():
        found = tune.candidates(large, "overlap_compute", untuned, nccl_is_slower)
        assert found == [(kernel, 0) for kernel in kernels]
    # With more than two ranks direct_ll takes all multiprocessors.
    of_four = plait.Request("all_gather", 16 << 20, "fp32", "sum", 4)
    found = tune.candidates(of_four, "overlap_compute", "tiled", True)
    assert found == [("copy_ring", 0), ("tiled", 0)]
    before = {("one_shot", 0): 21.0, ("tiled", 0): 30.0, ("tiled", 16): 19.0, ("tiled", 48): 10.0}
    found = [*before, ("two_shot", 0)]
    assert tune.worth_it(found, {}) == found
    assert tune.worth_it(found, before) == found[1:]
    before["tiled", 16] = float("inf")
    assert tune.worth_it(found, before) == [found[1], found[3], found[4]]
    _core.check_tuning(json.dumps(content))
    assert not tune.requests(2, ["send_recv"], "overlap_compute", "")
    assert tune.requests(2, ["send_recv"], "overlap_compute", "nccl")
    assert tune.requests(2, ["send_recv"], "alone")


def test_schedules_are_tried_with_large_calls_of_more_than_two_ranks():
    large = plait.Request("all_reduce", 16 << 20, "fp32", "sum", 8)
    found = [one for one, _ in tune.candidates(large, "alone", "tiled", True)]
    assert set(tune.SCHEDULES["tiled"]) <= set(found)
    for other in (
        plait.Request("all_reduce", 16 << 20, "fp32", "sum", 2),
        plait.Request("all_reduce", 1 << 20, "fp32", "sum", 8),
    ):
        tried = [one for one, _ in tune.candidates(other, "alone", "tiled", True)]
        assert not set(tune.SCHEDULES["tiled"]) & set(tried)
    way = tune.SCHEDULES["tiled"][-1]
    rows = [tuned(1 << 26, "tiled"), tuned(1 << 28, way), tuned(1 << 30, way, 9.0)]
    content = tune.table(FACTS, rows)
    assert [(row["engine"], row.get("params")) for row in content["rows"]] == [
        ("tiled", None),
        ("tiled", {"order": 2, "shift": 1}),
    ]
    _core.check_tuning(json.dumps(content))


def test_what_runs_without_a_table_is_timed_with_its_parameters():
    request = plait.Request("all_reduce", 16 << 20, "fp32", "sum", 8)
    way = "tiled:order=2,shift=1"
    said = tune._tuned(
        TunedBay({"tiled": 9.0, way: 8.9, "direct_ll": 9.5}, way), request, "alone", {}
    )
    assert (said["kernel"], said["untuned"], said["us"]) == (way, way, 8.9)
    said = tune._tuned(TunedBay({"tiled": 7.0, way: 8.9}, way), request, "alone", {})
    assert (said["kernel"], said["untuned"]) == ("tiled", way)


def test_ways_in_words():
    assert engines.parted("tiled") == ("tiled", {})
    assert engines.parted("tiled:order=2,shift=1") == ("tiled", {"order": 2, "shift": 1})
    assert engines.variant_of(*engines.parted("tiled:order=2,shift=1")) == "tiled:order=2,shift=1"
    assert engines.variant_counted("tiled(order=2,shift=1)") == "tiled:order=2,shift=1"
    assert engines.variant_counted("direct_ll") == "direct_ll"
    assert engines.variant_counted("ring(lanes=1)") == "ring"  # a plan


def test_rows_where_nccl_is_faster_stay_apart():
    rows = [
        tuned(1024, "direct_ll", 3.0, 0, 5.0),
        tuned(4096, "direct_ll", 4.0, 0, 4.02),  # less than 1 % ahead is not ahead
        tuned(16384, "direct_ll", 5.0, 0, 6.0),
        tuned(65536, "tiled", 7.0, 0, 9.0),
    ]
    rows = [row | {"setting": "overlap_compute"} for row in rows]
    alone = [tuned(1024, "direct_ll"), tuned(4096, "direct_ll", 4.0)]
    kept = tune.table(FACTS, [*alone, *rows])["rows"]
    names = ("when", "upto_bytes", "us", "nccl_us", "ahead_of_nccl")
    assert [tuple(row.get(name) for name in names) for row in kept] == [
        ("overlap_compute", "1K", 3.0, 5.0, True),  # between the two NCCL may be ahead
        ("overlap_compute", "16383", 4.0, 4.02, False),
        ("overlap_compute", "32K", 5.0, 6.0, True),
        ("overlap_compute", "128K", 7.0, 9.0, True),
        ("alone", "8K", 4.0, 0.0, None),
    ]
    _core.check_tuning(json.dumps(tune.table(FACTS, [*alone, *rows])))


class TunedBay:
    """A BenchRank with given kernel times; one kernel is wrong, one is the untuned choice."""

    rank, ranks, input, output, stream, nccl = 0, 2, 0, 0, 0, None

    def __init__(self, times_us: dict[str, float], untuned: str, wrong: str = "") -> None:
        self.times_us, self.untuned, self.wrong, self.last = times_us, untuned, wrong, ""
        self.comm = SimpleNamespace(_core=self)

    def enqueue(self, *call: Any) -> None:
        name, params = (*call, "", {})[4:6]
        plain = {key: value for key, value in params.items() if key != "blocks"}
        self.last = engines.variant_of(name, plain) if name else self.untuned
        if self.last not in self.times_us:
            raise plait.UnsupportedError(self.last)

    def counted_as(self, call: Any) -> str:
        call()
        name, _, said = self.last.partition(":")
        return f"all_reduce/{name}({said})" if said else f"all_reduce/{name}"

    captured_as = counted_as

    def graph_s(self, call: Any, size_bytes: int) -> float:
        return self.times_us[self.last] / 1e6

    def load(self, pattern: Any) -> None:
        pass

    def wrong_after(self, call: Any, pattern: Any) -> int:
        call()
        return int(self.last == self.wrong)


def test_what_runs_without_a_table_stays_unless_another_is_clearly_faster():
    both = {("a", 0): 10.0, ("b", 0): 9.8, ("c", 0): 9.75}
    assert tune.best(both) == ("b", 0)  # the first within 1 % of the fastest
    assert tune.best(both, "a") == ("a", 0)  # within 3 %
    assert tune.best(both | {("c", 0): 9.6}, "a") == ("c", 0)
    assert tune.best({("a", 16): 9.0, ("a", 0): 9.2}, "a") == ("a", 0)
    # A sweep's one_shot was 1 % ahead of the kernel that runs there.
    times: dict[str, float] = {}
    for row in rows("gpu_sweep_large_h200x2.csv"):
        kernel, us = row["way"].removeprefix("plait "), float(row["graph_us"])
        asked = (int(row["bytes"]), row["type"]) == (64 << 20, "fp32")
        if asked and kernel in tune.KERNELS and us > 0:
            times[kernel] = min(us, times.get(kernel, us))
    assert set(times) == {"one_shot", "two_shot", "tiled"}
    request = plait.Request("all_reduce", 16 << 20, "fp32", "sum", 2)
    said = tune._tuned(TunedBay(times, "two_shot"), request, "alone", {})
    assert (said["kernel"], said["blocks"], said["untuned"]) == ("two_shot", 0, "two_shot")
    said = tune._tuned(TunedBay(times, "direct(pieces=1)"), request, "alone", {})
    assert (said["kernel"], said["untuned"]) == ("two_shot", "")
    said = tune._tuned(TunedBay(times, "two_shot", wrong="two_shot"), request, "alone", {})
    assert said["kernel"] == "tiled"  # a wrong result is never the fastest, one_shot has no room
    two_ways = TunedBay(times, "two_shot")
    two_ways.captured_as = lambda call: "all_reduce/scatter_ring"
    said = tune._tuned(two_ways, request, "alone", {})
    assert said["kernel"] == ""  # no row: a row would serve captured and eager calls alike


class BayWithNccl(TunedBay):
    """A TunedBay with a given NCCL time."""

    def __init__(self, times_us: dict[str, float], untuned: str, nccl_us: float) -> None:
        super().__init__(times_us | {"NCCL": nccl_us}, untuned)
        self.nccl = SimpleNamespace(takes=lambda request: True, call=self.by_nccl)

    def by_nccl(self, *call: Any) -> None:
        self.last = "NCCL"

    def graph_s(self, call: Any, size_bytes: int) -> float:
        call()
        return super().graph_s(call, size_bytes)


@pytest.mark.parametrize(
    ("nccl_us", "kernel"),
    [
        (12.0, "direct_ll"),  # NCCL is slower: what was chosen to spare products stays
        (9.9, "tiled"),  # it is faster: by the fastest then, and left to NCCL where that is slower
        (5.0, "tiled"),
        (0.0, "direct_ll"),  # without NCCL
    ],
)
def test_overlap_compute_the_built_in_choice_stays_where_nccl_is_no_faster(
    nccl_us: float, kernel: str
) -> None:
    request = plait.Request("all_gather", 8 << 20, "fp32", "sum", 2)
    times = {"direct_ll": 10.0, "copy_exchange": 11.0, "tiled": 9.3}
    said = tune._tuned(BayWithNccl(times, "direct_ll", nccl_us), request, "overlap_compute", {})
    names = ("kernel", "nccl_us", "setting")
    assert [said[name] for name in names] == [kernel, nccl_us, "overlap_compute"]


def test_tuning_looks_at_no_table(monkeypatch):
    found = []
    monkeypatch.setattr(
        tune, "BenchRank", lambda *_, **__: found.append(os.environ["PLAIT_TUNING"])
    )
    for before in ("", "/x/y.json"):
        monkeypatch.setenv("PLAIT_TUNING", before)
        tune._bench_without_table({"row_s": 0.1, "setting": "alone"}, 1)
        assert os.environ["PLAIT_TUNING"] == before
    assert found == ["none", "none"]


TABLE = tune.table(FACTS, [tuned(1024, "tiled")])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "plait.tuning/3"}, "schema: .*run `plait tune` again"),
        ({"surprise": 1}, "surprise"),
        ({"rows": [{"collective": "all_reduce"}]}, "rows"),
        ({"rows": [TABLE["rows"][0] | {"size": 1}]}, r"rows\[0\]: .*size"),
        ({"rows": [TABLE["rows"][0] | {"engine": "tilde"}]}, r"rows\[0\].engine: .*tilde"),
        ({"gpu": "H200"}, "gpu"),
    ],
)
def test_tables_that_are_none(change, said):
    _core.check_tuning(json.dumps(TABLE))
    with pytest.raises(plait.ParseError, match=said):
        _core.check_tuning(json.dumps(TABLE | change))
    with pytest.raises(plait.ParseError):
        _core.check_tuning("{")


def test_where_the_table_lies(monkeypatch, tmp_path):
    monkeypatch.delenv("PLAIT_TUNING", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = _core.tuning_file("abc", 4)
    driver = _core.cuda_driver_version() if gpu.count() else 0
    assert file == str(tmp_path / "plait" / f"tuning-abc-cuda{driver}-4.json")
    beside = _core.tuning_file("abc", 4, "2.28.9")
    assert beside == file.replace("-4.json", "-nccl2.28.9-4.json")
    tune.write(file, TABLE)
    facts = Path(file).stat()
    assert facts.st_mode & 0o777 == 0o600 and list(Path(file).parent.iterdir()) == [Path(file)]
    monkeypatch.setenv("PLAIT_TUNING", "none")
    assert _core.tuning_file("abc", 4) == ""
    monkeypatch.setenv("PLAIT_TUNING", "/x/y.json")
    assert _core.tuning_file("abc", 4) == "/x/y.json"
    with pytest.raises(plait.FileError, match="tuning table"):
        tune.write("/proc/no/such.json", TABLE)


def test_tune_writes_the_files_that_communicators_name():
    own = {"alone": "/c/t-host-2.json", "beside_nccl": "/c/t-host-nccl2.28.9-2.json"}
    content = TABLE | {"nccl": "2.28.9"}
    files = dict(tune_command.files_of(own, content, ""))
    assert list(files) == [own["alone"], own["beside_nccl"]]
    assert files[own["beside_nccl"]] == content and files[own["alone"]]["nccl"] == ""
    assert not any("ahead_of_nccl" in row for row in files[own["alone"]]["rows"])
    without_nccl = own | {"beside_nccl": ""}
    assert [file for file, _ in tune_command.files_of(without_nccl, TABLE, "")] == [own["alone"]]
    assert tune_command.files_of(own, content, "none") == []
    assert tune_command.files_of(own, content, "t.json") == [("t.json", content)]


def test_rows_of_messages_are_for_programs_under_nccl_alone():
    row = {"setting": "overlap_compute", "type": "bf16", "ranks": 2, "us": 3.0, "nccl_us": 9.0}
    row |= {"kernel": "messages", "blocks": 0, "size": 4096, "collective": "send_recv"}
    (made,) = (content := tune.table(FACTS, [row]))["rows"]
    assert (made["engine"], made["ahead_of_nccl"]) == ("messages", True)
    assert tune.of_plait_alone(content)["rows"] == []
    task = {"setting": "overlap_compute", "against": "nccl", "collectives": ["send_recv"]}
    assert tune.times_messages(task)
    for other in ({"setting": "alone"}, {"against": ""}, {"collectives": ["all_reduce"]}):
        assert not tune.times_messages(task | other)


def test_the_table_beside_nccl_is_named_though_only_one_job_times_nccl(monkeypatch):
    def rows_of(entry, ranks, task):
        beside = "/c/t-nccl2.28.9-2.json" if task["against"] else ""
        nccl = "2.28.9" if task["against"] else ""
        yield {"total": 1, "nccl": nccl, "files": {"alone": "/c/t-2.json", "beside_nccl": beside}}
        yield {"when": task["setting"]}

    monkeypatch.setattr(tune_command, "rows_of", rows_of)
    monkeypatch.setattr(tune_command, "_finds_nccl", lambda: True)
    task = {"ranks": 2, "collectives": ["all_reduce"]}
    facts, rows = tune_command._measured(task, 10.0)
    assert {row["when"] for row in rows} == {"overlap_compute", "alone"}
    assert facts["files"] == {"alone": "/c/t-2.json", "beside_nccl": "/c/t-nccl2.28.9-2.json"}
    assert facts["nccl"] == "2.28.9" and facts["total"] == 2


@pytest.mark.parametrize(
    ("name", "setting", "why", "host"),
    [
        ("hgx-h200", "", "no peer access", True),
        ("hgx-h200", "0", "none", False),
        ("hgx-h200", "1", "", True),
        ("hgx-h200", "", "", False),
        ("l40s-x4", "", "", True),  # no link between two GPUs
    ],
)
def test_plans_read_the_table_of_the_way_that_calls_take(
    monkeypatch, tmp_path, name, setting, why, host
):
    machine = plait.load_topology(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PLAIT_THROUGH_HOST", setting)
    monkeypatch.setattr(gpu, "count", lambda: 2)
    monkeypatch.setattr(gpu, "why_no_direct_access", lambda: why)
    monkeypatch.setattr(plait, "discover", lambda: machine)
    for through_host in (True, False):
        where = _core.tuning_machine(machine, 2, through_host)
        tune.write(_core.tuning_file(where, 2), TABLE | {"name": f"host: {through_host}"})
    assert json.loads(what_runs.tuning_table(machine, 2))["name"] == f"host: {host}"


def test_a_run_for_some_collectives_keeps_the_others_rows(tmp_path):
    file = tmp_path / "table.json"
    older = tune.table(FACTS, [tuned(1024, "tiled"), tuned(1024, "direct_ll") | {"type": "fp32"}])
    newer = tune.table(FACTS, [tuned(4096, "one_shot")])
    assert tune.merged(str(file), newer) == newer  # no table yet
    tune.write(str(file), older)
    both = tune.merged(str(file), newer)["rows"]
    assert [(row["type"], row["engine"]) for row in both] == [
        ("bf16", "one_shot"),
        ("fp32", "direct_ll"),
    ]
    _core.check_tuning(json.dumps(newer | {"rows": both}))
    for change in (
        {"fingerprint": "other"},
        {"cuda_driver": 14000},
        {"plait": "9"},
        {"nccl": "2.29.1"},
    ):
        assert tune.merged(str(file), newer | change)["rows"] == newer["rows"]
    file.write_text("{")
    assert tune.merged(str(file), newer) == newer


@without_gpu
def test_tuning_without_gpus():
    done = plait_command("tune")
    assert done.returncode == 3 and "wanted 2 GPUs, found 0" in done.stderr, done
    assert plait_command("tune", "--collectives", "all_rdeuce").returncode == 2
    assert plait_command("tune", "--seconds", "0").returncode == 2


def test_the_c_api_without_gpus(tmp_path):
    tmp_path.chmod(0o700)
    folder = str(Path(__file__).parent.parent / "gpu")
    task = {"count": 5003, "gpu": False, "folder": str(tmp_path)}
    job = launch.start("gpu_programs:c_api", 2, task, folder=folder)
    rows = list(job.lines())
    assert job.wait() == [0, 0] and len(rows) == 2, rows
    for row in rows:
        assert (row["host"], row["host_wrong"], row["device"]) == (0, 0, -1), row
        assert row["host_with_stream"] == 1, row  # plait_invalid_argument
