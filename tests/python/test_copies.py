"""Tests plait.copy and `bench copy --pair` without a GPU: errors, shares, rows."""

from __future__ import annotations

import csv
import ctypes
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import typer
from gpu_stand_ins import FakeGpuArray, plait_command, without_gpu

import plait
from plait import _core, copies, gpu
from plait.bench import copies as bench_copy
from plait.bench import nccl
from plait.commands import bench as bench_command


@pytest.mark.parametrize(
    ("dst", "src", "said"),
    [
        (
            np.ones(6, np.float32),
            FakeGpuArray(),
            "wanted dst in memory of a GPU, found host memory",
        ),
        (
            FakeGpuArray(),
            np.ones(6, np.float32),
            "wanted src in memory of a GPU, found host memory",
        ),
        (
            FakeGpuArray((7,)),
            FakeGpuArray(),
            "wanted dst of 6 fp32 elements as in src, found 7 fp32",
        ),
        (
            FakeGpuArray(typestr="<i4"),
            FakeGpuArray(),
            "wanted dst of 6 fp32 elements as in src, found 6 int32",
        ),
        (FakeGpuArray(strides=(24, 4)), FakeGpuArray(), "wanted a contiguous dst"),
        (FakeGpuArray(), FakeGpuArray(strides=(24, 4)), "wanted a contiguous src"),
        (FakeGpuArray(data=(1 << 40, True)), FakeGpuArray(), "wanted a writable dst"),
        ("text", FakeGpuArray(), "dst"),
    ],
)
def test_what_copy_refuses(dst, src, said):
    with pytest.raises(plait.InvalidArgumentError, match=said):
        plait.copy(dst, src)


def test_masks_of_copy_are_a_list():
    with pytest.raises(plait.InvalidArgumentError, match="without: wanted texts, found 'nvlink:0"):
        plait.copy(FakeGpuArray(), FakeGpuArray(), without="nvlink:0-1")


@without_gpu
def test_copy_says_that_there_is_no_gpu():
    with pytest.raises(plait.NoDeviceError, match="wanted GPUs to copy between; "):
        plait.copy(FakeGpuArray(), FakeGpuArray())
    nothing = FakeGpuArray((0, 3))
    assert plait.copy(nothing, FakeGpuArray((0,))) is nothing  # 0 bytes: needs no GPU


def test_streams_are_each_arrays_own():
    buffer = copies.buffer_of(FakeGpuArray(), "src")
    assert copies._stream(77, buffer) == 77
    with pytest.raises(plait.InvalidArgumentError, match="wanted a stream"):
        copies._stream("text", buffer)


def test_pairs_and_shares_are_read():
    assert bench_copy.parse_pair("3:1") == (3, 1)
    for bad in ("", "1", "1:1", "-1:0", "a:b", "0:1:2"):
        with pytest.raises(plait.InvalidArgumentError, match="--pair"):
            bench_copy.parse_pair(bad)
    assert bench_copy.parse_shares("") == {}
    assert bench_copy.parse_shares("host=110,relay=20,gpu=3,chunk_kib=512") == {
        "host_permille": 110,
        "relay_permille": 20,
        "relay": 3,
        "chunk_kib": 512,
    }
    for bad in ("host", "host=x", "nvlink=3", "host=1.5"):
        with pytest.raises(plait.InvalidArgumentError, match="--shares"):
            bench_copy.parse_shares(bad)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("all_reduce", "--pair", "0:1"), "go together with copy"),
        (("copy", "--shares", "host=1"), "go together with copy"),
        (("copy", "--interference"), "go together with copy"),
        (("copy", "--pair", "0:1", "--plot", "x.png", "--gpus"), "goes without --plot, --gpus"),
        (("copy", "--pair", "0:x"), "--pair: wanted two GPUs"),
        (("copy", "--pair", "0:1", "--against", "gloo"), "--against: wanted nccl, found 'gloo'"),
        (
            ("copy", "--pair", "0:1", "--against", "nccl", "--interference"),
            "--interference goes without --against",
        ),
        (
            ("copy", "--pair", "0:1", "-g", "2", "-r", "1", "--sm-budget", "9", "-w", "3"),
            "goes without --ranks, --root, --sm-budget, --warmup",
        ),
        (
            ("copy", "--pair", "0:1", "-d", "bf16", "-o", "max"),
            "--pair goes without --type, --op",
        ),
        (("copy", "--pair", "0:1", "-b", "0", "-e", "0"), "wanted sizes of at least an element"),
    ],
)
def test_bench_refuses(words, said):
    done = plait_command("bench", *words)
    assert done.returncode == 2 and said in done.stderr, done


@without_gpu
def test_bench_of_a_pair_says_that_there_are_no_gpus():
    done = plait_command("bench", "copy", "--pair", "0:1")
    assert done.returncode == 3, done
    assert "wanted GPUs 0 and 1, found 0: " in done.stderr and "Traceback" not in done.stderr


def test_paths_are_named_with_their_parts():
    machine = plait.load_topology("hgx-h200")
    request = plait.Request("copy", 1000 << 20, "uint8", "sum", 2, 0, 1)
    plan = plait.propose_one(machine, request, "striped", {"host_permille": 500})
    assert bench_copy.paths_text(plan) == "nvlink 50.0 % + host 50.0 %"
    small = plait.propose_one(machine, plait.Request("copy", 9, "uint8", "sum", 2, 0, 1), "striped")
    assert bench_copy.paths_text(small) == "nvlink 100.0 %"


def test_a_table_of_rows(tmp_path):
    task = {"pair": (0, 1), "masks": ["nvlink:0-1"], "interference": False}
    facts = {"gpu": "Some GPU", "gpus": 2, "driver": 13000}
    row = dict.fromkeys(bench_copy.FIELDS, 1.0) | {"bytes": 8, "way": "one way", "wrong": 0}
    row["paths"] = "host 100.0 %"
    assert "without nvlink:0-1" in bench_copy.header(facts, task)
    assert bench_copy.line(row).split()[-3:] == ["host", "100.0", "%"]
    bench_copy.write_csv(str(tmp_path / "rows.csv"), facts, task, [row])
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert "# pair: 0:1" in lines and lines[-1].startswith("8,one way,host 100.0 %,1.000")
    with pytest.raises(plait.FileError):
        bench_copy.write_csv(str(tmp_path / "no" / "rows.csv"), facts, task, [row])


class HostGpu:
    """A GPU emulated in host memory, without asynchrony."""

    name = "host memory"
    areas: ClassVar[dict[int, Any]] = {}
    asked: ClassVar[list[int]] = []

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal

    def allocate(self, size: int) -> int:
        area = np.empty(size, np.uint8)
        HostGpu.areas[area.ctypes.data] = area
        return int(area.ctypes.data)

    def release(self, pointer: int) -> None:
        del HostGpu.areas[pointer]

    def copy(self, dst: int, src: int, size: int) -> None:
        ctypes.memmove(dst, src, size)

    def fill(self, dst: int, value: int, size: int, stream: int) -> None:
        ctypes.memset(dst, value, size)

    def is_done(self, stream: int) -> bool:
        HostGpu.asked.append(stream)
        return len(HostGpu.asked) % 5 == 0

    def elapsed_s(self, begin: int, end: int) -> float:
        return 0.01

    def __getattr__(self, name: str) -> Any:  # streams, events, pins: nothing to do
        return lambda *_: 1


class HostCopies:
    """Copies by plans of the shipped machine, at once; `spoils` corrupts one byte."""

    def __init__(self, spoils: bool = False) -> None:
        self.machine = plait.load_topology("hgx-h200")
        self.spoils = spoils

    def plan_for(self, dst: int, src: int, size: int, both: bool, params: Any) -> plait.Plan:
        name = "send_recv" if both else "copy"
        request = plait.Request(name, size, "uint8", "sum", 2, 0, 1)
        return plait.propose_one(self.machine, request, "striped", params)

    def copy(self, dst: int, src: int, size: int, *_: Any) -> None:
        ctypes.memmove(dst, src, size)
        if self.spoils:
            ctypes.memset(dst + size - 1, 0xAB, 1)

    def exchange(self, here: list[int], there: list[int], size: int, *_: Any) -> None:
        ctypes.memmove(here[0], there[1], size)
        ctypes.memmove(there[0], here[1], size)


class HostTriad:
    bytes_per_round = 300

    def __init__(self, ordinal: int, size: int) -> None:
        assert ordinal == 2

    def enqueue(self, rounds: int, stream: int) -> None:
        assert rounds > 0


@pytest.fixture
def on_host(monkeypatch):
    copier = HostCopies()
    monkeypatch.setattr(gpu, "Gpu", HostGpu)
    monkeypatch.setattr(gpu, "count", lambda: 4)
    monkeypatch.setattr(gpu, "driver_version", lambda: 13000)
    monkeypatch.setattr(_core, "Triad", HostTriad)
    monkeypatch.setattr(bench_copy, "BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr(bench_copy, "TIMED_S", 0.001)
    monkeypatch.setattr(bench_copy, "PERIOD", 40_009)
    monkeypatch.setattr(bench_copy, "copies", lambda topology, masks: copier)
    yield copier
    assert HostGpu.areas == {}


def bench_task(**changes: Any) -> dict[str, Any]:
    return {
        "pair": (0, 1),
        "params": {},
        "interference": False,
        "sizes": [1, 4097, 300_000],
        "topology": "",
        "masks": [],
        "iters": 2,
        "check": True,
        "seed": 1,
    } | changes


def test_the_bench_counts_what_is_wrong(on_host):
    facts, *rows = bench_copy.bench(bench_task())
    assert facts["gpus"] == 4
    assert [(row["bytes"], row["way"], row["wrong"]) for row in rows] == [
        (size, way, 0) for size in (1, 4097, 300_000) for way in bench_copy.WAYS
    ]
    assert all(row["paths"] == "nvlink 100.0 %" for row in rows)
    on_host.spoils = True
    rows = list(bench_copy.bench(bench_task()))[1:]
    assert [row["wrong"] > 0 for row in rows] == [True, False] * 3


def test_the_bench_says_which_share_is_in_use(on_host, monkeypatch):
    asked = []

    def plan_for(dst: int, src: int, size: int, both: bool, params: Any) -> plait.Plan:
        asked.append(size)
        less = {"host_permille": 250 if len(asked) % 2 else 125, "chunk_kib": 1}
        request = plait.Request("copy", size, "uint8", "sum", 2, 0, 1)
        return plait.propose_one(on_host.machine, request, "striped", params or less)

    monkeypatch.setattr(on_host, "plan_for", plan_for)
    monkeypatch.setattr(bench_copy, "short_path", lambda *_: {"host_permille": 0})
    row = list(bench_copy.bench(bench_task(sizes=[1 << 20])))[1]
    assert row["paths"] == "nvlink 87.5 % + host 12.5 % (began as nvlink 75.0 % + host 25.0 %)"


def test_rounds_under_load(on_host, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    from bench.programs import under_load

    work = under_load.CopyWork((0, 1), [4096, 300_000], both_ways=False)
    rows = list(under_load.phase_rows(work, "before", 0.02))
    work.close()
    assert [row["bytes"] for row in rows] == [4096, 300_000]
    for row in rows:
        assert row["calls_of_each"] % under_load.ROUND == 0 and row["way"] == "one way"
        assert row["worst_round_gb_per_s"] <= row["corrected_gb_per_s"] + 0.1, row


def test_the_interference_table(on_host):
    rows = list(bench_copy.bench(bench_task(interference=True, sizes=[5000])))[1:]
    assert [row["way"] for row in rows] == list(bench_copy.WAYS)
    assert all(row["triad_slower_percent"] == 0.0 for row in rows)
    assert len(HostGpu.asked) % 5 == 0  # copies continued until the triad ended
    assert "% slower" in bench_copy.line(rows[0])


def test_the_bench_command_prints_rows_and_writes_them(on_host, tmp_path, capsys):
    file = str(tmp_path / "copies.csv")
    bench_command.bench("copy", pair="0:1", first="1K", last="4K", factor=4, csv=file, iters=1)
    printed = capsys.readouterr().out
    assert "copies 0>1 of one process, 4 x host memory" in printed
    assert printed.count("nvlink 100.0 %") == 4
    assert (tmp_path / "copies.csv").read_text().count("\n1024,") == 2
    on_host.spoils = True
    with pytest.raises(typer.Exit):
        bench_command.bench("copy", pair="0:1", first="1K", last="1K", iters=1)


class HostNccl:
    """NCCL between two emulated GPUs; `spoils` drops the last move of a group."""

    version, path, spoils = "2.28.9", "/lib/libnccl.so.2", False
    alive: ClassVar[int] = 0

    def __init__(self, ordinals: tuple[int, int]) -> None:
        assert ordinals == (0, 1)
        HostNccl.alive += 1

    def copy(self, moves: list[tuple[int, int, int]], size: int, streams: tuple[int, int]) -> None:
        assert [sender for sender, _, _ in moves] == list(range(len(moves)))
        for _, source, output in moves[:-1] if self.spoils else moves:
            ctypes.memmove(output, source, size)

    def leave(self) -> None:
        HostNccl.alive -= 1


def test_nccl_beside_copies_of_a_pair(on_host, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_copy, "NcclPair", HostNccl)
    file = tmp_path / "copies.csv"
    words: dict[str, Any] = {"pair": "0:1", "first": "4K", "last": "4K", "iters": 1}
    bench_command.bench("copy", against="nccl", csv=str(file), **words)
    assert HostNccl.alive == 0
    head, columns, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith("; NCCL 2.28.9 (/lib/libnccl.so.2)") and "NCCL us" in columns
    assert len(lines) == 2 and all(line.count(" | ") == 1 for line in lines)
    said = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    for row in csv.DictReader(said):
        assert tuple(row) == bench_copy.FIELDS + bench_copy.NCCL_FIELDS
        ratio = float(row["gb_per_s"]) / float(row["nccl_gb_per_s"])
        assert float(row["nccl_ratio"]) == pytest.approx(ratio, rel=0.1), row
        assert (row["wrong"], row["nccl_wrong"]) == ("0", "0")
    monkeypatch.setattr(HostNccl, "spoils", True)
    rows = list(bench_copy.bench(bench_task(against="nccl", sizes=[4096])))[1:]
    assert [(row["wrong"], row["nccl_wrong"] > 0) for row in rows] == [(0, True)] * 2
    with pytest.raises(typer.Exit):
        bench_command.bench("copy", against="nccl", **words)


STAND_IN = """
#include <stddef.h>
#include <string.h>
static const char* from[2]; static int comms[2], made;
int ncclGetVersion(int* version) { *version = 22809; return 0; }
const char* ncclGetErrorString(int code) { return code == 5 ? "invalid usage" : "other"; }
int ncclCommInitAll(void** out, int count, const int* devices) {
  if (devices[0] == devices[1]) return 5;
  for (int i = 0; i < count; ++i) { comms[i] = i; out[i] = &comms[i]; ++made; }
  return 0;
}
int ncclGroupStart(void) { from[0] = from[1] = 0; return 0; }
int ncclGroupEnd(void) { return 0; }
int ncclSend(const void* at, size_t n, int type, int peer, void* comm, void* stream) {
  from[*(int*)comm] = at;
  return type == 1 && peer == 1 - *(int*)comm && stream == (void*)(size_t)(70 + 1 - peer) ? 0 : 5;
}
int ncclRecv(void* at, size_t n, int type, int peer, void* comm, void* stream) {
  memcpy(at, from[peer], n);
  return type == 1 && peer == 1 - *(int*)comm && stream == (void*)(size_t)(70 + 1 - peer) ? 0 : 5;
}
int ncclCommDestroy(void* comm) { --made; return 0; }
int still_made(void) { return made; }
"""


def test_sends_and_receives_of_nccl_between_two_gpus(monkeypatch, tmp_path):
    library = str(tmp_path / "libnccl.so.2")
    made = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    subprocess.run(made, input=STAND_IN, text=True, check=True)
    monkeypatch.setenv("PLAIT_NCCL_LIB", library)
    with pytest.raises(plait.DriverError, match="returned 5: invalid usage"):
        nccl.NcclPair((1, 1))
    pair = nccl.NcclPair((1, 3))
    assert pair.version == "2.28.9"
    inputs = [np.arange(9, dtype=np.uint8), np.arange(9, 18, dtype=np.uint8)]
    outputs = [np.zeros(9, np.uint8) for _ in range(2)]
    one_way = (0, inputs[0].ctypes.data, outputs[1].ctypes.data)
    pair.copy([one_way], 8, (70, 71))
    assert outputs[1].tolist() == [*range(8), 0] and not outputs[0].any()
    pair.copy([one_way, (1, inputs[1].ctypes.data, outputs[0].ctypes.data)], 9, (70, 71))
    assert (outputs[0] == inputs[1]).all() and (outputs[1] == inputs[0]).all()
    pair.leave()
    assert ctypes.CDLL(library).still_made() == 0
