"""Tests bench run and its modules without a GPU: steps, tables, a section on CPU ranks,
wrong results, and the time of a run."""

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

import plait
from plait import _core
from plait.bench import tuner, tuning_tables
from plait.bench.engines import parted
from plait.run import has_kernels

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path.insert(0, str(ROOT))
from bench.lib import rows as result_rows  # noqa: E402
from bench.programs import calls as calls_module  # noqa: E402
from bench.programs import (  # noqa: E402
    goals,
    gpu_run,
    predictions,
    tables,
)
from bench.programs import items as items_module  # noqa: E402
from bench.programs import section as section_module  # noqa: E402
from bench.programs.calls import VariantTimes  # noqa: E402
from bench.programs.items import GIB, KIB, MIB  # noqa: E402


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
        large=False,
        dry=True,
        commit="abc",
    )


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_run_fits_into_its_time_with_the_most_important_first(tmp_path, gpus, capsys):
    run = gpu_run.GpuRun(given(tmp_path, gpus))
    run.all()
    said = re.findall(r"^## (\w+): (\d+) s of (\d+): ", capsys.readouterr().out, re.M)
    names = [name for name, _, _ in said]
    assert names[:4] == ["table", "symmetric", "pinned_tree", "pinned_ring"]
    assert set(names) >= {"links", "schedules", "slots"}
    budgets = sum(int(budget) + gpu_run.START_S for _, budget, _ in said)
    assert budgets <= gpu_run.BUDGET_S - gpu_run.TABLES_S + 30
    assert all(int(limit) >= int(budget) for _, budget, limit in said)


def test_files_of_a_run_are_no_more_than_eight(tmp_path):
    commands = [step.command for step in gpu_run.steps(given(tmp_path, 8))]
    named = {word for command in commands for word in command if word.endswith(".csv")}
    assert len(named) == len(commands) <= 7  # plus the log


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_run_asks_for_every_size_and_every_engine(ranks):
    table = items_module.items("table", ranks, 4 * GIB)
    sizes = [one.size for one in table if (one.collective, one.type) == ("all_reduce", "fp32")]
    assert sizes == [KIB << k for k in range(23)]
    swept = {one.variant for one in items_module.items("schedules", ranks, GIB)}
    assert swept >= {info.name for info in plait.engines()}
    assert swept >= {"fold", "phases", "ring"}


@pytest.mark.parametrize("section", sorted(goals.PINNED))
def test_pinned_nccl_is_timed_at_every_size_with_those_by_fours_first(section):
    sizes = [one.size for one in items_module.items(section, 8, 4 * GIB) if one.type == "fp32"]
    assert sorted(sizes) == [KIB << k for k in range(23)]
    assert sizes[:11] == [KIB << 2 * k for k in range(11)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_row_of_the_table_was_predicted(ranks):
    predicted = {
        (row["collective"], row["type"], int(row["bytes"]))
        for row in result_rows.read(predictions.files(ranks)[0])
        if row["section"] == "table" and float(row["predicted_graph_us"]) > 0
    }
    items = items_module.items("table", ranks, 4 * GIB)
    wanted = {(i.collective, i.type, i.request(ranks).message_bytes()) for i in items}
    assert predicted == wanted


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_pinned_nccl_and_symmetric_memory_were_predicted_at_every_size(ranks):
    rows = result_rows.read(predictions.files(ranks)[0])
    for section, variant in items_module.NCCL_VARIANTS.items():
        of_section = [row for row in rows if row["section"] == section and row["type"] == "fp32"]
        for wanted in ("plait", "nccl"):
            found = [int(r["bytes"]) for r in of_section if r["way"].startswith(wanted)]
            assert sorted(found) == [KIB << k for k in range(23)]
        assert {row["way"] for row in of_section if row["way"].startswith("nccl")} == {variant}
    symmetric = [row for row in rows if row["section"] == "symmetric"]
    assert len(symmetric) == 2 * 2 * len(items_module.SYMMETRIC_SIZES)
    assert all(float(row["predicted_graph_us"]) > 0 for row in symmetric)


@pytest.mark.parametrize("ranks", [4, 8])
def test_schedules_of_tiled_have_predictions_of_their_own(ranks):
    """Every tuning at 1 GiB, except tunings that equal another tuning by the reasoning of
    E-0203."""
    rows = [
        row
        for row in result_rows.read(predictions.files(ranks)[0])
        if (row["section"], row["collective"], row["type"]) == ("schedules", "all_reduce", "fp32")
        and int(row["bytes"]) == GIB
        and row["way"].startswith("plait tiled")
    ]
    times = {}
    for row in rows:
        times.setdefault(row["predicted_graph_us"], []).append(row["way"])
    alike = [variants for variants in times.values() if len(variants) > 1]
    assert len(rows) > 12
    assert alike == [["plait tiled:shift=1", "plait tiled:order=2,shift=1"]]


def test_comparing_predictions_finds_every_section(made_up):
    sections = {row["section"] for row, _, _, _ in predictions.compared(made_up, 8)}
    assert sections == {*items_module.SECTIONS, "symmetric"}


def test_a_prediction_is_what_the_simulator_says():
    item = items_module.RunItem("schedules", "all_reduce", "fp32", 64 * MIB, "tiled")
    ((name, graph_us, eager_us),) = predictions.times_us(item, 8)
    found = plait.what_would_run(predictions.machine(), item.request(8), "tiled")
    assert (name, graph_us) == ("tiled", pytest.approx(found.predicted_us, rel=0.05))
    assert eager_us > graph_us
    both = predictions.times_us(items_module.RunItem("table", "all_reduce", "fp32", GIB), 4)
    assert [(name, graph > 0, eager > 0) for name, graph, eager in both] == [
        ("tiled", False, True),
        ("scatter_ring:order=2,send_gb_per_s=350,shift=1", True, False),
    ]


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    predictions.make_up(folder, 8, "h200x8")
    return folder


def test_tables_of_made_up_rows(made_up):
    said = tables.report(made_up, 8)
    assert "within 10%" in said
    assert "all_reduce 1 GiB graph:" in said and "goal 362.0" in said
    assert "increment" in said
    assert "0 of them wrong" in said


def wrote(folder, name, rows):
    lines = [",".join(rows[0]), *(",".join(str(one) for one in row.values()) for row in rows)]
    (folder / name).write_text("\n".join(lines) + "\n")


def timed(size, variant, graph_us, eager_us, params="", collective="all_reduce", kind="fp32"):
    return {
        "collective": collective,
        "type": kind,
        "bytes": size,
        "way": variant,
        "params": params,
        "graph_us": graph_us,
        "eager_us": eager_us,
        "wrong": 0,
    }


def judged(folder, ranks, words):
    found = [line for line in goals.goals(folder, ranks) if words in line]
    assert len(found) == 1, found
    return found[0]


def test_a_goal_is_met_missed_or_not_measured(tmp_path):
    assert judged(tmp_path, 4, "1 GiB eager").endswith("goal 378.0 GB/s: not measured")
    us = 1.5 * GIB / 380e3  # at 380 GB/s
    rows = [timed(GIB, "plait copy_ring", 2 * us, us, "chosen")]
    wrote(tmp_path, "gpu_run_table_h200x4.csv", rows)
    assert judged(tmp_path, 4, "1 GiB eager") == (
        "all_reduce 1 GiB eager: 380.0 GB/s, goal 378.0: yes"
    )
    assert judged(tmp_path, 4, "1 GiB graph").endswith("190.0 GB/s, goal 363.0: NO")
    assert judged(tmp_path, 2, "64 MiB graph").endswith("not measured")


def test_a_call_that_goes_another_way_in_a_graph_has_a_row_for_either(tmp_path):
    rows = [
        timed(GIB, "plait tiled", 0, 4000, "chosen"),
        timed(GIB, "plait scatter_ring:order=2", 4500, 0, "chosen"),
        timed(GIB, "nccl", 4400, 4400),
    ]
    wrote(tmp_path, "gpu_run_table_h200x4.csv", rows)
    wrote(tmp_path, "gpu_run_schedules_h200x4.csv", [timed(GIB, "plait tiled", 4700, 4100)])
    table = tables.calls_of(tmp_path, "table")
    variants = table["all_reduce", "fp32", GIB]
    assert [variants.us(how) for how in (0, 1)] == [4500, 4000]
    assert [variants.ratio(how) for how in (0, 1)] == [4400 / 4500, 1.1]
    (line,) = [one for one in tables.chosen_table(table, 4, "") if "1 GiB" in one]
    assert "| scatter_ring:order=2 / tiled | 4500.00 | 4000.00 |" in line
    both = tables.of_both(table, tables.calls_of(tmp_path, "schedules"))
    assert both["all_reduce", "fp32", GIB].by["tiled"] == [
        4700,
        4000,
    ]  # the table's time, if it has one


def test_a_way_has_one_spelling():
    assert calls_module.spelled("tiled:shift=1,order=2") == "tiled:order=2,shift=1"
    assert calls_module.spelled("copy_ring") == "copy_ring"


class TwoWays(section_module.HostRunBackend):
    """A backend whose captured calls use another engine, and leave wrong elements."""

    def __init__(self, task):
        self.facts, self.on = {}, section_module.HostArrays()
        self.comm = SimpleNamespace(
            rank=0, ranks=1, exchange=lambda mine: [mine], barrier=lambda: None, check=lambda: None
        )

    def call(self, item, request, at):
        sent, output = at
        size = request.output_bytes(0)
        return lambda: ctypes.memmove(output, sent, size)

    def served_by(self, call):
        return "scatter_ring(order=2)", "tiled"

    def replayed(self, call):
        return contextlib.nullcontext(lambda: None)

    def times_us(self, call, size):
        return 4.0, 5.0


def test_wrong_elements_stand_in_the_row_of_the_way_that_left_them(monkeypatch):
    monkeypatch.setattr(section_module, "HostRunBackend", TwoWays)
    rank = section_module.SectionRank({"host": True, "seed": 1, "budget_s": 1})
    eagerly, captured = rank.rows(items_module.RunItem("table", "all_reduce", "fp32", 4 * KIB))
    assert (eagerly["way"], eagerly["eager_us"], eagerly["graph_us"]) == ("plait tiled", 5, 0)
    assert (captured["way"], captured["eager_us"]) == ("plait scatter_ring:order=2", 0)
    assert captured["graph_us"] == 4
    assert (eagerly["wrong"], captured["wrong"]) == (0, KIB)


def test_the_share_of_the_host_is_judged_by_the_schedules(tmp_path):
    us = 1.75 * GIB / 377e3
    variant = "plait tiled:host_permille=45"
    wrote(tmp_path, "gpu_run_schedules_h200x8.csv", [timed(GIB, variant, us, us)])
    wrote(tmp_path, "gpu_run_slots_h200x8.csv", [timed(GIB, "plait scatter_ring", us / 2, us / 2)])
    assert judged(tmp_path, 8, "by host_*").endswith("377.0 GB/s, goal 376.0: yes")


@pytest.mark.parametrize(("slow_at", "met"), [(None, "yes"), (64 * KIB, "NO")])
def test_nccl_is_held_to_at_every_size_and_in_the_mean(tmp_path, slow_at, met):
    rows = []
    for k in range(23):
        size = KIB << k
        rows.append(timed(size, "plait one_shot", 10, 10, "chosen"))
        rows.append(timed(size, "nccl", 9 if size == slow_at else 16, 14))
    wrote(tmp_path, "gpu_run_table_h200x8.csv", rows)
    assert judged(tmp_path, 8, "all_reduce graph: NCCL").endswith(met)
    assert ("behind at 64 KiB 0.90" in judged(tmp_path, 8, "all_reduce graph: NCCL")) == (
        met == "NO"
    )
    assert judged(tmp_path, 8, "all_reduce graph: geometric").endswith("goal 1.5: yes")
    assert judged(tmp_path, 8, "all_reduce eager: geometric mean 1.40, goal 1.5").endswith("NO")
    wrote(tmp_path, "gpu_run_table_h200x8.csv", rows[:-2])
    cut_off = judged(tmp_path, 8, "all_reduce eager: NCCL")
    assert cut_off.endswith("not measured at 4 GiB: not measured")


def test_pinned_nccl_takes_twice_as_long_at_each_size(tmp_path):
    rows = []
    for k in range(23):
        rows.append(timed(KIB << k, "plait one_shot", 10, 10, "chosen"))
        rows.append(timed(KIB << k, "nccl tree 8 channels", 21, 19))
    wrote(tmp_path, "gpu_run_pinned_tree_h200x8.csv", rows)
    assert judged(tmp_path, 8, "its tree and 8 channels, graph").endswith("23 sizes: yes")
    assert judged(tmp_path, 8, "its tree and 8 channels, eager").endswith("NO")
    assert judged(tmp_path, 8, "its ring and 1 channel, graph").endswith("not measured")


def test_symmetric_memory_is_held_to_at_every_size_that_pytorch_takes(tmp_path):
    rows = [
        {"type": kind, "bytes": KIB << k, "ratio": 0.0 if k < 2 else 1.2, "wrong": 0}
        for kind in items_module.SYMMETRIC_TYPES.values()
        for k in range(17)
    ]
    rows[-1]["ratio"] = 0.9
    wrote(tmp_path, "gpu_symmetric_h200x8.csv", rows)
    said = judged(tmp_path, 8, "float32")
    assert "(refused: 1 KiB, 2 KiB)" in said and said.endswith("15 sizes: yes")
    assert "behind at 64 MiB 0.90: NO" in judged(tmp_path, 8, "bfloat16")


def test_products_are_slowed_by_a_quarter_of_what_nccl_costs_them(tmp_path):
    def rows(percent):
        return [
            {"by": by, "sm_budget": budget, "collective": "all_reduce", "slow_down_percent": slow}
            for by, budget, slow in (
                ("nccl", "", 20.0),
                ("plait", "", 30.0),
                ("plait", 16, percent),
            )
        ]

    assert judged(tmp_path, 8, "products").endswith("not measured")
    wrote(tmp_path, "gpu_overlap_h200x8.csv", rows(4.0))
    assert judged(tmp_path, 8, "4.0 % by plait with a budget of 16").endswith("NCCL: yes")
    wrote(tmp_path, "gpu_overlap_h200x8.csv", rows(6.0))
    assert judged(tmp_path, 8, "products").endswith("NCCL: NO")


def test_symmetric_memory_is_timed_at_every_size_of_its_goal(monkeypatch):
    for name in ("torch", "torch.distributed", "torch.distributed._symmetric_memory"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    symmetric = importlib.import_module("bench.programs.symmetric")
    try:
        assert symmetric.sizes(64 * MIB) == items_module.SYMMETRIC_SIZES

        def refuses():
            raise RuntimeError("input size must be at least 16-byte aligned\nat ...")

        assert symmetric.why_refused(refuses) == "input size must be at least 16-byte aligned"
        assert symmetric.why_refused(lambda: None) == ""
        assert symmetric.fastest_over([0.0, 8.0], 4.0) == 2.0
        assert symmetric.fastest_over([0.0, 0.0], 4.0) == 0.0
    finally:
        for name in ("bench.programs.symmetric", "bench.lib.torch_jobs"):
            del sys.modules[name]


# --- files that a run needs on the machine with GPUs.


@pytest.fixture
def build(tmp_path):
    """Makes a build folder for bench stage: the installed libraries, and programs."""
    package, folder = Path(plait.__file__).parent, tmp_path / "built"
    (folder / "shims" / "nccl").mkdir(parents=True)
    for name in ("libplait.so.0", "libplait_kernels.so"):
        shutil.copy(package / name, folder)
    shutil.copy(Path(plait._core.__file__), folder)
    for name in ("nccl", "audit", "mpi", "mark"):
        shutil.copy(package / f"libplait_{name}.so", folder / "shims")
    shutil.copy(package / "nccl" / "libnccl.so.2", folder / "shims" / "nccl")
    for name in (
        "bench_links",
        "bench_gpu_nodes",
        "bench_gpu_first_start",
        "test_gpu",
        "test_gpu_c_api",
    ):
        shutil.copy(package / "libplait_audit.so", folder / name)
    return folder


def staged(build, run):
    script = [sys.executable, str(BENCH), "stage", str(build), "--run", str(run)]
    return subprocess.run(script, capture_output=True, text=True, timeout=60)


def test_what_is_staged_has_every_door_and_program(build, tmp_path):
    run = tmp_path / "run"
    job = staged(build, run)
    assert job.returncode == 0, job.stderr
    for name in ("bench_gpu_nodes", "test_gpu_c_api", "libplait_kernels.so", "commit"):
        assert (run / name).exists()
    package = run / "plait"
    assert (package / "nccl" / "libnccl.so.2").exists()
    program = (
        "from plait import run; nccl = str(run.drop_in_folder() / 'libplait_nccl.so');"
        "print(run.plan(['true'], 'mpi').env['LD_PRELOAD']);"
        "print(run.plan(['true'], 'preload', nccl).env.get('LD_PRELOAD'));"
        "print(run.plan(['true'], 'audit', nccl).env.get('LD_AUDIT'))"
    )
    env = {**os.environ, "PYTHONPATH": str(run)}
    words = [sys.executable, "-c", program]
    job = subprocess.run(words, capture_output=True, text=True, env=env, timeout=60)
    assert job.returncode == 0, job.stderr
    shims = ["mpi", "nccl", "audit"]
    if not has_kernels(package / "libplait_nccl.so"):
        shims = shims[:1]  # a build without nvcc serves no call of NCCL
    found = job.stdout.splitlines()[: len(shims)]
    assert found == [str(package / f"libplait_{shim}.so") for shim in shims]


def test_a_build_that_lacks_a_drop_in_is_not_staged(build, tmp_path):
    (build / "shims" / "libplait_mpi.so").unlink()
    (build / "test_gpu_c_api").unlink()
    job = staged(build, tmp_path / "run")
    assert job.returncode == 1
    assert "shims/libplait_mpi.so test_gpu_c_api" in job.stderr
    assert not (tmp_path / "run").exists()


def test_choices_replace_the_rows_of_their_ranks_alone(made_up):
    old = json.loads((tables.TUNING / "hgx-h200.json").read_text())
    made = tables.choices(tables.calls_of(made_up, "table"), 8)
    new = tables.with_choices(old, made, "x.csv")
    listed = [row for row in new["rows"] if "when" not in row]
    assert 8 in {row["upto_ranks"] for row in listed}
    measured = {one.collective for one in made}
    kept = [
        row
        for row in old["rows"]
        if "when" in row or row["upto_ranks"] != 8 or row["collective"] not in measured
    ]
    assert [row for row in new["rows"] if row in kept] == kept
    for name in ("all_reduce", "all_gather"):
        ranks = [row["upto_ranks"] for row in listed if row["collective"] == name]
        assert ranks == sorted(ranks)
    assert tables.with_choices(new, made, "x.csv") == new


def calls_at(sizes, us_by_variant, chosen="tiled"):
    """Returns all_reduces of fp32 that took as long in graphs as eagerly."""
    both = {variant: [us, us] for variant, us in us_by_variant.items()}
    return {
        ("all_reduce", "fp32", size): VariantTimes(dict(both), [chosen, chosen]) for size in sizes
    }


def test_a_way_of_an_engine_becomes_a_row_unless_its_parameter_was_removed():
    shifted = calls_at(
        [16 * MIB], {"tiled": 90, "tiled:shift=1,order=2": 70, "two_shot": 80, "nccl": 75}
    )
    pieces = calls_at(
        [64 * MIB],
        {"tiled": 400, "tiled:piece_kib=4": 300, "tiled:fold=1": 200, "two_shot": 395, "nccl": 310},
    )
    plain = calls_at([GIB], {"tiled": 6000, "tiled:piece_kib=4": 5990, "nccl": 5000})
    made = [one.entry("x.csv") for one in tables.choices(shifted | pieces | plain, 8)]
    common = {"collective": "all_reduce", "from_ranks": 2, "upto_ranks": 8, "source": "x.csv"}
    tiled = common | {"engine": "tiled"}
    assert made == [
        tiled | {"upto_bytes": "32M", "params": {"order": 2, "shift": 1}, "ahead_of_nccl": True},
        tiled | {"upto_bytes": "64M", "params": {"piece_kib": 4}, "ahead_of_nccl": True},
        tiled | {"ahead_of_nccl": False},
    ]


def test_a_row_that_the_next_one_says_too_is_left_out():
    """two_shot has no memory for flag packets of 64 MiB, hence the next row serves int32."""
    small = calls_at([64 * MIB], {"tiled": 400, "two_shot": 350, "nccl": 300})
    large = calls_at([GIB], {"tiled": 6000, "nccl": 5000})
    made = [(one.upto, one.variant) for one in tables.choices(small | large, 8)]
    assert made == [(256 * MIB, "two_shot"), (None, "tiled")]


def test_copy_engines_have_a_row_behind_them_for_ranks_of_one_process():
    calls = {
        ("all_gather", "fp32", size): VariantTimes(
            {"copy_ring": [us, us], "tiled": [us + 1, us + 1], "nccl": [us, us]},
            ["tiled", "tiled"],
        )
        for size, us in ((256 * MIB, 700.0), (GIB, 2400.0))
    }
    made = [(one.upto, one.variant, one.beats_nccl) for one in tables.choices(calls, 4)]
    assert made == [(None, "tiled", False)]  # within 2 %: today's choice stays
    for variants in calls.values():
        variants.by["tiled"] = [5000.0, 5000.0]
    made = [(one.upto, one.variant, one.beats_nccl) for one in tables.choices(calls, 4)]
    assert made == [(None, "copy_ring", True), (None, "tiled", False)]


def test_what_usual_memory_cannot_run_becomes_no_row(made_up, tmp_path):
    fastest = calls_at(
        [GIB], {"tiled": 6000, "copy_rotation": 3000, "scatter_ring": 6100, "nccl": 1}
    )
    assert [one.variant for one in tables.choices(fastest, 8)] == ["tiled"]
    fastest = calls_at([GIB], {"tiled": 6000, "scatter_ring": 3100, "nccl": 1})
    assert [one.variant for one in tables.choices(fastest, 8)] == ["scatter_ring"]
    # Rows with larger slots are a separate section, which makes no row of a tuning table.
    assert {one.section for one in items_module.items("slots", 8, GIB)} == {"slots"}
    rows = result_rows.read(made_up / "gpu_run_slots_h200x8.csv")
    assert rows
    for name in ("table", "schedules"):
        shutil.copy(made_up / f"gpu_run_{name}_h200x8.csv", tmp_path)
    without = tables.report(tmp_path, 8).partition("### rows of the tuning table\n")[2]
    said = tables.report(made_up, 8).partition("### rows of the tuning table\n")[2]
    row = re.compile(r'^{"collective".*$', re.M)
    assert row.findall(said) == row.findall(without) != []


def test_rows_of_other_gpus_are_not_written(made_up, tmp_path, monkeypatch):
    copies = Path(shutil.copytree(tables.TUNING, tmp_path / "tuning"))
    monkeypatch.setattr(tables, "TUNING", copies)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "bench" / "results").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"wanted rows .* of one table, .*NVIDIA H200.* on none"):
        tables.write(made_up, 8)
    assert not list((tmp_path / "bench" / "results").iterdir())
    same = tmp_path / "same"
    shutil.copytree(made_up, same)
    for file in same.glob("gpu_run_*.csv"):
        kind = tuning_tables.kinds_of(json.loads((copies / "hgx-h200.json").read_text()))[0]
        text = file.read_text().replace(f"{result_rows.KIND}none", f"{result_rows.KIND}{kind}")
        file.write_text(text)
    before = {file.name: json.loads(file.read_text())["rows"] for file in copies.iterdir()}
    tables.write(same, 8)
    after = {file.name: json.loads(file.read_text())["rows"] for file in copies.iterdir()}
    assert after["hgx-h100.json"] == before["hgx-h100.json"]
    made = [row for row in after["hgx-h200.json"] if row not in before["hgx-h200.json"]]
    assert made and all("gpu_run_table_h200x8.csv" in row["source"] for row in made)
    assert [row for row in after["hgx-h200.json"] if "when" in row] == [
        row for row in before["hgx-h200.json"] if "when" in row
    ]
    _core.check_tuning((copies / "hgx-h200.json").read_text())
    assert (tmp_path / "bench" / "results" / "gpu_run_table_h200x8.csv").exists()
    (same / "gpu_run_table_h100x8.csv").write_text("# kind: NVIDIA H100 80GB HBM3, 132\na\n1\n")
    with pytest.raises(SystemExit, match=r"gpu_run_table_h100x8.csv: on NVIDIA H100"):
        tables.write(same, 8)


def test_a_choice_ends_where_nccl_may_be_ahead():
    assert tables.between(MIB, 4 * MIB, (True, False)) == MIB
    assert tables.between(MIB, 4 * MIB, (False, True)) == 4 * MIB - KIB
    assert tables.between(MIB, 4 * MIB, (True, True)) == 2 * MIB


def test_a_run_on_another_number_of_gpus_is_not_taken_for_this_one(made_up):
    assert tables.of_others(made_up, 8) == []
    assert "gpu_run_table_h200x8.csv: on 8" in tables.of_others(made_up, 4)


def test_one_section_on_cpu_ranks(tmp_path):
    csv = tmp_path / "rows.csv"
    program = [sys.executable, str(BENCH), "section", "pinned_tree", "--host"]
    trials = ["--ranks", "2", "--most-mib", "1", "--budget-s", "20", "--csv", str(csv)]
    job = subprocess.run([*program, *trials], capture_output=True, text=True, timeout=60)
    assert job.returncode == 0, job.stderr
    rows = result_rows.read(csv)
    assert len(rows) >= 8
    assert {row["wrong"] for row in rows} == {"0"}


def test_trials_of_a_file(tmp_path):
    """Errors of a file show before ranks start."""
    trials = "# why\n\nall_gather fp32 64M,1G chosen tiled:order=2,shift=1  # two ways\n"
    found = items_module.items(items_module.TRIALS, 4, 0, trials)
    assert [(one.size, one.requested()) for one in found] == [
        (size, variant) for size in (64 * MIB, GIB) for variant in ("", "tiled:order=2,shift=1")
    ]
    file, csv = tmp_path / "trials", tmp_path / "rows.csv"
    program = [sys.executable, str(BENCH), "section", "--trials", str(file), "--host"]
    program += ["--ranks", "2", "--csv", str(csv)]
    file.write_text("all_reduce fp32 4K,64K chosen ring direct\nbroadcast bf16 8K chosen\n")
    job = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert job.returncode == 0, job.stderr
    variants = [(row["collective"], row["way"], row["wrong"]) for row in result_rows.read(csv)]
    one = [("all_reduce", f"plait {variant}", "0") for variant in ("lanes", "ring", "direct")]
    assert variants == [*one, *one, ("broadcast", "plait lanes", "0")]
    for trials, said in (
        ("all_reduce fp32 4K\n", "line 1: wanted a collective, a type, sizes and variants"),
        ("\nall_reduce fp32 4K tiles\n", "line 2: wanted a variant among "),
    ):
        file.write_text(trials)
        job = subprocess.run(program, capture_output=True, text=True, timeout=60)
        assert job.returncode != 0 and said in job.stderr


def test_a_call_that_does_nothing_is_found_wrong():
    task = {"host": True, "section": "table", "seed": 1, "budget_s": 1.0}
    rank = section_module.SectionRank(task)
    request = plait.Request("all_reduce", 1000, "fp32", ranks=1)
    case = section_module.ExpectedCall(rank.on, request, 7)
    _, slab = rank.arrays(case)
    for exact in (True, False):
        assert rank.wrong(case, slab, lambda: None, exact) == 1000


def variant_s(request, variant):
    """Returns the seconds of a call; 0 if the variant refuses the call."""
    machine = predictions.machine()
    try:
        plan = plait._core.engine_plan(machine, request, *parted(variant))
    except plait.UnsupportedError:
        return 0.0
    return plait._core.predicted_ns(plan, machine) / 1e9


def request_s(request, ranks):
    """Returns the seconds of plait tune by simulation: 8 launches of 2 calls by each engine and
    NCCL, all as slow as the slowest, then the check of a result by CPUs at 1 GB/s."""
    engines = tuner.candidates(request, "alone", "tiled", False)
    slowest_s = max(variant_s(request, variant) for variant, _ in engines)
    return 8 * 2 * slowest_s * (len(engines) + 1) + 3 * request.message_bytes() / 1e9


@pytest.mark.parametrize("ranks", [4, 8])
def test_tuning_is_done_in_three_minutes(ranks):
    """The sum of the budget, the start and end of two jobs, and the last request of each job. The
    last request may begin just before the time is up."""
    wanted = tuner.requests(ranks, list(tuner.COLLECTIVES), "alone")
    longest = [one for one in wanted if one.message_bytes() > 900 * MIB and one.type == "fp32"]
    assert {one.collective for one in longest} >= {"all_reduce", "reduce_scatter"}
    last_s = max(request_s(one, ranks) for one in longest)
    assert 1 < last_s < 20
    assert tuner.BUDGET_S + 2 * (gpu_run.START_S + last_s) <= 180
