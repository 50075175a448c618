"""Tests Communicator with processes: collectives, kinds of arrays, bad input, lost ranks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import plait
from plait import launch
from plait.bench.nccl import COLLECTIVES

TYPES = (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "fp16",
    "fp32",
    "fp64",
    "bf16",
    "fp8e4m3",
    "fp8e5m2",
)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_collective_is_right(run_ranks, ranks):
    counts = (0, 1, 7, 1000, 65537)
    requests = [
        [name, count, "fp32", "sum", count % ranks] for name in COLLECTIVES for count in counts
    ]
    for row in run_ranks("rank_programs:collectives", ranks, {"requests": requests}):
        assert row["wrong"] == [0] * len(requests)


def test_every_type_and_op_is_right(run_ranks):
    floats = {"fp16", "fp32", "fp64", "bf16", "fp8e4m3", "fp8e5m2"}
    ops = {
        True: ("sum", "prod", "min", "max", "avg"),
        False: ("sum", "prod", "min", "max", "bit_and", "bit_or", "bit_xor"),
    }
    requests = [["all_reduce", 1003, name, op, 0] for name in TYPES for op in ops[name in floats]]
    for row in run_ranks("rank_programs:collectives", 3, {"requests": requests}):
        assert dict(zip(map(str, requests), row["wrong"], strict=True)) == {
            str(request): 0 for request in requests
        }


def test_deadlines_of_the_environment_hold_beside_keywords(monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_ARRIVE_S", "0.3")
    tmp_path.chmod(0o700)
    for arrive_s in (None, 0.2):
        began = time.monotonic()
        with pytest.raises(plait.DeadlineError, match="rank 1 of 2 did not join"):
            plait.init(rank=0, ranks=2, rendezvous=f"unix:{tmp_path}/s", arrive_s=arrive_s)
        assert time.monotonic() - began < 30
    monkeypatch.setenv("PLAIT_ARRIVE_S", "soon")
    with pytest.raises(plait.InvalidArgumentError, match="PLAIT_ARRIVE_S: wanted"):
        plait.init(rank=0, ranks=1)


def test_a_rank_or_ranks_alone_takes_the_launchers_other_number(run_ranks):
    for row in run_ranks("rank_programs:half_an_identity", 3):
        assert row["total"] == [[3.0], [3.0]]
        found = f"found rank {row['rank']} of 3 by the launcher's variables; pass both"
        wrong = (row["rank"] + 1) % 3
        assert row["said"] == [
            f"rank={wrong}: wanted ranks= beside rank=, {found}",
            f"ranks=4: wanted rank= beside ranks=, {found}",
        ]


def test_without_a_launcher_a_rank_alone_is_a_single_rank():
    assert plait.init(rank=0).ranks == plait.init(ranks=1).ranks == 1
    for name, value, other in (("rank", 1, "ranks"), ("ranks", 3, "rank"), ("rank", -1, "ranks")):
        with pytest.raises(plait.InvalidArgumentError, match=f"{name}={value}: wanted {other}="):
            plait.init(**{name: value})


def test_methods_say_what_their_docstrings_say(run_ranks):
    rows = run_ranks("rank_programs:methods", 2)
    mine = [np.arange(4) + 100 * rank for rank in range(2)]
    total = (mine[0] + mine[1]).tolist()
    for rank, row in enumerate(rows):
        assert row["all_reduce"] == total and row["in_place"] == total
        assert row["max"] == mine[1].tolist()
        assert row["reduce_scatter"] == total[2 * rank : 2 * rank + 2]
        assert row["all_gather"] == [part.tolist() for part in mine]
        assert row["broadcast"] == mine[1].tolist()
        assert row["reduce"] == (total if rank == 1 else None)
        assert row["all_to_all"] == [part[2 * rank + i] for part in mine for i in range(2)]
        assert row["gather"] == ([part.tolist() for part in mine] if rank == 1 else None)
        assert row["scatter"] == mine[1][2 * rank : 2 * rank + 2].tolist()
        assert row["send_recv"] == mine[1 - rank].tolist()
        assert row["copy"] == (mine[0].tolist() if rank == 1 else None)
        assert row["exchange"] == [1, 2]
        assert row["calls"] >= 12


def test_two_ranks_send_to_each_other(run_ranks):
    counts = [0, 1, 7, 65537]
    for row in run_ranks("rank_programs:pairs", 3, {"counts": counts}):
        assert row["wrong"] == []
        assert set(row["said"].values()) == {"InvalidArgumentError"} and len(row["said"]) == 3
        assert row["calls"] == 2 * 3 * len(counts)


def test_arrays_of_many_kinds(run_ranks):
    for row in run_ranks("rank_programs:arrays_of_many_kinds", 2):
        assert row["buffer"] == [2, 4, 6]
        assert row["dlpack"] == [2.0] * 5
        assert row["bf16"] == [3.0] * 3 and row["bf16_type"] == "bfloat16"


# mistake of rank 1 -> error class on rank 1, on the peer
MISTAKES = {
    "type": ("MismatchError", "MismatchError"),
    "count": ("MismatchError", "MismatchError"),
    "op": ("MismatchError", "MismatchError"),
    "collective": ("MismatchError", "MismatchError"),
    "root": ("MismatchError", "MismatchError"),
    "strategy": ("MismatchError", "MismatchError"),
    "read_only": ("InvalidArgumentError", ""),
    "strided": ("InvalidArgumentError", ""),
    "unknown_op": ("InvalidArgumentError", ""),
    "not_array": ("InvalidArgumentError", ""),
    "small_output": ("InvalidArgumentError", ""),
    "bad_root": ("InvalidArgumentError", ""),
    "null": ("InvalidArgumentError", ""),
    "bits_on_floats": ("UnsupportedError", ""),
    "scalar": ("InvalidArgumentError", ""),
    "params": ("InvalidArgumentError", ""),
    "params_kind": ("InvalidArgumentError", ""),
    "params_size": ("InvalidArgumentError", ""),
    "strategy_kind": ("InvalidArgumentError", ""),
    "strategy_text": ("InvalidArgumentError", ""),
    "unknown_word": ("TypeError", ""),
    "unknown_word_on_gpu": ("TypeError", ""),
    "memory": ("MemoryError", "MemoryExhaustedError"),
    "two_ways": ("InvalidArgumentError", ""),
    "way": ("InvalidArgumentError", ""),
    "params_alone": ("InvalidArgumentError", ""),
    "no_parts": ("InvalidArgumentError", ""),
    "one_array": ("InvalidArgumentError", ""),
    "root_kind": ("InvalidArgumentError", ""),
    "plan_scalar": ("InvalidArgumentError", ""),
    "exchange_kind": ("InvalidArgumentError", ""),
    "no_plan": ("AttributeError", ""),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_bad_input_is_an_error_on_every_rank(run_ranks, kind):
    own, others = MISTAKES[kind]
    rows = run_ranks("rank_programs:bad_call", 2, {"kind": kind})
    for row in rows:
        assert row["error"], row
        assert row["seconds"] < 10.0 and row["after"] == len(rows), row
    assert rows[1]["class"] == own
    if others:
        assert rows[0]["class"] == others
    else:
        assert "rank 1" in rows[0]["error"], rows[0]


def test_messages_of_arguments_name_the_argument():
    comm, array = plait.init(), np.ones(64, np.float32)
    with pytest.raises(TypeError, match="unknown keyword stratagem: wanted strategy, params, "):
        comm.all_reduce(array, stratagem="ring")
    with pytest.raises(plait.InvalidArgumentError, match="wanted strategy= beside params="):
        comm.all_reduce(array, params={"segments": 2})
    with pytest.raises(plait.InvalidArgumentError, match="scatter_v: wanted an array on the root"):
        comm.scatter_v()
    with pytest.raises(plait.InvalidArgumentError, match="found the same array: the residual"):
        rows = np.ones((2, 8), np.float16)
        comm.all_reduce_rms_norm(rows, rows.copy(), rows[0], out=(made := rows.copy()))
        comm.all_reduce_rms_norm(rows, made, rows[0], out=made)


def test_a_strategy_has_its_parameters_in_the_text_or_beside():
    comm = plait.init()
    request = plait.Request("all_reduce", 64, "fp32", "sum", comm.ranks)
    in_text = comm.plan_for(request, "direct:pieces=2")
    assert in_text.to_json() == comm.plan_for(request, "direct", {"pieces": 2}).to_json()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topology": 5}, "topology: wanted text, found 5; take a shipped name"),
        ({"rank": "a", "ranks": 2}, "rank: wanted a whole number, found 'a'"),
        ({"arrive_s": "soon"}, "arrive_s: wanted a number, found 'soon'"),
        ({"arrive_s": float("inf")}, "wanted seconds above 0, at most 1e9, found inf"),
        ({"masks": "nvlink:0-1"}, "masks: wanted texts, found 'nvlink:0-1'; take a list"),
        ({"masks": 3}, "masks: wanted texts, found 3; take a list"),
        ({"masks": [3]}, "wanted text as masks, found 3"),
        ({"bitwise": "yes"}, "bitwise: wanted True or False, found 'yes'"),
    ],
)
def test_an_option_of_a_wrong_kind_is_an_error_in_words(options, said):
    with pytest.raises(plait.InvalidArgumentError) as refused:
        plait.init(**options)
    assert said in str(refused.value)


@pytest.mark.parametrize("root", ["a", 0.0, None, 1 << 40])
def test_a_root_that_is_no_rank_is_an_error_that_names_it(root):
    comm, rows = plait.Communicator(0, 1), np.ones((2, 3), np.float32)
    for call in (comm.broadcast, comm.reduce, comm.gather, comm.scatter):
        with pytest.raises(plait.InvalidArgumentError) as refused:
            call(rows, root=root)
        assert f"wanted a rank as root, found {root!r}" in str(refused.value)
    with pytest.raises(plait.InvalidArgumentError, match="wanted a rank as root, found"):
        comm.gather_v(rows, counts=[2], root=root)
    with pytest.raises(plait.InvalidArgumentError, match="wanted a rank as dst, found"):
        comm.copy(rows, src=0, dst=root)
    assert (comm.broadcast(rows, root=np.int64(0)) == rows).all()


class RankInABox:
    """A rank that may change, as a tensor of one element."""

    def __init__(self):
        self.rank = 0

    def __index__(self):
        return self.rank


def test_a_root_is_read_at_each_call():
    comm, root, ones = plait.Communicator(0, 1), RankInABox(), np.ones(3, np.float32)
    assert comm.broadcast(ones, root=root).tolist() == [1, 1, 1]
    assert comm.broadcast(ones, root=np.array(0)).tolist() == [1, 1, 1]
    root.rank = 1
    with pytest.raises(plait.InvalidArgumentError, match=r"root in 0\.\.0, found 1"):
        comm.broadcast(ones, root=root)


def test_a_single_number_is_an_array_of_one_element():
    comm, number = plait.Communicator(0, 1), np.array(3.0, np.float32)
    for call in (comm.reduce_scatter, comm.scatter, comm.all_gather):
        assert call(number).tolist() == [3.0]
    assert comm.all_reduce(number).shape == ()


def test_arrays_that_do_not_fit_a_plan():
    comm = plait.Communicator(0, 1)
    plan = comm.plan_for(plait.Request("all_reduce", 1024, "fp32", "sum", 1))
    good = np.ones(1024, np.float32)
    for array, out in ((good[:10], good), (good, good[:10]), (good, good.astype(np.int32))):
        with pytest.raises(plait.InvalidArgumentError, match="4096 bytes of fp32"):
            comm.run(plan, array, out)
    assert (comm.run(plan, good, np.zeros_like(good)) == good).all()


def test_negative_and_overflowing_counts():
    with pytest.raises(plait.InvalidArgumentError, match="count >= 0"):
        plait.Request("all_reduce", -1)
    request = plait.Request("all_reduce", 2**62, "fp32", ranks=2)
    with pytest.raises(plait.InvalidArgumentError, match="elements"):
        request.checked(plait.local_cpu(2))


@pytest.mark.parametrize("topology", ["no-such-machine", "broken.json"])
def test_wrong_topology_is_an_error_on_every_rank(run_ranks, tmp_path, topology):
    if topology == "broken.json":
        topology = str(tmp_path / topology)
        Path(topology).write_text('{"schema": "plait.topology/1", "devices": 7}')
    for row in run_ranks("rank_programs:wrong_topology", 2, {"topology": topology}):
        assert row["class"] and row["seconds"] < 10.0, row


def shm_files_of_plait() -> set[str]:
    """Returns plait's files in /dev/shm, without files of unrelated programs."""
    return {name for name in os.listdir("/dev/shm") if "plait" in name}


@pytest.mark.alone
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("count", [100, 1 << 20])
def test_survivors_name_the_dead_rank(victim, count):
    before = shm_files_of_plait()
    task = {"victim": victim, "calls": 20, "count": count, "strategy": "", "signal": "SIGKILL"}
    folder = str(Path(__file__).parent)
    job = launch.start("rank_programs:until_a_rank_dies", 3, task, folder=folder)
    rows = list(job.lines())
    statuses = job.wait()
    died_at = next(row["died_at"] for row in rows if "died_at" in row)
    survivors = [row for row in rows if "class" in row]
    assert len(survivors) == 2 and statuses[victim] == -9
    for row in survivors:
        assert row["class"] == "PeerLostError", row
        assert f"rank {victim}" in row["error"], row
        assert row["noticed_at"] - died_at < 4.0, row  # on a busy machine; a call ends after 5 s
    assert shm_files_of_plait() == before


def test_a_rank_out_of_memory_says_so_by_plaits_error():
    job = launch.start("rank_programs:no_memory", 1, {}, folder=str(Path(__file__).parent))
    (row,) = job.lines()
    assert (row["code"], row["exit_code"]) == ("out_of_memory", 1), row
    assert "Unable to allocate" in row["error"] and job.wait() == [1]
