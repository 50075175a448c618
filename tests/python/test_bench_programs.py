"""Runs `python -m bench`: each subcommand's --help, wrong input, and short runs without a GPU."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench.__main__ import app  # noqa: E402
from bench.lib import rows, variants  # noqa: E402

NAMES = [command.callback.__name__.replace("_", "-") for command in app.registered_commands]


def bench(*words: str, limit_s: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *words],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def printed(*words: str, **env: str) -> str:
    done = bench(*words, **env)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def parsed(said: str) -> list[str]:
    """Returns the subcommands that printed commands call; their options must be known."""
    found = []
    for line in said.splitlines():
        words = line.split()
        if str(ROOT / "bench") in words:
            name, *options = words[words.index(str(ROOT / "bench")) + 1 :]
            get_command(app).commands[name].make_context(name, options)  # raises UsageError
            found.append(name)
    return found


def test_each_subcommand_has_a_body_and_help():
    listed = re.findall(r"^  ([a-z-]+) {2,}\S", printed("--help").partition("Commands:")[2], re.M)
    assert listed == NAMES and len(NAMES) >= 30
    bodies = {path.stem.replace("_", "-") for path in (ROOT / "bench" / "programs").glob("*.py")}
    without = {"--init--", "calls", "goals", "items", "models"}  # parts of other programs
    assert {"gpu-run" if name == "run" else name for name in NAMES} == bodies - without


@pytest.mark.parametrize("name", NAMES)
def test_help_needs_neither_torch_nor_a_gpu(name):
    assert f"Usage: python -m bench {name}" in printed(name, "--help")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep"], "No such command 'sweep'"),
        (["soak", "--ranks", "0"], "Invalid value for '--ranks'"),
        (["section", "all", "--csv", "no.csv"], "section: wanted table, unfitted, pinned_tree"),
        (["evidence", "speed", "--gpus", "2"], "step: wanted c_api, kills"),
        (["drop-in", "speed", "--drop-in", "no.so"], "step: wanted checks, tuned"),
        (["host-all-reduce", "--bytes", "many"], "wanted a size such as 8, 1K, 64M or 1G"),
        (["old-and-new", "--rounds", "1"], "wanted two folders of builds"),
        (["run", "--gpus", "2"], "--out: wanted a folder for the rows, found none"),
        (["renew"], "wanted a run's folder or --docs"),
        (["mpi-osu", "--programs", ".", "--only", "alltoallw"], "found alltoallw"),
        (["predictions", "--gpus", "3"], "--gpus: wanted 2, 4, 8, found 3"),
        (["overlap", "--collective", "reduce"], "wanted all_reduce, all_gather, found reduce"),
        (["ddp", "--wrap", "none"], "--wrap': wanted ddp, fsdp, found none"),
    ],
)
def test_wrong_input_is_named(words, said):
    done = bench(*words)
    assert done.returncode != 0 and said in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr


def test_c_calls_of_cpu_ranks(tmp_path):
    file = tmp_path / "calls.csv"
    said = printed("host-calls", "--turns", "3", "--csv", str(file))
    assert re.search(r"^all_reduce +8 B +median +\d+ ns", said, re.M)
    assert len(file.read_text().splitlines()) == 17  # 3 collectives of 5 sizes, flag, barrier


def test_all_reduces_of_the_host_say_where_they_were_measured(tmp_path):
    file = tmp_path / "rows.csv"
    words = ["--bytes", "64K", "--iters", "3", "--rounds", "2", "--libraries", "plait"]
    said = printed("host-all-reduce", *words, "--csv", str(file))
    assert "wrong elements: 0" in said
    (row,) = table(file)
    assert row["library"] == "plait" and float(row["seconds"]) > 0
    assert all(row[name] for name in ("machine", "commit", "date", "command", "formula"))


def test_killed_ranks_on_the_host(tmp_path):
    file = tmp_path / "kills.csv"
    said = json.loads(printed("kills", "--host", "--rounds", "2", "--csv", str(file)))
    assert said["rounds"] == 2 and said["faults"] == []
    assert [row["round"] for row in table(file)] == ["0", "1"]


def test_bits_of_the_host_stay(tmp_path):
    file = tmp_path / "accuracy.csv"
    words = ["--host", "--ranks", "3", "--most-mib", "0.25", "--csv", str(file)]
    said = json.loads(printed("accuracy", *words).splitlines()[-1])
    assert said["faults"] == [] and said["rows"] == len(table(file)) == 4


@pytest.mark.parametrize("program", ["evidence", "same-bits", "drop-in"])
def test_dry_runs_name_subcommands_that_exist(program, tmp_path):
    steps = ["all"]
    words = ["--gpus", "4", "--dry", "--out", str(tmp_path)]
    if program == "drop-in":
        steps = ["checks", "tuned", "training", "pairs", "budgets", "decode", "shard", "killed"]
        steps += ["cupy", "jax", "alone"]
        words += ["--drop-in", "libplait_nccl.so"]
    said = printed(program, *steps, *words)
    lines = [line for line in said.splitlines() if line.startswith("## ")]
    assert len(lines) >= 10
    assert len(parsed(said)) >= 5
    scripts = re.findall(rf"{ROOT}/(tests/gpu/\w+\.py)", said)
    assert all((ROOT / script).exists() for script in scripts)


def test_a_dry_run_ends_with_tables():
    said = printed("run", "--gpus", "8", "--dry")
    assert "### rows of the tuning table" in said and "### goals" in said
    assert parsed(said).count("section") == 5


STAND_IN = """import json, sys
kinds = sys.argv[sys.argv.index("-d") + 1].split(",")
row = {"size": 1024, "plait_graph_us": US, "plait_eager_us": 2 * US, "plait_wrong": 0}
print(json.dumps({"results": [row | {"type": kind} for kind in kinds]}))
"""


@pytest.mark.parametrize(("new_us", "status"), [(10.1, 0), (11.0, 1)])
def test_two_builds_in_turn(tmp_path, new_us, status):
    """Builds with a stand-in for `plait bench`."""
    for name, us in (("old", 10.0), ("new", new_us)):
        package = tmp_path / name / "plait"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(STAND_IN.replace("US", str(us)))
    file = tmp_path / "rows.csv"
    folders = [str(tmp_path / "old"), str(tmp_path / "new")]
    words = ["--collectives", "all_reduce", "--rounds", "2", "--csv", str(file)]
    done = bench("old-and-new", *folders, *words)
    assert done.returncode == status, done.stderr
    found = list(csv.DictReader(file.read_text().splitlines()[1:]))
    assert [row["type"] for row in found] == ["fp32", "bf16"]
    assert {float(row["graph_ratio"]) for row in found} == {new_us / 10}
    assert file.read_text().startswith("# command: ")


def test_pages_are_checked_and_tables_printed():
    printed("notes", "--check")
    assert re.fullmatch(r"E-\d{4}\n", printed("notes", "--next"))
    assert "| 8 | 48M |" in printed("memory-table")
    assert re.fullmatch(r"\d+ calls, \d+ of them left out\n", printed("engine-rows"))


def test_variants_take_turns():
    turns = [variant for _, variant in variants.in_turn("ab", 3)]
    assert turns == ["a", "b", "b", "a", "a", "b"]
    counts = iter(range(100))
    found = variants.taken({name: lambda: next(counts) for name in "ab"}, 2, warm_up=1)
    assert found == {"a": [3, 4], "b": [2, 5]}
    assert variants.medians(found) == {"a": 3.5, "b": 3.5}


def test_rows_reach_a_file_at_once(tmp_path):
    file = tmp_path / "rows.csv"
    written = rows.CsvFile(file, ("a", "b"), ["kind: none"])
    written.write({"a": 1.23456, "b": "x", "c": 0})
    assert file.read_text() == "# kind: none\na,b\n1.235,x\n"
    assert rows.read(file) == [{"a": "1.235", "b": "x"}] and rows.kind_of(file) == "none"
    rows.add(file, [{"a": 2, "b": 3}])
    assert rows.read(file)[1:] == [{"a": "2", "b": "3"}]


OSU = """#!/bin/sh
# MPI Allreduce latency; by plait half of the time.
us=8.00; [ -n "$BY_PLAIT" ] && us=4.00
for bytes in 8 16; do echo "$bytes $us Pass"; done
"""


def test_programs_of_osu_bare_and_with_the_drop_in(tmp_path):
    """Stand-ins for OSU's program, for mpirun and for `plait run`."""
    files = {"osu_allreduce": OSU, "mpirun": '#!/bin/sh\nshift 2; exec "$@"\n'}
    files["plait"] = '#!/bin/sh\nshift 3; BY_PLAIT=1 exec "$@"\n'
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    file = tmp_path / "rows.csv"
    words = ["--programs", str(tmp_path), "--only", "allreduce", "--mpirun-options", ""]
    words += ["--mpirun", str(tmp_path / "mpirun"), "--run", str(tmp_path / "plait")]
    said = printed("mpi-osu", *words, "--csv", str(file))
    assert "program=osu_allreduce" in said
    found = [(row["bytes"], row["bare"], row["plait"], row["ratio"]) for row in table(file)]
    assert found == [("8", "8.00", "4.00", "2.00"), ("16", "8.00", "4.00", "2.00")]


def test_a_first_start_is_held_to_the_shipped_table(tmp_path):
    program = tmp_path / "bench_gpu_first_start"
    point = {"collective": "all_reduce", "bytes": 1024, "found": "two_shot", "found_us": 5.0}
    point |= {"shipped": "one_shot", "shipped_us": 4.0, "nccl_us": 9.0}
    whole = {"first_start_s": 2.5, "at_most_5_percent_slower": 0.96, "nccl": 22809}
    rows = tmp_path / "rows.csv"

    def judged(*options: str, through_host: str = "", **change: float) -> tuple[int, str]:
        lines = [json.dumps(one) for one in (point, whole | change)]
        # The program goes through host memory if direct access is disabled, or as a case says.
        said = through_host or '"$([ "$NCCL_P2P_DISABLE" = 1 ] && echo true || echo false)"'
        lines[1] = lines[1].replace("{", '{"through_host": \'' + said + "', ", 1)
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
        program.chmod(0o700)
        done = bench("first-start", *options, "--build", str(tmp_path), "--csv", str(rows))
        return done.returncode, done.stdout + done.stderr

    status, said = judged(worst_against_nccl=1.02)
    assert status == 0 and "ratio=1.25" in said and "NO" not in said
    assert table(rows)[0]["found"] == "two_shot" and '"through_host": false' in said
    status, said = judged("--through-host", worst_against_nccl=1.02)
    assert status == 0 and '"through_host": true' in said
    status, said = judged("--through-host", through_host="false", worst_against_nccl=1.02)
    assert status == 1 and "found calls over links" in said
    status, said = judged(worst_against_nccl=1.04, first_start_s=3.5)
    assert status == 1 and said.count(": NO") == 2
    done = bench("first-start", "--build", str(tmp_path / "none"))
    assert done.returncode == 1 and "ninja -C" in done.stderr
