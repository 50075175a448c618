"""Runs every numbered example and checks its output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import plait

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(name: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ten_lines_on_four_ranks():
    words = [sys.executable, "-m", "plait", "launch", "-n", "4", "--", sys.executable]
    done = subprocess.run(
        [*words, str(EXAMPLES / "01_ten_lines.py")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "4 ranks: 6 in all, 1.5 on average" in done.stdout


def test_machines_of_ones_own_leave_the_current_folder_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run("04_machine.py").count(f"wrote {tmp_path}/temporary/plait-") == 2
    assert not list((tmp_path / "here").iterdir())


def test_machines_of_ones_own(tmp_path):
    said = run("04_machine.py", str(tmp_path))
    assert said.count("proved") == 2 and "2 nodes, 8 GPUs: " in said
    assert len(plait.load_topology(str(tmp_path / "box2.json")).rank_devices()) == 8


def test_the_page_of_examples_names_those_there_are():
    page = (ROOT / "docs" / "examples.md").read_text()
    there = {file.name for file in EXAMPLES.glob("0*.*")}
    assert there == set(re.findall(r"^\| `examples/(0\S+)`", page, re.M))


def test_why_results_differ():
    said = run("07_same_bits.py")
    page = (ROOT / "docs" / "same_bits.md").read_text()
    shown = re.search(r"```\n(one sum.*?)```", page, re.S)[1]
    assert shown in said, said
    bits = dict(re.findall(r"^  (\S+) +([0-9a-f]{8})  ", said, re.M))
    in_rank_order = {bits[name] for name in ("direct,pieces=1", "direct,pieces=4", "one_shot")}
    assert len(in_rank_order) == 1 and len(set(bits.values())) == 4


def test_a_layer_has_the_same_bits_over_some_numbers_of_ranks():
    said = run("09_tp_sizes.py")
    lines = dict(re.findall(r"^  (\w+) .*  (the same bits|other bits)$", said, re.M))
    assert lines == {
        "rank_order": "other bits",
        "tree": "the same bits",
        "tree_rounded": "the same bits",
    }


def test_training_gives_the_same_weights_but_by_a_ring():
    said = run("08_train_same_bits.py")
    bits = dict(re.findall(r"^(\w[\w ]*?) {2,}([0-9a-f]{12})$", said, re.M))
    assert bits["as plait chooses"] == bits["direct"] == bits["one_shot"] != bits["ring"]
    assert "forbids its sum order" in said and said.endswith("the same weights\n")
