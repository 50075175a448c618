"""The program of a run on GPUs, as far as no GPU is wanted: its plan, its tables, one section on
CPU ranks, what it finds wrong, and that a run fits into its time."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

import plait
from plait.bench import tuner

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))
import gpu_run  # noqa: E402
import run_predictions  # noqa: E402
import run_ranks  # noqa: E402
import run_rows  # noqa: E402
import run_tables  # noqa: E402
from run_rows import GIB, KIB, MIB  # noqa: E402


def given(tmp_path, gpus):
    return argparse.Namespace(
        gpus=gpus,
        out=tmp_path,
        build=tmp_path,
        budget_s=gpu_run.BUDGET_S,
        most_mib=4096,
        only="",
        machine=f"h200x{gpus}",
        one_gpu=False,
        dry=True,
        commit="abc",
    )


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_run_fits_into_its_time_with_the_most_important_first(tmp_path, gpus, capsys):
    run = gpu_run.Run(given(tmp_path, gpus))
    run.all()
    said = re.findall(r"^## (\w+): (\d+) s of (\d+): ", capsys.readouterr().out, re.M)
    names = [name for name, _, _ in said]
    assert names[:4] == ["table", "symmetric", "pinned_tree", "pinned_ring"]
    assert set(names) >= {"links", "schedules"}
    budgets = sum(int(budget) + gpu_run.START_S for _, budget, _ in said)
    assert budgets <= gpu_run.BUDGET_S - gpu_run.TABLES_S + 30
    assert all(int(limit) >= int(budget) for _, budget, limit in said)


def test_files_of_a_run_are_no_more_than_eight(tmp_path):
    commands = [step.command for step in gpu_run.steps(given(tmp_path, 8))]
    named = {word for command in commands for word in command if word.endswith(".csv")}
    assert len(named) == len(commands) <= 7  # and the log


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_run_asks_for_every_size_and_every_engine(ranks):
    table = run_rows.items("table", ranks, 4 * GIB)
    sizes = [one.size for one in table if (one.collective, one.type) == ("all_reduce", "fp32")]
    assert sizes == [KIB << k for k in range(23)]
    swept = {one.way for one in run_rows.items("schedules", ranks, GIB)}
    assert swept >= {info.name for info in plait.engines()}
    assert swept >= {"fold", "phases", "ring"}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_row_of_the_table_was_predicted(ranks):
    predicted = {
        (row["collective"], row["type"], int(row["bytes"]))
        for row in run_rows.read(run_predictions.files(ranks)[0])
        if row["section"] == "table" and float(row["predicted_graph_us"]) > 0
    }
    items = run_rows.items("table", ranks, 4 * GIB)
    wanted = {(i.collective, i.type, i.request(ranks).message_bytes()) for i in items}
    assert predicted == wanted


def test_a_prediction_is_what_the_simulator_says():
    item = run_rows.Item("schedules", "all_reduce", "fp32", 64 * MIB, "tiled")
    name, graph_us, eager_us = run_predictions.times_us(item, 8)
    found = plait.what_would_run(run_predictions.machine(), item.request(8), "tiled")
    assert (name, graph_us) == ("tiled", pytest.approx(found.predicted_us, rel=0.05))
    assert eager_us > graph_us


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run_predictions.make_up(folder, 8, "h200x8")
    return folder


def test_tables_of_made_up_rows(made_up):
    said = run_tables.report(made_up, 8)
    assert "within 10%" in said
    assert "1 GiB:" in said and "goal 362.0" in said
    assert "increment" in said
    assert "0 of them wrong" in said


def test_choices_replace_the_rows_of_their_ranks_alone(made_up):
    old = run_tables.CHOICES.read_text()
    made = run_tables.choices(run_tables.calls_of(made_up, "table"), 8)
    new = run_tables.with_choices(old, made)
    row = re.compile(r"^PLAIT_CHOICE\((\w+),\s*(\d+),", re.M)
    assert "8" in {ranks for _, ranks in row.findall(new)}
    kept = [one for one in old.splitlines() if not re.match(r"PLAIT_CHOICE\(\w+,\s*8,", one)]
    assert [one for one in new.splitlines() if one in kept or one == ""] == kept
    for name in ("all_reduce", "all_gather"):
        ranks = [int(count) for collective, count in row.findall(new) if collective == name]
        assert ranks == sorted(ranks)
    assert run_tables.with_choices(new, made) == new


def test_a_choice_ends_where_nccl_may_be_ahead():
    assert run_tables.between(MIB, 4 * MIB, (True, False)) == MIB
    assert run_tables.between(MIB, 4 * MIB, (False, True)) == 4 * MIB - KIB
    assert run_tables.between(MIB, 4 * MIB, (True, True)) == 2 * MIB


def test_figures_of_the_readme_are_renewed(made_up):
    calls = run_tables.calls_of(made_up, "table")
    old = run_tables.README.read_text()
    new = run_tables.with_figures(old, calls, 8)
    assert new != old
    assert run_tables.sentence(calls, 8) in new
    assert "On 4 GPUs" in new


def test_one_section_on_cpu_ranks(tmp_path):
    csv = tmp_path / "rows.csv"
    program = [sys.executable, str(BENCH / "run_ranks.py"), "--section", "pinned_tree", "--host"]
    asked = ["--ranks", "2", "--most-mib", "1", "--budget-s", "20", "--csv", str(csv)]
    job = subprocess.run([*program, *asked], capture_output=True, text=True, timeout=60)
    assert job.returncode == 0, job.stderr
    rows = run_rows.read(csv)
    assert len(rows) >= 8
    assert {row["wrong"] for row in rows} == {"0"}


def test_a_call_that_does_nothing_is_found_wrong():
    task = {"host": True, "section": "table", "seed": 1, "budget_s": 1.0}
    rank = run_ranks.Rank(task)
    request = plait.Request("all_reduce", 1000, "fp32", ranks=1)
    case = run_ranks.Case(rank.on, request, 7)
    _, slab = rank.arrays(case)
    for exact in (True, False):
        assert rank.wrong(case, slab, lambda: None, exact) == 1000


def request_s(request, ranks):
    """Of plait tune, as the simulator says: 8 launches of 2 calls by each engine and NCCL, as slow
    as the slowest of them, then the check of a result by CPUs at 1 GB/s."""
    engines = tuner.candidates(request, "alone", "tiled", False)
    plans = (
        plait._core.engine_plan(run_predictions.machine(), request, name) for name, _ in engines
    )
    slowest_s = (
        max(plait._core.predicted_ns(plan, run_predictions.machine()) for plan in plans) / 1e9
    )
    return 8 * 2 * slowest_s * (len(engines) + 1) + 3 * request.message_bytes() / 1e9


@pytest.mark.parametrize("ranks", [4, 8])
def test_tuning_is_done_in_three_minutes(ranks):
    """Its budget, the start and end of two jobs, and the last request of each, which may begin just
    before time is up."""
    wanted = tuner.requests(ranks, list(tuner.COLLECTIVES), "alone")
    longest = [one for one in wanted if one.message_bytes() > 900 * MIB and one.type == "fp32"]
    assert {one.collective for one in longest} >= {"all_reduce", "reduce_scatter"}
    last_s = max(request_s(one, ranks) for one in longest)
    assert 1 < last_s < 20
    assert tuner.BUDGET_S + 2 * (gpu_run.START_S + last_s) <= 180
