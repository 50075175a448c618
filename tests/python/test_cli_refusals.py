"""Tests the refusals of the plait command: wrong variables, options without an effect, and words of
errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_stand_ins import plait_command

import plait
from plait import _core, run

READ_A_TABLE = {
    "plan": ["plan", "all_reduce", "-T", "hgx-h200"],
    "simulate": ["simulate", "all_reduce", "-T", "mist"],
    "report": ["report", "-T", "mist", "--json"],
    "bench": ["bench", "all_reduce"],
    "run": ["run", "--", "echo", "hi"],
    "profile": ["profile", "--", "echo", "hi"],
    "launch": ["launch", "--", "echo", "hi"],
}


@pytest.mark.parametrize("command", READ_A_TABLE)
def test_a_tuning_table_that_is_not_there_is_refused(command, monkeypatch, tmp_path):
    words, file = READ_A_TABLE[command], tmp_path / "table.json"
    monkeypatch.setenv("PLAIT_TUNING", str(file))
    done = plait_command(*words)
    wanted, advice = "plait: PLAIT_TUNING: wanted a tuning table", "unset it or run plait tune\n"
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr == f"{wanted}, found no file {file}; {advice}"
    file.write_text("{}")
    done = plait_command(*words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith(f"{wanted}, found {file}: ") and done.stderr.endswith(advice)


def test_a_tuning_table_that_communicators_refuse_is_refused(monkeypatch, tmp_path):
    file, plan = tmp_path / "table.json", READ_A_TABLE["plan"]
    monkeypatch.setenv("PLAIT_TUNING", str(file))
    os.mkfifo(file)
    done = plait_command(*plan)
    assert (done.returncode, done.stdout) == (2, "") and "found no regular file; " in done.stderr
    file.unlink()
    file.write_text((Path(__file__).parents[2] / "tuning" / "hgx-h200.json").read_text())
    file.chmod(0o666)
    done = plait_command(*plan)
    assert (done.returncode, done.stdout) == (2, "") and "that everybody may write" in done.stderr
    file.chmod(0o600)
    assert plait_command(*plan).returncode == 0


@pytest.mark.parametrize("damage", ["no table", "[]", '{"schema": "plait.tuning/3"}'])
def test_plan_goes_without_a_damaged_table_of_the_cache_folder(damage, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PLAIT_TUNING", raising=False)
    machine = plait.load_topology("hgx-b200")
    own = Path(_core.tuning_file(_core.tuning_machine(machine, 8), 8))
    request = plait.Request("all_reduce", 1 << 20, "fp32", ranks=8)
    beside = Path(_core.tuning_file_beside_nccl(machine, request, "2.28.9"))
    own.parent.mkdir()
    wanted = plait_command("plan", "all_reduce", "-T", "hgx-b200", "-b", "4M")
    for file in (own, beside):
        file.write_text(damage)
        done = plait_command("plan", "all_reduce", "-T", "hgx-b200", "-b", "4M")
        assert (done.returncode, done.stdout) == (0, wanted.stdout), done.stderr
        assert done.stderr.count("\n") == 1 and f"tuning table {file}: " in done.stderr
        assert done.stderr.endswith("; calls go without the table\n")
        file.unlink()
    beside.with_name(beside.name.replace("2.28.9", "2.28.9-kept")).write_text(damage)
    done = plait_command("plan", "all_reduce", "-T", "hgx-b200", "-b", "4M")
    assert (done.returncode, done.stdout, done.stderr) == (0, wanted.stdout, "")


def test_commands_that_read_no_tuning_table_run_without_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_TUNING", str(tmp_path))
    done = plait_command(*READ_A_TABLE["launch"])
    assert done.returncode == 2 and f"found {tmp_path}: Is a directory; " in done.stderr, done
    assert plait_command("topo", "-T", "mist").returncode == 0
    assert plait_command("tune", "-g", "1").stderr.startswith("plait: --ranks: ")  # writes the file
    monkeypatch.setenv("PLAIT_TUNING", "none")
    assert plait_command(*READ_A_TABLE["launch"]).stdout == "hi\nhi\n"


@pytest.mark.parametrize(
    ("command", "size"),
    [("plan", "--bytes"), ("simulate", "--bytes"), ("bench", "--min-bytes")],
)
def test_a_plans_file_goes_without_options_of_requests(command, size, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(plait_command("plan", "all_reduce", "-T", "mist", "-b", "4K", "--json").stdout)
    done = plait_command(command, str(file), "-b", "1M", "-d", "bf16")
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr == f"plait: a plan's file goes without {size}, --type\n"
    assert plait_command(command, str(file), "-T", "mist").returncode == 0


PRINTING = {
    "a list": ["plait.cli", "topo", "--list"],
    "a long text": ["plait.cli", "plan", "all_reduce", "-T", "mist", "--json"],
    "help": ["plait.cli", "--help"],
    "the version": ["plait.cli", "--version"],
    "a folder": ["plait", "--libdir"],
}


@pytest.mark.parametrize("name", PRINTING)
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", "| true"])
def test_a_lost_standard_output_is_one_line(name, redirection):
    line = {
        ">/dev/full": "plait: cannot write standard output: No space left on device\n",
        ">&-": "plait: standard output is closed; give the command a file, or /dev/null\n",
        "| true": "",
    }[redirection]
    wait = "sleep 1; " if redirection == "| true" else ""  # the reader has ended by then
    script = f'( {wait}exec "$@" ) {redirection}; exit "${{PIPESTATUS[0]}}"'
    words = ["bash", "-c", script, "bash", sys.executable, "-m", *PRINTING[name]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


def test_folders_for_builds_go_without_other_words():
    words = [sys.executable, "-m", "plait", "--libdir", "extra"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("plait: "), done
    assert done.stderr.endswith(" alone, found extra too\n")


def test_a_command_runs_without_standard_error():
    script = 'exec "$@" 2>&-'
    words = ["bash", "-c", script, "bash", sys.executable, "-m", "plait.cli"]
    done = subprocess.run(
        [*words, "simulate", "all_reduce", "-T", "mist", "-b", "1K", "-e", "4K"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "predicted:" in done.stdout, done


def test_verify_checks_a_plans_file_for_the_machine(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(plait_command("plan", "all_reduce", "-T", "mist", "-b", "4K", "--json").stdout)
    done = plait_command("verify", str(file), "-T", "mist")
    assert done.returncode == 0 and ", proved\n" in done.stdout, done
    done = plait_command("verify", str(file), "-T", "daisy")
    assert (done.returncode, done.stdout) == (2, ""), done
    assert (
        "--topology daisy: the plan is proved for mist, but not for this machine: " in done.stderr
    )
    assert "is no link of topology daisy; plan again for this machine\n" in done.stderr
    done = plait_command("verify", str(file), "-T", "nope")
    assert done.returncode != 0 and "nope" in done.stderr, done


def test_without_takes_several_links_in_one_value():
    apart = plait_command("topo", "-T", "mist", "--without", "nvlink:0-1", "--without", "host:0")
    joined = plait_command("topo", "-T", "mist", "--without", "nvlink:0-1,host:0")
    assert joined.returncode == 0 and joined.stdout == apart.stdout, joined
    assert joined.stdout != plait_command("topo", "-T", "mist").stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [("PLAIT_WITHOUT", "zz"), ("PLAIT_TOPOLOGY", "nope"), ("PLAIT_ALGO", "ring:foo=1")],
)
def test_an_error_names_the_variable(name, text, monkeypatch):
    monkeypatch.setenv("PLAIT_TOPOLOGY", "mist")
    monkeypatch.setenv(name, text)
    done = plait_command("plan", "all_reduce")
    assert done.returncode == 2 and done.stderr.startswith(f"plait: {name}: "), done


def test_sizes_from_zero_on_have_one_empty_row_or_are_refused():
    done = plait_command("bench", "all_reduce", "-b", "0", "-e", "8", "--json", "-n", "1")
    assert done.returncode == 0, done
    assert [row["size"] for row in json.loads(done.stdout)["results"]] == [0, 4, 8]
    done = plait_command("simulate", "all_reduce", "-T", "mist", "-b", "0", "-e", "8")
    said = "plait: --bytes: wanted a size above 0 beside -e, found 0\n"
    assert (done.returncode, done.stderr) == (2, said), done


def test_bench_checks_results_or_does_not():
    done = plait_command("bench", "all_reduce", "-c", "5")
    assert (done.returncode, done.stderr) == (2, "plait: --check: wanted 0 or 1, found 5\n"), done


@pytest.mark.parametrize("number", [9, 15])
def test_profile_ends_with_the_status_of_a_shell(number):
    done = plait_command("profile", "--", "sh", "-c", f"kill -{number} $$")
    assert done.returncode == 128 + number, done


def test_experiments_of_papers_have_no_picture_and_no_trace(tmp_path):
    picture, trace = tmp_path / "a.png", tmp_path / "a.json"
    words = ("simulate", "--paper", "micro")
    done = plait_command(*words, "--plot", str(picture), "--trace", str(trace))
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr == "plait: --paper goes without --trace, --plot\n"
    done = plait_command(*words, "-e", "1K", "all_reduce")
    assert done.stderr == "plait: --paper goes without all_reduce, --end\n", done


@pytest.mark.parametrize("command", [["run"], ["run", "--bitwise"], ["profile"]])
def test_a_named_drop_in_that_is_not_there_is_refused(command, tmp_path):
    for file in (tmp_path / "no.so", tmp_path):
        done = plait_command(*command, "--drop-in", str(file), "--", "echo", "hi")
        assert (done.returncode, done.stdout) == (2, ""), done
        assert done.stderr == f"plait: --drop-in: wanted a library, found no file {file}\n"


def test_a_build_without_a_drop_in_runs_the_program_without_it(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "drop_in_folder", lambda: tmp_path)
    chosen = run.plan(["true"], "preload")
    assert chosen.via == "" and chosen.said.count("running without it") == 1
