"""Tests the plait command: output, JSON, exit statuses, error lines."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_stand_ins import plait_command

import plait
from plait import outputs


def test_version():
    assert plait_command("--version").stdout.strip() == plait.__version__


@pytest.mark.parametrize("command", [[], ["plan"], ["run"], ["launch"]])
def test_h_is_help(command):
    done = plait_command(*command, "-h")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout == plait_command(*command, "--help").stdout
    assert plait_command("launch", "-n", "1", "echo", "-h").stdout == "-h\n"  # the program's


def test_topo_json_is_a_topology():
    done = plait_command("topo", "-T", "hgx-h200", "--json")
    assert done.returncode == 0
    assert plait.Topology.from_json(done.stdout) == plait.load_topology("hgx-h200")


def test_topo_names_paths():
    done = plait_command("topo", "-T", "mist")
    assert "nvlink:0>1" in done.stdout and "host:0>numa0>1" in done.stdout


def test_topo_masks():
    done = plait_command("topo", "-T", "mist", "--without", "nvlink:0-1")
    assert done.returncode == 0 and "nvlink:0>1" not in done.stdout


def pair(folder: Path, **parameters: float) -> str:
    """Writes a topology of two GPUs with the given parameters."""
    ends = [("gpu0", "gpu1"), ("gpu1", "gpu0")]
    said = {
        "schema": "plait.topology/1",
        "name": "pair",
        "devices": [{"name": "gpu0"}, {"name": "gpu1"}],
        "links": [{"kind": "nvlink", "src": a, "dst": b, "gb_per_s": 50} for a, b in ends],
        "parameters": {key: {"value": v, "source": "a test"} for key, v in parameters.items()},
    }
    (folder / "pair.json").write_text(json.dumps(said))
    return str(folder / "pair.json")


def test_a_misspelt_parameter_is_refused_with_the_names_there_are(tmp_path):
    done = plait_command("simulate", "all_reduce", "-T", pair(tmp_path, copy_lanch_ns=1))
    assert done.returncode == 2 and done.stderr.count("malformed input") == 1
    assert "parameters.copy_lanch_ns: wanted one of copy_launch_ns, " in done.stderr
    for name, _ in plait.topology_parameters():
        assert f" {name}," in done.stderr


def test_defaults_of_parameters_are_shown_where_a_file_states_none(tmp_path):
    done = plait_command(
        "topo", "-T", pair(tmp_path, copy_launch_ns=1234), "--parameters", "--json"
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {name for name, _ in plait.topology_parameters()}
    assert (rows["copy_launch_ns"]["value"], rows["copy_launch_ns"]["source"]) == (1234, "a test")
    assert rows["signal_ns"] == {
        "name": "signal_ns",
        "value": 1000,
        "source": "default: not stated",
    }


def test_a_new_machine_is_one_that_plans_run_on(tmp_path):
    file = tmp_path / "box.json"
    done = plait_command("topo", "--new", str(file))
    assert done.returncode == 0 and f"-T {file}" in done.stdout
    box = plait.load_topology(str(file))
    assert box.name == "box" and len(box.rank_devices()) == 4
    request = plait.Request("all_reduce", 1 << 20, "fp32", ranks=4)
    assert plait.verify(plait.ranked(box, request)[0][0].plan).proved
    said = json.loads(file.read_text())
    said["network"]["nodes"] = 2
    assert len(plait.Topology.from_json(json.dumps(said)).rank_devices()) == 8


@pytest.mark.parametrize("option", ["--new", "--write"])
def test_a_machine_that_is_there_is_not_written_over(option, tmp_path):
    file = tmp_path / "box.json"
    file.write_text("edited by hand")
    machine = () if option == "--new" else ("-T", "mist")
    done = plait_command("topo", *machine, option, str(file))
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr == (
        f"plait: {option}: wanted to write {file}, found a file of that name; take another name, "
        "or give --force to overwrite it\n"
    )
    assert file.read_text() == "edited by hand"
    done = plait_command("topo", *machine, option, str(file), "--force")
    assert done.returncode == 0 and plait.load_topology(str(file)).rank_devices(), done


def test_tune_says_what_less_memory_costs(monkeypatch, capsys):
    from plait.commands import tune

    monkeypatch.setattr(plait, "discover", lambda: plait.load_topology("hgx-h200"))
    tune._print_budgets(2)
    said = capsys.readouterr().out
    assert "48M" in said and "copy_exchange" in said and "all_gather 1024 MiB" in said


def test_plan_prints_ranking_proof_and_bytes():
    done = plait_command("plan", "all_reduce", "--bytes", "64M", "-T", "mist")
    assert done.returncode == 0, done.stderr
    for words in ("hierarchical", "bytes per path", "nvlink:0>1", "proved"):
        assert words in done.stdout


def plan_json(*words: str) -> dict[str, Any]:
    done = plait_command("plan", *words, "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (("all_reduce", "-b", "64K", "-g", "2"), "one_shot"),
        (("all_reduce", "-b", "16M", "-g", "4"), "two_shot"),
        (("all_gather", "-b", "1G", "-g", "2"), "copy_exchange"),
        (("all_gather", "-b", "1G", "-g", "4"), "copy_ring"),
        (("reduce_scatter", "-b", "64M", "-g", "8"), "tiled"),
    ],
)
def test_plan_says_first_what_would_run(words, engine):
    lines = plait_command("plan", *words, "-T", "hgx-h200").stdout.splitlines()
    assert f"engine {engine}, as measured on HGX H200" in lines[1], lines[:6]
    assert any("engines and plans by lanes" in line for line in lines)
    assert sum("<- runs" in line for line in lines) == 1
    said = plan_json(*words, "-T", "hgx-h200")
    assert list(said) == [
        *("engine", "tuning", "by", "predicted_us", "bytes_by_path", "proof", "plan"),
        *("why", "doors", "nccl", "ways", "refused"),
    ]
    assert (said["engine"], said["by"]) == (engine, "built in") and said["predicted_us"] > 1
    assert said["proof"] == {"proved": True, "findings": []}
    assert said["plan"]["strategy"] == engine and said["bytes_by_path"]["nvlink:0>1"] > 0


def test_plan_says_which_way_an_eager_call_goes_where_that_is_another():
    words = ("all_reduce", "-b", "1G", "-g", "4", "-T", "hgx-h200")
    said = plan_json(*words)
    assert said["engine"] == "scatter_ring"
    assert said["eagerly"] == {"engine": "tiled", "tuning": {}}
    lines = plait_command("plan", *words).stdout.splitlines()
    assert [line.split() for line in lines if line.strip().startswith("eagerly")] == [
        ["eagerly", "engine", "tiled:", "a", "call", "outside", "graphs", "goes", "another", "way"]
    ]
    machine = plait.load_topology("hgx-h200")
    for mib, ways in ((1024, ("scatter_ring", "tiled")), (128, ("two_shot",) * 2)):
        request = plait.Request("all_reduce", mib << 18, "fp32", "sum", 4)
        for eager, (engine, other) in ((False, ways), (True, ways[::-1])):
            found = plait.what_would_run(machine, request, eager=eager)
            assert found.choice.engine == engine
            assert (found.otherwise.engine if found.otherwise else engine) == other


def test_plan_of_what_the_caller_names_or_no_engine_takes():
    two = ("all_reduce", "-b", "64M", "-g", "2", "-T", "hgx-h200")
    said = plan_json(*two, "-s", "rotation:host_permille=90")
    assert (said["engine"], said["by"]) == ("copy_exchange", "caller")
    assert said["tuning"] == {"host_permille": 90} and "host:0>numa0>1" in said["bytes_by_path"]
    four = ("all_reduce", "-b", "1G", "-g", "4", "-T", "narval")
    for by, asked in (("caller", [*two, "-s", "direct"]), ("simulated", four)):
        said = plan_json(*asked)
        assert (said["engine"], said["by"]) == ("lanes", by)
    done = plait_command("plan", *two, "-s", "one_shot:blocks=5000")
    assert done.returncode == 2 and "blocks" in done.stderr, done
    done = plait_command("plan", *two, "-s", "nonsense")
    assert done.returncode == 2 and "wanted a strategy (one of one_shot" in done.stderr, done
    nothing = plait.Request("all_reduce", 0, "fp32", "sum", 2)
    assert plait.what_would_run(plait.load_topology("hgx-h200"), nothing) is None


def test_plan_goes_by_this_machines_tuning_table(monkeypatch, tmp_path):
    table = json.loads((Path(__file__).parents[2] / "tuning" / "hgx-h200.json").read_text())
    row = {"collective": "all_reduce", "upto_ranks": 2, "when": "alone", "type": "bf16"}
    row |= {"engine": "direct_ll", "params": {"blocks": 16}, "source": "plait tune"}
    table["rows"] = [row]
    (tmp_path / "table.json").write_text(json.dumps(table))
    (tmp_path / "table.json").chmod(0o600)
    monkeypatch.setenv("PLAIT_TUNING", str(tmp_path / "table.json"))
    said = plan_json("all_reduce", "-b", "1M", "-g", "2", "-T", "hgx-h200", "-d", row["type"])
    assert (said["engine"], said["by"], said["tuning"]) == ("direct_ll", "table", {"blocks": 16})


@pytest.mark.parametrize(("former", "now"), [("hop", "direct_ll"), ("line_chain", "ll_chain")])
def test_engines_are_found_by_their_former_names(former, now):
    asked = ("broadcast", "-b", "1M", "-g", "4", "-T", "hgx-h200", "-s")
    assert plan_json(*asked, former)["engine"] == plan_json(*asked, now)["engine"] == now


def test_plan_json_round_trip_through_verify(tmp_path):
    done = plait_command("plan", "all_gather", "--bytes", "1M", "-T", "cedar", "--json")
    file = tmp_path / "plan.json"
    file.write_text(done.stdout)
    assert plait_command("verify", str(file)).returncode == 0
    broken = json.loads(done.stdout)["plan"]
    broken["lanes"][0]["ops"].pop()
    file.write_text(json.dumps(broken))
    done = plait_command("verify", str(file), "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["findings"]


def test_bench_table_and_json():
    done = plait_command(
        "bench",
        "all_reduce",
        "-g",
        "2",
        "-b",
        "1K",
        "-e",
        "4K",
        "-d",
        "fp32,bf16",
        "--strategies",
        "all",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["out_of_bounds"] == 0 and said["bitwise_equal"] is True
    assert {row["type"] for row in said["results"]} == {"fp32", "bf16"}
    assert len({row["name"] for row in said["results"]}) >= 8


def test_bench_says_how_many_ranks_and_timed_calls_there_are():
    done = plait_command("bench", "all_reduce", "-n", "4", "-b", "1K", "-e", "1K")
    said = "all_reduce, 2 ranks, at most 4 timed calls a row (-n), times are"
    assert done.returncode == 0 and said in done.stdout, done
    said = " ".join(plait_command("bench", "--help").stdout.split())
    assert "timed calls a round, not ranks (-g)" in said and "-n is --iters here" in said


def test_report_json_has_what_the_page_shows(tmp_path):
    done = plait_command("report", "-T", "mist", "--no-evidence", "--json")
    assert done.returncode == 0 and done.stderr == ""
    said = json.loads(done.stdout)
    assert said["topology"]["name"] == "mist" and said["ranks"] == 4
    assert 0 < said["lower_bound_us"] <= said["simulated_us"]
    assert said["runs"]["proof"]["proved"] and said["evidence"] is None
    assert all(speed > 0 for curve in said["predicted"]["4"].values() for _, speed in curve)
    done = plait_command("report", "-T", "mist", "--json", str(tmp_path / "mist.html"))
    assert done.returncode == 2 and "leave" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--via", "--door"])  # --door: the old name
def test_run_json_says_how_and_runs_nothing(tmp_path, option):
    program = f"open({str(tmp_path / 'ran')!r}, 'w')"
    words = ("--json", option, "mpi", "--", sys.executable, "-c", program)
    done = plait_command("run", *words)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["via"] == said["door"] == "mpi" and said["command"] == [
        sys.executable,
        "-c",
        program,
    ]
    assert said["env"]["LD_PRELOAD"].split(":")[0].endswith("libplait_mpi.so")
    assert not (tmp_path / "ran").exists()


def said_on_a_terminal(*words: str) -> tuple[str, str]:
    """Returns standard output (a pipe) and standard error (a terminal)."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "plait.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the far end is closed
            while part := os.read(ours, 1 << 16):
                said += part
        os.close(ours)
        assert process.stdout is not None
        out = process.stdout.read()
    assert process.returncode == 0, said
    return out, said.decode()


LONG_COMMANDS = {
    "all_reduce": ["bench", "all_reduce", "-b", "1K", "-e", "2K", "--json"],
    "experiments": ["simulate", "--paper", "wotir", "--json"],
    "proving": ["verify", "--all", "--strategy", "ring", "-T", "mist", "--json"],
}


@pytest.mark.parametrize("what", LONG_COMMANDS)
def test_progress_is_shown_on_a_terminal_alone(what):
    words = LONG_COMMANDS[what]
    out, said = said_on_a_terminal(*words)
    assert what in said and "/" in said
    json.loads(out)
    assert plait_command(*words).stderr == ""


def test_bench_plot(tmp_path):
    picture = tmp_path / "busbw.png"
    done = plait_command(
        "bench", "all_reduce", "-g", "2", "-b", "1K", "-e", "2K", "--plot", str(picture)
    )
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topo", "-T", "atlantis"], "atlantis"),
        (["plan", "all_produce"], "all_produce"),
        (["plan", "all_reduce", "--bytes", "many"], "many"),
        (["plan", "all_reduce", "-T", "mist", "--ranks", "5"], "5"),
        (["plan", "all_reduce", "-T", "mist", "-s", "direct:size=2"], "size"),
        (["plan", "all_reduce", "-d", "fp12"], "fp12"),
        (["verify", "no.json"], "plait: wanted a plan's file, found no file no.json\n"),
        (["plan", "no.json"], "plait: wanted a plan's file, found no file no.json\n"),
        (["verify", sys.executable], "which is no text\n"),
        (["verify"], "--all"),
        (
            ["bench", "all_reduce", "-b", "1M", "-e", "1000"],
            "--max-bytes: wanted at least --min-bytes (1M), found 1000",
        ),
        (
            ["simulate", "all_reduce", "-b", "1M", "-e", "1K"],
            "--end: wanted at least --bytes (1M), found 1K",
        ),
        (["bench", "all_reduce", "-f", "1"], "--factor: wanted 2 or more, or --step-bytes"),
        (
            ["plan", "all_reduce", "-T", "mist", "-s", "ring:lanes=x"],
            "ring: wanted a whole number as lanes, found 'x'",
        ),
        (["plan", "all_reduce", "-T", "mist", "-s", "ring:lanes"], "found 'ring:lanes'"),
        (["bench", "all_reduce", "-o", "median"], "median"),
        (["bench", "all_reduce", "--strategies", "direct,guess"], "guess"),
        (["bench", "all_reduce", "-b", "inf"], "wanted a size such as 8"),
        (["bench", "all_reduce", "-e", "1e30"], "1T at most, found '1e30'"),
        (["bench", "all_reduce", "-b", "nan"], "found 'nan'"),
        (["plan", "all_reduce", "-b", "-5"], "found '-5'"),
        (["bench", "all_reduce", "-i", "1", "-e", "1024G"], "wanted at most 10000 sizes"),
        (["simulate", "all_reduce", "-b", "1025G"], "1T at most"),
        (["simulate", "all_reduce", "-T", "mist", "--lanes"], "--lanes: wanted --plot FILE"),
        (["simulate", "all_reduce", "-T", "mist", "-f", "2"], "--factor: wanted -e SIZE"),
        (["bench", "all_reduce", "-g", "-3"], "--ranks: wanted 1 or more, found -3"),
        (["bench", "all_reduce", "-g", "0"], "--ranks: wanted 1 or more, found 0"),
        (["plan", "all_reduce", "-g", "0"], "--ranks: wanted 1 or more, found 0"),
        (["simulate", "all_reduce", "-g", "-1"], "--ranks: wanted 1 or more"),
        (["tune", "-g", "-2"], "--ranks: wanted 1 or more, found -2"),
        (["tune", "-g", "1"], "--ranks: wanted 2 or more to tune for"),
        (["bench", "broadcast", "-g", "2", "-r", "7"], "--root: wanted 0 to 1, found 7"),
        (["bench", "all_reduce", "--seed", "-1"], "--seed: wanted 0 or more"),
        (["bench", "all_reduce", "-n", "0"], "--iters: wanted 1 or more"),
        (["bench", "all_reduce", "-w", "-1"], "--warmup: wanted 0 or more"),
        (["bench", "all_reduce", "--sm-budget", "8"], "(without --gpus) go without --sm-budget"),
        (["bench", "all_reduce", "--gpus", "--sm-budget", "-8"], "--sm-budget: wanted 0 or more"),
        (["topo", "--measure", "-T", "mist"], "--measure goes without --topology"),
    ],
)
def test_errors_are_one_line_and_a_status(words, said):
    done = plait_command(*words)
    assert done.returncode in (1, 2) and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


PLACES = {
    "--plot": ["bench", "all_reduce", "--plot"],
    "--csv": ["bench", "all_reduce", "--gpus", "--csv"],
    "--csv of a pair": ["bench", "copy", "--pair", "0:1", "--csv"],
    "--trace": ["simulate", "all_reduce", "--trace"],
    "--plot of a timeline": ["simulate", "all_reduce", "--plot"],
    "--write": ["topo", "--write"],
    "report": ["report"],
}


@pytest.mark.parametrize("option", PLACES)
def test_where_nothing_can_be_written_nothing_is_measured(option, tmp_path):
    for place, said in (
        (f"{tmp_path}/none/a.png", "found no folder"),
        (str(tmp_path), "found a folder of that name"),
    ):
        done = plait_command(*PLACES[option], place)
        assert done.returncode == 1 and done.stdout == "", done
        assert done.stderr.startswith(
            f"plait: {option.split()[0]}: wanted to write {place}, {said}"
        )


@pytest.mark.parametrize("command", ["bench", "simulate"])
def test_pictures_of_no_known_format_are_refused_first(command, tmp_path):
    done = plait_command(command, "all_reduce", "--plot", f"{tmp_path}/a.xyz")
    assert done.returncode == 2 and done.stdout == "", done
    assert "--plot: wanted a file that ends in .png, .svg, .pdf, found" in done.stderr


def test_without_takes_links_with_commas_and_no_link():
    from plait.commands.console import _split_masks

    assert _split_masks(["nvlink:0-1,host:0", "relay:2"]) == ["nvlink:0-1", "host:0", "relay:2"]
    assert _split_masks(None) == _split_masks([]) == []  # None: typer up to 0.19.0


def test_simulate_names_the_engine_that_calls_run():
    words = ("simulate", "all_reduce", "-T", "hgx-h200", "-b", "1M")
    assert "Calls run engine two_shot here, predicted" in plait_command(*words).stdout
    assert "Calls run" not in plait_command(*words, "--strategy", "ring").stdout
    assert "Calls run" not in plait_command(*words[:3], "mist").stdout


def test_simulate_says_what_it_wrote_and_keeps_small_figures(tmp_path):
    picture, trace = tmp_path / "a.svg", tmp_path / "a.json"
    words = ("simulate", "all_reduce", "-T", "mist", "-b", "1K")
    done = plait_command(*words, "--plot", str(picture), "--trace", str(trace))
    assert done.stderr == f"wrote {trace}\nwrote {picture}\n" and picture.exists(), done
    done = plait_command(*words, "-e", "1K", "--plot", str(picture))
    assert done.stderr == f"wrote {picture}\n", done
    row = next(line for line in done.stdout.splitlines() if "1 KiB" in line)
    assert re.search(r" 0\.0\d+ ", row), row


def test_report_takes_its_page_as_an_option_too(tmp_path):
    page = tmp_path / "page.html"
    words = ("report", "-T", "mist", "--no-evidence", "-o", str(page))
    done = plait_command(*words, "other.html")
    assert done.returncode == 2 and "wanted one page to write, found other.html and" in done.stderr
    done = plait_command(*words)
    assert done.stdout == f"wrote {page}\n" and page.exists(), done


def test_what_fails_while_it_is_written_is_one_line(tmp_path):
    for words in (["simulate", "all_reduce", "-b", "4K", "--trace"], ["topo", "--write"]):
        done = plait_command(*words, "/dev/full")
        said = f"plait: {words[-1]}: wanted to write /dev/full: No space left on device\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", said), done
    with pytest.raises(plait.FileError, match="none"):
        outputs.save(outputs.load_pyplot().figure(), f"{tmp_path}/none/a.png", 50)
    outputs.check(f"{tmp_path}/none/of/these/table.json", "--write", makes_folders=True)
    (tmp_path / "file").touch()
    with pytest.raises(plait.FileError, match="found no folder"):
        outputs.check(f"{tmp_path}/file/table.json", "--write", makes_folders=True)
    done = plait_command("profile", "--folder", "/proc/none", "--", "true")
    said = "plait: --folder: wanted to write in /proc/none: No such file or directory\n"
    assert (done.returncode, done.stderr) == (1, said), done


def test_a_profile_as_json_is_json_alone():
    """MPICH prints UCX's warnings to standard output before the program's output."""
    program = ["sh", "-c", "echo UCX WARN none; exit 3"]
    done = plait_command("profile", "--json", "--", *program)
    assert done.returncode == 3 and json.loads(done.stdout) == [], done
    assert "UCX WARN none" in done.stderr, done


def test_a_profile_of_no_calls_says_what_it_counts_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = plait_command("profile", "--", "true")
    assert done.returncode == 0, done
    assert done.stdout.startswith("no process made a collective call of NCCL or MPI"), done
    assert plait_command("profile", "--json", "--", "true").returncode == 0
    assert list(tmp_path.glob("plait-profile-*")) == []
    kept = tmp_path / "asked"
    assert plait_command("profile", "--folder", str(kept), "--", "true").returncode == 0
    assert (kept / "profile.csv").exists()


COMMANDS = {
    "topo": ["topo", "-T", "mist"],
    "plan": ["plan", "all_reduce", "-T", "mist"],
    "verify": ["verify", "none.json"],
    "simulate": ["simulate", "all_reduce", "-T", "mist"],
    "report": ["report", "-T", "mist", "--json"],
    "bench": ["bench", "all_reduce"],
    "tune": ["tune"],
    "run": ["run", "--", "true"],
    "profile": ["profile", "--", "true"],
    "launch": ["launch", "--", "true"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_variable_that_plait_does_not_know(command, monkeypatch):
    words = COMMANDS[command]
    monkeypatch.setenv("PLAIT_FOO", "1")
    done = plait_command(*words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "PLAIT_FOO is no variable of plait" in done.stderr
    monkeypatch.setenv("PLAIT_FOO", "")
    monkeypatch.setenv("PLAIT_DEADLINE_S", "abc")
    done = plait_command(*words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "PLAIT_DEADLINE_S: wanted a number" in done.stderr


def test_errors_of_variables_name_them(monkeypatch):
    monkeypatch.setenv("PLAIT_OPS", "all_reduse")
    for command in ("plan", "launch"):
        done = plait_command(*COMMANDS[command])
        assert (done.returncode, done.stdout) == (2, ""), done
        assert done.stderr.startswith("plait: PLAIT_OPS: wanted a collective"), done
    monkeypatch.delenv("PLAIT_OPS")
    monkeypatch.setenv("PLAIT_ALGO", "rign")
    said = plait_command(*COMMANDS["plan"]).stderr
    assert said.startswith("plait: PLAIT_ALGO: wanted a strategy") and 'found "rign"' in said
    by_option = plait_command(*COMMANDS["plan"], "-s", "rign").stderr
    assert "PLAIT_ALGO" not in by_option and 'found "rign"' in by_option
    comm = plait.Communicator(0, 1, topology="local-cpu")
    with pytest.raises(plait.InvalidArgumentError, match=r'PLAIT_ALGO: .*found "rign"'):
        comm.all_reduce(np.ones(4, np.float32))


def test_doctor_lists_a_variable_that_plait_does_not_know(monkeypatch):
    monkeypatch.setenv("PLAIT_FOO", "1")
    done = plait_command("doctor", "--json")
    assert done.returncode == 1
    (row,) = [row for row in json.loads(done.stdout) if row["what"] == "PLAIT_* variables"]
    assert row["state"] == "broken" and "PLAIT_FOO" in row["found"]
    assert plait_command("help", "plan").returncode == 0


@pytest.mark.parametrize("command", ["doctor", "run", "profile", "launch"])
def test_an_option_that_there_is_not_is_no_program(command):
    done = plait_command(command, "--foo")
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "wanted a program, found --foo, which is no option of this command" in done.stderr


def test_a_plan_of_less_than_an_element_is_refused():
    done = plait_command("plan", "all_reduce", "-T", "mist", "-b", "3")
    assert done.returncode == 2 and "--bytes: wanted 4 or more, one element of fp32" in done.stderr
    done = plait_command("plan", "all_gather", "-T", "mist", "-b", "15")
    assert done.returncode == 2 and "--bytes: wanted 16 or more" in done.stderr
    assert plait_command("plan", "all_gather", "-T", "mist", "-b", "16").returncode == 0
    assert plait_command("plan", "all_reduce", "-T", "mist", "-b", "0").returncode == 0


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("plait plan -T mi", "mist"),
        ("plait simulate all_r", "all_reduce"),
        ("plait verify --all -s two_s", "two_shot"),
        ("plait plan all_reduce -s direct_l", "direct_ll"),
    ],
)
def test_a_shell_completes_machines_collectives_and_strategies(words, wanted):
    number = str(len(words.split()) - 1)
    env = {"_PLAIT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": number}
    program = "import sys; sys.argv[0] = 'plait'; from plait.cli import app; app(prog_name='plait')"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **env}, capture_output=True, text=True
    )
    assert wanted in done.stdout.split(), done


def test_a_written_machine_keeps_switches_and_network(tmp_path):
    file = tmp_path / "mine.json"
    done = plait_command("topo", "-T", "hgx-h200", "--write", str(file))
    assert done.stdout == f"wrote {file}: plait plan all_reduce -T {file}\n", done
    said = json.loads(file.read_text())
    assert said["switches"] and said["network"]
    assert plait.load_topology(str(file)).to_json() == plait.load_topology("hgx-h200").to_json()
    again = tmp_path / "again.json"
    plait_command("topo", "-T", str(file), "--write", str(again))
    assert again.read_text() == file.read_text()


def test_a_file_of_another_tool_is_named_as_such():
    file = Path(__file__).parents[1] / "machines" / "rtx-5090-x2.txt"
    done = plait_command("plan", "all_reduce", "-T", str(file))
    assert done.returncode != 0, done
    assert f"plait topo --from {file} --write box.json" in done.stderr
    assert "parse_error" not in done.stderr


INTERRUPTED = {
    "bench": ["bench", "all_reduce", "-g", "3", "-b", "64M", "-e", "64M", "-n", "100000"],
    "verify": ["verify", "--engines"],
}


@pytest.mark.parametrize("command", INTERRUPTED)
@pytest.mark.parametrize("whom", ["all", "the command"])  # a terminal signals all, kill one process
def test_an_interrupt_is_one_line_and_its_processes_are_gone(command, whom):
    words = [sys.executable, "-m", "plait.cli", *INTERRUPTED[command]]
    job = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        before = time.monotonic()
        least = {"bench": 4, "verify": 3}[command]
        # Python's own start would show an interrupt. A process of multiprocessing has no plait.
        while len(in_session(job.pid, "/_core.")) < max(least, len(in_session(job.pid)) - 1):
            assert time.monotonic() < before + 60, in_session(job.pid)
            time.sleep(0.05)
        time.sleep(1)  # until they work
        (os.killpg if whom == "all" else os.kill)(job.pid, signal.SIGINT)
        said = job.communicate(timeout=60)[1]
        assert (job.returncode, said) == (130, "plait: interrupted\n")
        before = time.monotonic()
        while left := in_session(job.pid):
            assert time.monotonic() < before + 20, left
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


@pytest.mark.parametrize("task", ["{}", ""])  # before a row is read, and before the task is given
def test_a_rank_whose_command_has_ended_says_nothing(task):
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    done = subprocess.run(
        [sys.executable, "-m", "plait.launch", "rank_programs:refused", str(write_fd)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "RANK": "0"},
        input=task,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[write_fd],
        timeout=60,
    )
    os.close(write_fd)
    assert (done.returncode, done.stderr) == (1, "")


def in_session(leader: int, name: str = "") -> list[int]:
    """Returns the live processes of a session that have mapped a file of this name."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            is_live = int(session) == leader and state != "Z"
            if is_live and name in (stat.parent / "maps").read_text():
                found.append(int(stat.parent.name))
    return found


def test_the_environment_names_machine_and_masks(monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_TOPOLOGY", "mist")
    monkeypatch.setenv("PLAIT_WITHOUT", "nvlink:0-1,relay:2")
    masked = plait.load_topology("mist").without(["nvlink:0-1", "relay:2"])
    assert plait.Topology.from_json(plait_command("topo", "--json").stdout) == masked
    assert "bytes per path" in plait_command("plan", "all_reduce", "-b", "1K").stdout
    assert "ranks of mist" in plait_command("plan", "all_reduce", "-b", "1K").stdout
    timeline = json.loads(plait_command("simulate", "all_reduce", "-b", "1K", "--json").stdout)
    assert timeline["topology"] == "mist", timeline.keys()
    done = plait_command("report", str(tmp_path / "page.html"), "--no-evidence")
    assert done.returncode == 0 and "plait: mist" in (tmp_path / "page.html").read_text(), done
    named = plait_command("topo", "-T", "cedar", "--without", "nvlink:0-1", "--json").stdout
    wanted = plait.load_topology("cedar").without(["nvlink:0-1"])
    assert plait.Topology.from_json(named) == wanted


def test_what_is_no_regular_file_or_too_long_is_no_plan(tmp_path):
    pipe, long = tmp_path / "pipe", tmp_path / "long"
    os.mkfifo(pipe)
    with long.open("wb") as file:
        file.truncate((64 << 20) + 1)
    for name in (str(pipe), str(tmp_path), "/dev/zero", str(long)):
        done = plait_command("verify", name)
        assert done.returncode == 1 and "64 MiB" in done.stderr, done
        assert "Traceback" not in done.stderr


def test_doctor_finds_no_fault_here():
    done = plait_command("doctor", "--json")
    assert done.returncode == 0, done.stdout
    assert {check["what"] for check in json.loads(done.stdout)} >= {"processor", "topology", "GPUs"}


def test_bench_refuses_more_ranks_than_a_communicator_has():
    done = plait_command("bench", "all_reduce", "-g", "32")
    assert (done.returncode, done.stdout) == (2, ""), done  # not even the table's head
    assert "--ranks: wanted 1 to 16, as many as a communicator has, found 32" in done.stderr
