"""Tests collectives with counts: methods, types, bad counts, and commands."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gpu_stand_ins import plait_command

import plait
from plait import prove
from plait.bench.sizes import BLOCKS, SHAPES, counts_for, request_for

TYPES = ("int8", "uint16", "int32", "uint64", "fp16", "fp32", "fp64", "bf16", "fp8e4m3")


def _counts(collective: str, ranks: int, scale: int) -> list[int]:
    blocks = ranks * ranks if collective == "all_to_all" else ranks
    return [(block * 7919 + scale) % (scale + 3) * (block % 3) for block in range(blocks)]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_every_collective_of_blocks_is_right(run_ranks, ranks):
    requests = [
        [name, _counts(name, ranks, scale), TYPES[(scale + number) % len(TYPES)], "sum", ranks - 1]
        for number, name in enumerate(BLOCKS)
        for scale in (1, 7, 129, 65537)
    ]
    for row in run_ranks("rank_programs:block_requests", ranks, {"requests": requests}):
        assert row["wrong"] == [0] * len(requests)


@pytest.mark.parametrize("library", ["torch stand-in", "array API stand-in"])
def test_methods_say_what_their_docstrings_say(run_ranks, library):
    rows = run_ranks("rank_programs:block_methods", 3, {"library": library})
    counts = [3, 0, 5]
    mine = [np.arange(40).reshape(20, 2) + 100 * rank for rank in range(3)]
    begin = [0, 3, 3]
    gathered = np.concatenate([mine[rank][: counts[rank]] for rank in range(3)]).tolist()
    for rank, row in enumerate(rows):
        part = slice(begin[rank], begin[rank] + counts[rank])
        sent = [mine[q][rank * (q + 1) : (rank + 1) * (q + 1)] for q in range(3)]
        assert row["all_gather"] == gathered
        assert row["reduce_scatter"] == mine[2][part].tolist()
        assert row["all_to_all"] == np.concatenate(sent).tolist()
        assert row["gather"] == (gathered if rank == 1 else None)
        assert row["scatter"] == mine[1][part].tolist()
        names = {name.partition("/")[0] for name in row["calls"]}
        assert names == {f"{name}_v" for name in BLOCKS}


def test_bad_counts_are_told_to_all_ranks_and_the_next_call_is_right(run_ranks):
    words = {
        "negative": "InvalidArgumentError: counts: wanted a count in 0..2^62 for rank 1, found -4",
        "short": "InvalidArgumentError: counts: wanted 2 counts, one a rank, found 1",
        "sum": "reduce_scatter_v: wanted an array whose first dimension is 9, as the counts say",
        "words": "counts: wanted 2 whole numbers, one a rank, found ['x', 4]",
        "lists": "MismatchError: counts: rank 0 asks for 4+6, rank 1 for 4+5",
        "ends": "MismatchError: all_to_all_v: rank 1 sends rank 1 4 elements, of which that one "
        "wants 3",
        "none": "counts: wanted 2 counts, one a rank, found none",
        "root": "wanted a root in 0..1, found 2",
    }
    for row in run_ranks("rank_programs:block_refusals", 2):
        for name, said in words.items():
            assert said.partition(": ")[2] in row["said"][name], (name, row["said"][name])


def test_shapes_have_as_much_in_all_as_even_blocks():
    for collective in BLOCKS:
        for count, ranks in ((0, 4), (1, 3), (1000, 2), (1009, 8)):
            for shape in SHAPES[1:]:
                counts = counts_for(shape, collective, count, ranks)
                rows = ranks if collective == "all_to_all" else 1
                assert len(counts) == ranks * rows and min(counts) >= 0
                assert sum(counts) == count * ranks * rows
    assert counts_for("uniform", "gather", 7, 4) == []
    assert request_for("gather", 4096, "fp32", "sum", 4, 0, shape="uniform").counts == []
    with pytest.raises(plait.InvalidArgumentError, match="one-heavy, found 'odd'"):
        counts_for("odd", "gather", 7, 4)
    with pytest.raises(plait.InvalidArgumentError, match="found all_reduce"):
        counts_for("linear", "all_reduce", 7, 4)


def test_commands_know_counts():
    words = ["all_gather", "-T", "hgx-h200", "--ranks", "4", "--counts", "one-heavy"]
    planned = plait_command("plan", *words)
    assert planned.returncode == 0, planned.stderr
    assert "all_gather_v of" in planned.stdout and "proved" in planned.stdout
    assert "bruck" in planned.stdout and "other collectives" in planned.stdout
    assert plait_command("simulate", *words, "--json").returncode == 0
    refused = plait_command("plan", "all_reduce", "-T", "hgx-h200", "--counts", "linear")
    assert refused.returncode == 2 and "found all_reduce" in refused.stderr


def test_bench_of_blocks_checks_them():
    words = ["reduce_scatter", "--ranks", "3", "--counts", "linear", "-b", "1K", "-e", "64K"]
    found = plait_command("bench", *words, "-f", "8", "-n", "2", "--json")
    assert found.returncode == 0, found.stderr
    said = json.loads(found.stdout)
    assert said["out_of_bounds"] == 0 and len(said["results"]) == 3
    assert all(row["busbw"] > 0 for row in said["results"])


def test_verify_all_has_cases_of_blocks():
    cases = [case for case in prove.all_cases(["hgx-h200"]) if case.counts]
    assert {case.strategy for case in cases} >= {"direct", "one_shot", "ring"}
    outcomes = [prove.prove(case) for case in cases[::61]]
    assert [outcome.findings for outcome in outcomes if outcome.findings] == []
    assert any(not outcome.refusal for outcome in outcomes)


def test_a_block_or_rank_outside_the_request_is_refused():
    request = plait.Request("all_gather", 7, ranks=2, counts=[7, 3])
    for index in (-1, 2, 10**6):
        with pytest.raises(plait.InvalidArgumentError, match=r"in 0\.\.1, found"):
            plait.in_block(request, index, plait.whole_range(request))
        with pytest.raises(plait.InvalidArgumentError, match=r"in 0\.\.1, found"):
            request.input_bytes(index)
    with pytest.raises(plait.InvalidArgumentError, match="wanted at most"):
        plait.Request("all_gather", 2**61, "fp64", ranks=2).output_bytes(0)


def test_an_engines_plan_of_no_ranks_is_refused():
    topology = plait.load_topology("hgx-h200")
    with pytest.raises(plait.InvalidArgumentError, match="ranks, found 0"):
        plait.engine_plan(topology, plait.Request("all_reduce", 4, ranks=0), "two_shot", {})


def test_an_engines_plan_of_more_steps_than_it_counts_is_refused():
    machine = plait.load_topology("hgx-h200")
    request = plait.Request("all_to_all", 1 << 57, "int8", ranks=4)
    with pytest.raises(
        plait.UnsupportedError, match=r"at most 2\^46 bytes, found 576460752303423488"
    ):
        plait.what_would_run(machine, request, "copy_ring")
