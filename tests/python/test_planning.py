"""Tests user-defined strategies in Python: proof, commands and calls."""

from __future__ import annotations

import json
import multiprocessing
import runpy
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import strategy_ranks

import plait
from plait import planning

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "02_strategy.py"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plait.cli", *words], capture_output=True, text=True, timeout=200
    )


def alone(check: Callable[[], None]) -> None:
    """Runs the check in a child process, so that its strategies do not affect other tests."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(check).result()


def all_reduce(count: int = 1000, ranks: int = 2) -> plait.Request:
    return plait.Request("all_reduce", count, "fp32", ranks=ranks)


@pytest.fixture(scope="module")
def machine() -> plait.Topology:
    return plait.load_topology("hgx-h200")


def test_the_example_is_proved_on_two_machines():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("proved") == 2 and "((0+1+2+3)+(4+5+6+7))" in done.stdout


@pytest.mark.parametrize("ranks", [2, 4])
def test_calls_by_name_run_it_and_agree_with_plaits_own(run_ranks, ranks):
    rows = run_ranks("strategy_ranks:by_name", ranks, {"count": 10007})
    assert [row["wrong"] for row in rows] == [0] * ranks
    assert {row["by"] for row in rows} == {f"all_reduce/pair_sum(chunks=3,ranks={ranks})"}


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("races", "plan races is not right"),
        ("unequal", "plan: rank 0 asks for one, rank 1 for another of the same request"),
        ("raises", "KeyError: 3 ("),
        ("no_plan", "wanted a plait.Plan, found NoneType"),
        ("other_request", "wanted a plan of the request"),
        ("refuses", "not on such machines"),
    ],
)
def test_what_is_wrong_is_refused_on_all_ranks_and_the_next_call_runs(run_ranks, which, said):
    rows = run_ranks("strategy_ranks:wrong", 2, {"strategy": which})
    for row in rows:
        assert said in row["error"], row
        assert row["after"] == 3.0
    kinds = {"unequal": "MismatchError", "refuses": "UnsupportedError"}
    assert {row["kind"] for row in rows} == {kinds.get(which, "InvalidArgumentError")}


def test_calls_that_name_none_never_take_it():
    alone(calls_that_name_none_never_take_it)


def calls_that_name_none_never_take_it():
    machine = plait.load_topology("hgx-h200")
    strategy_ranks.add("pair_sum")
    plans, _ = plait.propose(machine, all_reduce())
    assert "pair_sum" in {plan.strategy for plan in plans}
    assert "pair_sum" in {one.plan.strategy for one in plait.ranked(machine, all_reduce())[0]}
    assert "pair_sum" not in plait.Communicator(rank=0, ranks=1).explain(all_reduce(ranks=1))


def test_parameters_are_those_of_the_function():
    alone(parameters_are_those_of_the_function)


def parameters_are_those_of_the_function():
    machine = plait.load_topology("hgx-h200")
    strategy_ranks.add("pair_sum")
    plan = plait.propose_one(machine, all_reduce(), "pair_sum", {"chunks": 2})
    assert plan.label == "pair_sum(chunks=2,ranks=2)" and plait.verify(plan).proved
    with pytest.raises(plait.InvalidArgumentError, match="one of chunks"):
        plait.propose_one(machine, all_reduce(), "pair_sum", {"chunk": 2})
    with pytest.raises(plait.UnsupportedError, match="does all_reduce, not broadcast"):
        plait.propose_one(machine, plait.Request("broadcast", 8, ranks=2), "pair_sum")


def test_a_later_strategy_of_the_name_takes_its_place():
    alone(a_later_strategy_of_the_name_takes_its_place)


def a_later_strategy_of_the_name_takes_its_place():
    machine = plait.load_topology("hgx-h200")

    def first(topology, request):
        raise plait.UnsupportedError("the first")

    def second(topology, request):
        raise plait.UnsupportedError("the second")

    for made, said in ((first, "the first"), (second, "the second")):
        plait.strategy(name="replaced")(made)
        with pytest.raises(plait.UnsupportedError, match=said):
            plait.propose_one(machine, all_reduce(), "replaced")


def test_names_and_arguments_that_cannot_be_are_refused():
    with pytest.raises(plait.InvalidArgumentError, match="which is plait's"):
        plait.strategy(name="ring")(lambda topology, request: None)

    def positional(topology, request, chunks): ...

    with pytest.raises(plait.InvalidArgumentError, match="found chunks among its arguments"):
        plait.strategy(positional)
    with pytest.raises(plait.InvalidArgumentError, match="all_sum"):
        plait.strategy(collectives=["all_sum"], name="x")(lambda topology, request: None)


def test_the_builder_says_what_it_wanted(machine):
    builder = plait.Builder(machine, all_reduce(), "mine")
    lane = builder.lane(0)
    whole = builder.input(0)
    assert (whole.space, whole.bytes) == ("input", 4000)
    assert [part.bytes for part in plait.partition(plait.whole_range(all_reduce()), 3)] == [
        *(1408, 1408, 1184)
    ]
    for wrong, said in (
        (lambda: builder.lane(2), "rank in 0..1, found 2"),
        (lambda: builder.lane(0, "gpu"), "one of copy_engine, kernel, cpu"),
        (lambda: builder.copy(7, whole, whole), "lane in 0..0, found 7"),
        (lambda: builder.alloc("input", 0, 8), "the caller's"),
        (lambda: builder.alloc("heap", 0, 8), "one of input, output"),
        (lambda: whole.slice(plait.Range(3999, 2)), "a part of a region of 4000 bytes"),
        (lambda: builder.wait(lane, builder.signal(lane, 1)), "lane of rank 1"),
        (lambda: plait.partition(plait.Range(0, 8), 0), "number of parts"),
        (lambda: builder.sum_order("any"), "one of rank_order, algorithm_order"),
    ):
        with pytest.raises(plait.InvalidArgumentError, match=said):
            wrong()


def test_findings_print_themselves(machine):
    builder = plait.Builder(machine, all_reduce(), "half")
    builder.copy(builder.lane(0), builder.output(0), builder.input(0))
    finding = plait.verify(builder.build()).findings[0]
    assert str(finding).startswith("contract") and finding.sentence in str(finding)
    assert repr(finding) == f"<plait.Finding {finding}>"


def test_files_without_strategies_are_refused(tmp_path):
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("import plait\n1 / 0\n")
    for file, said in (
        ("none.py", "found none"),
        ("broken.py", r"division by zero \(.*broken.py:2"),
        ("missing.py", "wanted a Python file"),
    ):
        with pytest.raises(plait.Error, match=said):
            planning.load(str(tmp_path / file))


def test_commands_know_a_loaded_strategy():
    words = ("all_reduce", "-T", "dgx1v", "-b", "1M", "--load", str(EXAMPLE))
    for one in ("plan", "simulate"):
        done = command(one, *words, "-s", "two_level:groups=4")
        assert done.returncode == 0 and "two_level(chunks=4,groups=4)" in done.stdout, done.stderr
    done = command("verify", "--all", "-T", "dgx1v", "--load", str(EXAMPLE), "-s", "two_level")
    assert done.returncode == 0, done.stderr
    assert "27 cases proved, 0 findings, 45 refused" in done.stdout


def test_bench_runs_it_beside_others_and_says_what_is_left_out():
    ways = "two_level:groups=2;ring:segments=2;pairwise"
    done = command(
        *("bench", "all_reduce", "-g", "4", "-b", "4K", "-e", "4K", "-n", "2", "--json"),
        *("--load", str(EXAMPLE), "--strategies", ways),
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["results"]
    assert [(row["name"], row["wrong"]) for row in rows] == [("two_level", 0), ("ring", 0)]
    assert "groups=2" in rows[0]["strategy"] and "segments=2" in rows[1]["strategy"]
    assert "not pairwise: " in done.stderr and "needs 2 ranks, found 4" in done.stderr


def test_plans_in_files_are_shown_simulated_and_run(tmp_path):
    file = tmp_path / "plan.json"
    topology = plait.load_topology("hgx-h200")
    plan = plait.propose_one(topology, all_reduce(4096, 4), "direct", {"pieces": 2})
    file.write_text(plan.to_json())
    shown = command("plan", str(file))
    assert shown.returncode == 0 and "as the file has it" in shown.stdout, shown.stderr
    simulated = command("simulate", str(file), "--json")
    assert json.loads(simulated.stdout)["total_ns"] == plait.simulate(plan, topology).total_ns
    benched = command("bench", str(file), "-n", "2", "--json")
    (row,) = json.loads(benched.stdout)["results"]
    assert (row["strategy"], row["size"], row["wrong"]) == (plan.label, 16384, 0)


def test_plans_in_files_that_are_not_right_are_refused_with_the_finding(tmp_path):
    file = tmp_path / "plan.json"
    topology = plait.load_topology("hgx-h200")
    said = json.loads(plait.propose_one(topology, all_reduce(4096, 2), "direct").to_json())
    lane = next(one for one in said["lanes"] if any(op["op"] == "wait" for op in one["ops"]))
    lane["ops"] = [op for op in lane["ops"] if op["op"] != "wait"]
    file.write_text(json.dumps(said))
    for one in ("plan", "simulate", "bench", "verify"):
        done = command(one, str(file))
        assert done.returncode == 1, (one, done.stdout)
        assert "finding" in done.stdout + done.stderr


def test_example_functions_are_still_functions():
    alone(example_functions_are_still_functions)


def example_functions_are_still_functions():
    machine = plait.load_topology("hgx-h200")
    space = runpy.run_path(str(EXAMPLE))
    plan = space["two_level"](machine, all_reduce(64, 4), groups=2)
    rows = [np.full(64, rank, np.float32) for rank in range(4)]
    results = [np.zeros(64, np.float32) for _ in range(4)]
    plait.run_reference(plan, rows, results)
    assert all((result == 6).all() for result in results)


def courier_of(build: Callable[[plait.Courier, plait.Builder], None]) -> None:
    """Returns a plan of two ranks with the transfers that `build` records, in two slots."""
    machine, request = plait.load_topology("hgx-h200"), all_reduce()
    builder = plait.Builder(machine, request, "mine")
    plait.in_chunks(
        builder, "all", lambda courier, chunk: build(courier, builder), chunks=1, slots=2
    )


def test_a_courier_of_chunks_ends_with_them():
    kept: list[plait.Courier] = []
    courier_of(lambda courier, builder: kept.append(courier))
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="Courier"), pytest.raises(TypeError):
            kept[0].write()
        courier_of(lambda courier, builder: courier.write())


def test_a_strategy_may_ask_its_communicator():
    alone(asks_its_communicator)


def asks_its_communicator():
    comm, ones = plait.Communicator(0, 1), np.ones(64, np.float32)

    @plait.strategy
    def asks(topology: plait.Topology, request: plait.Request) -> plait.Plan:
        assert (comm.all_reduce(ones) == 1).all()
        return comm.plan_for(request)

    assert (comm.all_reduce(ones[:32], strategy="asks") == 1).all()


def test_messages_that_are_not_released_are_a_mistake_of_the_strategy():
    def forgets(courier: plait.Courier, builder: plait.Builder) -> None:
        for _ in range(3):
            courier.send(0, 1, [builder.input(0)])
            courier.receive(1, 0, builder.input(0).bytes)

    with pytest.raises(plait.InvalidArgumentError) as refused:
        courier_of(forgets)
    assert "wanted message 0 from rank 0 to rank 1 released before message 2" in str(refused.value)
    assert "release() it" in str(refused.value)


def test_messages_that_were_not_sent_or_are_of_another_size_are_too():
    def receives_none(courier: plait.Courier, builder: plait.Builder) -> None:
        courier.receive(1, 0, builder.input(0).bytes)

    def receives_more(courier: plait.Courier, builder: plait.Builder) -> None:
        courier.send(0, 1, [builder.input(0)])
        courier.receive(1, 0, 2 * builder.input(0).bytes)

    with pytest.raises(plait.InvalidArgumentError, match="sent before it is received, found 0"):
        courier_of(receives_none)
    with pytest.raises(plait.InvalidArgumentError, match="found a message of 4000"):
        courier_of(receives_more)


def test_mistakes_of_a_builder_are_no_bug_in_plait_either():
    builder = plait.Builder(plait.load_topology("hgx-h200"), all_reduce(), "mine")
    told = builder.signal(builder.lane(0), 1)
    with pytest.raises(plait.InvalidArgumentError, match="found input, which is the caller's"):
        builder.alloc("input", 0, 64)
    with pytest.raises(plait.InvalidArgumentError, match="wanted a part of a region of 4000"):
        builder.input(0).slice(plait.Range(0, 4001))
    with pytest.raises(plait.InvalidArgumentError, match="wanted a wait on a lane of rank 1"):
        builder.wait(builder.lane(0), told)


def test_a_copy_takes_a_path_by_name(machine):
    def built(path: object) -> plait.Plan:
        request = plait.Request("copy", 1000, "fp32", ranks=2, peer=1)
        builder = plait.Builder(machine, request, "mine")
        lane = builder.lane(0)
        builder.copy(lane, builder.output(1), builder.input(0), path)
        return builder.build()

    (path,) = [one for one in machine.paths_between(0, 1) if one.name == "nvlink:0>1"]
    assert built("nvlink:0>1").to_json() == built(path).to_json()
    with pytest.raises(plait.InvalidArgumentError, match="nvlink:0>99"):
        built("nvlink:0>99")
    with pytest.raises(plait.InvalidArgumentError, match=r"path: wanted a Path .* found 5"):
        built(5)


def test_run_reference_runs_no_plan_that_is_not_proved():
    machine = plait.load_topology("mist")
    plan = plait.Builder(machine, plait.Request("all_reduce", 4, ranks=4), "mine").build()
    rows, results = ([np.full(4, value, np.float32) for _ in range(4)] for value in (1, -7))
    with pytest.raises(plait.InvalidArgumentError, match=r"is not right: .*finding"):
        plait.run_reference(plan, rows, results)
    assert all((result == -7).all() for result in results)
