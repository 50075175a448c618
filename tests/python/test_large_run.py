"""Tests bench run --large without a GPU: steps, calls, predictions, and the tuning file."""

import json
import re
import sys
from pathlib import Path

import pytest
from test_gpu_run import given as given_all_sizes

from plait import _core
from plait.bench import tuning_tables

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.lib import rows as result_rows
from bench.programs import gpu_run, predictions, tables
from bench.programs import items as items_module
from bench.programs.items import GIB


def given(tmp_path, gpus):
    made = given_all_sizes(tmp_path, gpus)
    made.large = True
    return made


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_run_of_large_messages_fits_into_its_time(tmp_path, gpus, capsys):
    run = gpu_run.GpuRun(given(tmp_path, gpus))
    run.all()
    said = capsys.readouterr().out
    found = re.findall(r"^## (\w+): (\d+) s of (\d+): (.*)", said, re.M)
    assert [name for name, *_ in found] == ["large", "shares", "shares_640m", "rotation", "links"]
    budgets = sum(int(budget) + gpu_run.START_S for _, budget, _, _ in found)
    assert budgets <= gpu_run.BUDGET_S - gpu_run.TABLES_S + 30
    commands = {name: command for name, _, _, command in found}
    assert commands["shares_640m"].startswith("PLAIT_DEVICE_MEMORY=671088640 ")
    assert "--rotation 16,24,32" in commands["rotation"]


def test_files_of_a_run_are_no_more_than_eight(tmp_path):
    commands = [step.command for step in gpu_run.steps(given(tmp_path, 8))]
    named = {word for command in commands for word in command if word.endswith(".csv")}
    assert len(named) == len(commands) <= 6  # plus the log and a tuning file


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_run_of_large_messages_times_choices_engines_and_shares(ranks):
    for section in items_module.LARGE_SECTIONS:
        first = items_module.items(section, ranks, 4 * GIB)[0]
        assert (first.collective, first.size, first.variant) == ("all_reduce", GIB, "")
    timed = {one.variant for one in items_module.items("large", ranks, 4 * GIB)}
    assert timed >= ({"copy_exchange", "tiled"} if ranks == 2 else {"copy_ring", "scatter_ring"})
    shares = items_module.items("shares", ranks, 4 * GIB)
    assert all("host_permille" in dict(one.params) for one in shares if one.variant)
    assert {one.collective for one in shares} == (
        {*items_module.ONE_PIECE} if ranks == 2 else {"all_reduce"}
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_call_of_a_large_run_that_is_served_was_predicted(ranks):
    rows = result_rows.read(predictions.large_files(ranks)[0])
    known = {(row["section"], row["collective"], row["bytes"], row["way"]) for row in rows}
    for section in items_module.LARGE_SECTIONS:
        for item in items_module.items(section, ranks, 4 * GIB)[::7]:
            size = str(item.request(ranks).message_bytes())
            for name, _, _ in predictions.times_us(item, ranks):
                way = f"plait {item.requested() or name}"
                assert (section, item.collective, size, way) in known
    rotations = result_rows.read(predictions.large_files(ranks)[1])
    assert {row["piece_mib"] for row in rotations} == set(gpu_run.ROTATION_PIECES.split(","))


@pytest.fixture(scope="module")
def made_up_large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    predictions.make_up(folder, 8, "h200x8", large=True)
    return folder


def test_a_run_of_large_messages_leaves_a_tuning_file(made_up_large):
    said = tables.report(made_up_large, 8)
    for head in ("### shares_640m", "us lost a step", "host_permille=", "plait's choice and NCCL"):
        assert head in said
    line = tables.write_tuned(made_up_large, 8, "h200x8")
    file = made_up_large / "tuning_h200x8.json"
    assert file.name in line
    _core.check_tuning(file.read_text())
    old = json.loads((tables.TUNING / "hgx-h200.json").read_text())["rows"]
    new = json.loads(file.read_text())["rows"]
    made = [row for row in new if row not in old]
    assert [row for row in new if row in old] == old  # smaller calls keep their rows
    assert made and all("gpu_run_large_h200x8.csv" in row["source"] for row in made)
    assert {row["from_bytes"] for row in made} == {"16M"}
    assert {row["from_ranks"] for row in made} == {row["upto_ranks"] for row in made} == {8}
    own = (row for row in new if row["collective"] == "all_reduce" and "when" not in row)
    assert next(own) in made  # the first row that takes a call counts


def test_gpus_without_a_table_get_guesses_beside_measured_rows(made_up_large, tmp_path):
    kind = "NVIDIA B200, 148 multiprocessors, 18 NVLinks to switches"
    for file in made_up_large.glob("gpu_run_*.csv"):
        text = file.read_text().replace(f"{result_rows.KIND}none", f"{result_rows.KIND}{kind}")
        (tmp_path / file.name).write_text(text)
    tables.write_tuned(tmp_path, 8, "b200x8")
    made = json.loads((tmp_path / "tuning_b200x8.json").read_text())
    assert tuning_tables.kinds_of(made) == [kind]
    assert made["gpu"]["upto_ranks"] == 8
    sources = {row["source"] for row in made["rows"]}
    assert sources == {"guess from hgx-h200", "gpu_run_large_h200x8.csv"}
