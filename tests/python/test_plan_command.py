"""Tests that `plait plan` names the plan that calls take, and that the tables are complete."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_stand_ins import plait_command

import plait
from plait import _core, entry_points, machines, outputs, what_runs
from plait.commands import plan
from plait.evidence import beside_nccl


def said(*words: str, columns: str = "80", command: str = "plan") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "plait.cli", command, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": columns},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def marked_row(text: str) -> str:
    """Returns the row of what runs, or would run on GPUs with kernels."""
    (row,) = [line for line in text.splitlines() if re.search("<- (runs|would run)", line)]
    return row


@pytest.mark.parametrize("machine", ["mist", "local-cpu"])
def test_the_plan_of_calls_is_the_one_that_ranks_choose(run_ranks, machine):
    sizes = [256, 1 << 16, 1 << 20, 1 << 24]
    rows = run_ranks("plan_ranks:chosen", 4, {"topology": machine, "counts": sizes})
    topology = plait.Topology.from_json(rows[0]["machine"])  # as measured there, on CPUs
    for count, label in zip(sizes, rows[0]["labels"], strict=True):
        request = plait.Request("all_reduce", count, "fp32", ranks=4)
        assert _core.taken_by_cpu_ranks(topology, request).label == label


def test_cpu_ranks_run_plans_and_no_engine():
    for words in (["-b", "1M"], ["-b", "1M", "-s", "one_shot"]):
        text = said("all_reduce", "-T", "local-cpu", "-g", "2", *words)
        assert "  runs       by lanes, " in text


def test_it_is_marked_and_shown():
    text = said("all_reduce", "-T", "mist", "--bytes", "64M")
    marked = marked_row(text)
    shown = next(line.split()[1] for line in text.splitlines() if line.startswith("  as "))
    assert shown in marked and "rank_order" in marked


@pytest.mark.parametrize(
    ("nodes", "size", "wanted"),
    [
        ("mist-2", "16M", "multi_node("),
        ("mist-2", "64K", "library"),  # NCCL is faster
        ("mist-4", "4M", "multi_node("),
        ("hgx-h200-2", "64M", "library"),
        ("mist", "64K", "fold("),
    ],
)
def test_over_nodes_no_plan_is_marked_that_nothing_runs(nodes, size, wanted):
    text = said("all_reduce", "-T", nodes, "--bytes", size)
    assert f"  as         {wanted}" in text
    assert wanted in marked_row(text)
    assert ("as calls choose over nodes" in text) == (nodes != "mist")


@pytest.mark.parametrize(
    ("machine", "ranks", "collective", "rule"),
    [
        ("local-cpu", "2", "all_reduce", "as measured on two CPU ranks, not by simulation"),
        ("local-cpu", "4", "all_reduce", "on CPU ranks by the planner's estimate"),
        ("mist", "4", "all_reduce", "fastest by simulation of those that may run"),
        ("hgx-h200-2", "16", "all_reduce", "NCCL is predicted to be faster over NICs of 384 GB/s"),
    ],
)
def test_what_runs_by_lanes_has_a_row_and_the_rule_that_chose_it(machine, ranks, collective, rule):
    for size in ("1M", "64M"):
        text = said(collective, "-T", machine, "-g", ranks, "-b", size)
        (runs,) = [line for line in text.splitlines() if line.startswith("  runs")]
        shown = next(line.split()[1] for line in text.splitlines() if line.startswith("  as "))
        mark = "<- would run" if machine == "mist" else "<- runs"
        assert f"strategy {shown}  {mark}" in marked_row(text)
        rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
        times = [float(row[1]) for row in rows if row[1] != "-"]
        assert times == sorted(times)
        assert rule in runs
        assert (", in a graph" in text) == (machine != "local-cpu")


def test_where_gpus_run_none_of_it_the_plan_says_so():
    text = said("all_reduce", "-T", "mist")
    (runs,) = [line for line in text.splitlines() if line.startswith("  runs")]
    assert "nothing of plait, since" in runs and "compute capability 7.0" in runs
    assert "why_not" in json.loads(said("all_reduce", "-T", "mist", "--json"))
    for words in (("-b", "1M"), ("-b", "1M", "-e", "4M")):
        shown = said("all_reduce", "-T", "mist", *words, command="simulate")
        assert "plait does not run on these GPUs" in shown and "compute capability 7.0" in shown
        assert "  runs" not in shown
    assert "nothing of plait" not in said("all_reduce", "-T", "narval")
    assert "1 rank of local-cpu" in said("all_reduce", "-T", "local-cpu", "-g", "1")


def test_json_has_all_that_the_text_has():
    words = ("all_reduce", "-T", "hgx-h200", "-b", "64M")
    found, text = json.loads(said(*words, "--json")), said(*words, columns="200")
    assert found["doors"]["plait run"]["served_by"] == "library"
    for door, of in found["doors"].items():
        assert f"  {door:<10} {of['text']}" in text
    assert f"{found['nccl']['us']:.2f} us, measured on such GPUs" in text
    assert found["nccl"]["plait_us"] > found["nccl"]["us"] > 100
    rows = [line for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert len(rows) == len(found["ways"])
    for line, way in zip(rows, found["ways"], strict=True):
        assert f" {way['kind']} {way['label']} " in f"{line} "
        assert ("<- runs" in line) == way["runs"]
    (running,) = [way for way in found["ways"] if way["runs"]]
    assert (running["kind"], running["name"]) == ("engine", found["engine"])
    for one in found["refused"]:
        assert f"not {one['kind']} {', '.join(one['names'])}: {one['why']}" in text
    assert {one["kind"] for one in found["refused"]} == {"engine", "strategy"}
    small = json.loads(said("all_reduce", "-T", "hgx-h200", "-b", "64K", "--json"))
    assert small["doors"]["plait run"]["served_by"] == "plait"
    assert json.loads(said("all_gather", "-T", "hgx-h200", "-b", "64K", "--json"))["nccl"] is None


def test_recorded_rows_keep_engines_with_several_parameters():
    machine = plait.load_topology("hgx-h200")
    rows = beside_nccl.recorded(machine, 8).values()
    assert any("," in row.engine for row in rows)
    assert all("NCCL" in row.source and row.source.endswith(".csv)") for row in rows)


def test_times_of_a_second_have_the_units_of_seconds():
    text = said("all_reduce", "-T", "mist", "-b", "16G", columns="200")
    assert re.search(r"predicted  \d{3}\.\d ms", text)
    assert re.match(r" *1  +\d{3}\.\d\d ms ", marked_row(text))


def doors(machine: str, *words: str) -> tuple[str, str]:
    """Returns what `plait plan` says of calls of NCCL and of MPI."""
    lines = said("all_reduce", "-T", machine, *words, columns="200").splitlines()
    found = {line[2:11]: line[13:] for line in lines}
    return found.get("plait run", ""), found.get("under MPI", "")


def test_each_entry_point_is_said(tmp_path, monkeypatch):
    box = tmp_path / "box.json"
    box.write_text(json.dumps(machines.template("box")))
    by_nccl, by_mpi = doors("narval")
    assert "left to NCCL: not measured beside NCCL on 4 of NVIDIA A100" in by_nccl
    assert "; `plait tune` measures this machine" in by_nccl
    assert by_mpi == "as above, on device memory"
    with monkeypatch.context() as patch:
        patch.delenv("PLAIT_AUTOTUNE")
        until = "left to NCCL: until the first start has measured these GPUs"
        assert doors("narval")[0].startswith(until)
    assert "the driver grants no direct access" in doors(str(box))[0]
    by_nccl, by_mpi = doors("hgx-h200", "-b", "8K")
    assert by_nccl.startswith("engine one_shot(") and "predicted" in by_nccl
    assert "below PLAIT_MIN_BYTES (16 KiB)" in by_mpi
    by_nccl, by_mpi = doors("local-cpu", "-g", "2")
    assert by_nccl == "" and "PLAIT_MPI_HOST=1" in by_mpi
    assert "compute capability 7.0" in doors("mist")[0]
    by_nccl, by_mpi = doors("hgx-h200-2")
    assert "NICs of 384 GB/s a node; PLAIT_ALGO=multi_node" in by_nccl
    assert by_mpi == "left to the MPI, from pinned staging buffers; PLAIT_MPI_HOST=1 changes that"
    assert doors("narval", "-s", "ring") == ("", "")


TABLE = {
    "schema": "plait.tuning/4",
    "name": "here",
    "fingerprint": "any",
    "gpu": {"model": "any", "multiprocessors": 1, "links": ["any"], "upto_ranks": 4},
    "cuda_driver": 0,
    "nccl": "2.28.9",
    "plait": "0.2.0",
    "date": "2026-01-01",
    "rows": [
        {
            "when": "overlap_compute",
            "collective": "all_reduce",
            "from_ranks": 4,
            "upto_ranks": 4,
            "upto_bytes": "1M",
            "engine": "one_shot",
            "ahead_of_nccl": True,
            "source": "a test",
        }
    ],
}


@pytest.mark.parametrize("name", ["narval", "rtx-5090-x4"])
def test_under_nccl_the_table_beside_nccl_counts(monkeypatch, tmp_path, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = plait.load_topology(name)
    request = plait.Request("all_reduce", 1 << 12, "fp32", ranks=4)
    beside = Path(_core.tuning_file_beside_nccl(machine, request, "2.28.9"))
    assert "-nccl2.28.9-4.json" in beside.name
    assert ("-host-" in beside.name) == (name == "rtx-5090-x4")
    own = beside.with_name(beside.name.replace("-nccl2.28.9", ""))
    own.parent.mkdir()
    own.write_text(json.dumps(TABLE))
    assert doors(name, "-b", "16K")[0].startswith("left to NCCL: ")
    beside.write_text(json.dumps(TABLE))
    by_nccl = doors(name, "-b", "16K")[0]
    assert by_nccl.startswith("engine one_shot(") and f"as {beside} says" in by_nccl
    assert "compares no such call" in doors(name, "-b", "64M")[0]


@pytest.mark.parametrize(
    ("setting", "by_nccl", "by_mpi"),
    [
        ("PLAIT_DISABLE=1", "left to NCCL: PLAIT_DISABLE is 1", "PLAIT_DISABLE is 1"),
        ("PLAIT_OPS=all_gather", "all_reduce is not in PLAIT_OPS", "does not name all_reduce"),
        ("PLAIT_MIN_BYTES=1G", "smaller than PLAIT_MIN_BYTES", "below PLAIT_MIN_BYTES (1 GiB)"),
        ("PLAIT_BITWISE=1", "engine ", "as above, on device memory"),
        ("PLAIT_ALGO=tiled", "engine tiled(", "as above, on device memory"),
        ("PLAIT_THROUGH_HOST=1", "PLAIT_THROUGH_HOST=1 takes it", "as above, on device memory"),
        ("PLAIT_NODE_SIZE=1", "one rank only", "each node has one rank"),
        ("PLAIT_BITWISE_STRICT=1", "an error, since PLAIT_BITWISE_STRICT is 1", "as above"),
    ],
)
def test_entry_points_go_by_settings(monkeypatch, setting, by_nccl, by_mpi):
    name, _, value = setting.partition("=")
    monkeypatch.setenv(name, value)
    found = doors("hgx-h200", "-b", "64M")
    assert by_nccl in found[0] and by_mpi in found[1], found


def test_entry_points_name_why_calls_are_the_librarys():
    machine = plait.load_topology("hgx-h200")

    def found(collective: str, **wishes) -> tuple[str, str]:
        request = plait.Request(collective, 1 << 20, ranks=8, **wishes)
        return entry_points.under_nccl(machine, request), entry_points.under_mpi(machine, request)

    assert "NCCL has no bit_and" in found("all_reduce", type="int32", op="bit_and")[0]
    assert "only sums were compared with NCCL, not max" in found("all_reduce", op="max")[0]
    assert "MPI has no avg" in found("all_reduce", op="avg")[1]
    large = plait.Request("all_reduce", 1 << 25, "bf16", "avg", ranks=8)  # 64 MiB
    assert "NCCL is faster, as measured on such GPUs" in entry_points.under_nccl(machine, large)
    assert "MPI has no bf16" in found("all_reduce", type="bf16")[1]
    assert found("all_gather", type="bf16")[1] == "as above, on device memory"
    by_nccl, by_mpi = found("send_recv")
    assert "sends and receives were not measured" in by_nccl and "PLAIT_OPS" in by_mpi
    by_nccl, by_mpi = found("all_gather", counts=[1 << 20] * 7 + [8])
    assert "equal counts" in by_nccl and "engines take parts of equal sizes alone" in by_mpi


def test_a_named_strategy_is_no_choice_of_calls():
    text = said("all_reduce", "-T", "hgx-h200", "-s", "ring")
    assert "% faster; --strategy names another" in text and "CPU ranks" not in text
    (marked,) = [line for line in text.splitlines() if "<- runs" in line]
    assert "by name" in marked or "rank_order" in marked


def test_a_message_whose_plans_exceed_the_memory_is_refused():
    for size in ("512G", "1T"):
        done = subprocess.run(
            [sys.executable, "-m", "plait.cli", "plan", "all_reduce", "-T", "mist", "-b", size],
            capture_output=True,
            text=True,
            timeout=120,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)),
        )
        assert done.returncode == 2 and "of memory, found" in done.stderr, done.stderr
        assert re.search(r"ask for [0-9]+ GiB or less", done.stderr), done.stderr


def test_gpus_without_links_run_engines_through_host_memory():
    machine = plait.load_topology("rtx-5090-x4")
    request = plait.Request("all_reduce", 16 << 10, "fp32", ranks=4)
    runs = what_runs.by_engine(machine, request)
    assert runs is not None and runs.proof.proved
    assert {path.partition(":")[0] for path in runs.plan.bytes_per_path()} <= {"host", "local"}
    plans, _ = plait.ranked(machine, request)
    assert runs.predicted_us < plans[0].timeline.total_ns / 1e3


def test_names_of_plans_are_whole_on_narrow_screens():
    text = said("all_reduce", "-T", "mist", "--bytes", "64M", columns="60")
    assert "hierarchical(chunks=32,host_permille=250,lanes=1)" in text


def test_a_strategy_without_parameters_is_shown_by_its_fastest():
    assert "  as         rerouted(pieces=4," in said("all_reduce", "-T", "mist", "-s", "rerouted")
    told = said("all_reduce", "-T", "mist", "-s", "rerouted:pieces=1,throttle=1")
    assert "  as         rerouted(pieces=1,throttle=1)" in told


def test_plan_goes_by_the_memory_of_the_environment(monkeypatch):
    machine = plait.load_topology("hgx-b200")
    request = plait.Request("all_reduce", 1 << 26, "fp32", ranks=4)
    direct = plait.propose_one(machine, request, "direct")
    advised = re.search(r"(PLAIT_DEVICE_SCRATCH)=(\d+)", _core.why_no_call(machine, direct))
    monkeypatch.setenv(*advised.groups())
    monkeypatch.setenv("PLAIT_DEVICE_MEMORY", "1G")
    assert _core.why_no_call(machine, direct) == ""
    packets = plait.Request("all_reduce", 1 << 22, "fp32", ranks=4)
    assert "one_shot" not in dict(plait.engine_refusals(packets, machine))
    assert plait.what_would_run(machine, packets, "one_shot").proof.proved
    monkeypatch.delenv("PLAIT_DEVICE_SCRATCH")
    monkeypatch.delenv("PLAIT_DEVICE_MEMORY")
    refused = dict(plait.engine_refusals(packets, machine))["one_shot"]
    assert refused.endswith("(raise PLAIT_DEVICE_MEMORY)")
    assert _core.why_no_call(machine, direct) != ""


def test_plans_without_scratch_are_refused(monkeypatch):
    machine = plait.load_topology("hgx-b200")
    request = plait.Request("all_reduce", 1 << 26, "fp32", ranks=4)
    monkeypatch.setenv("PLAIT_DEVICE_MEMORY", "5M")
    narrow = plait.for_calls(machine, request)
    assert narrow.parameter("arena_scratch_bytes", 1) == 0
    refused = dict(plait.propose(narrow, request)[1])
    for name in ("ring", "phases", "fold"):
        assert re.search(r"wanted 4096 bytes of scratch or more, found 0 ", refused[name]), refused
    assert "  runs       " in said("all_reduce", "-b", "64M", "-g", "4", "-T", "hgx-b200")


def test_all_ways_are_plans_that_calls_have_memory_for():
    machine, mib = plait.load_topology("narval"), 1 << 20
    for collective in ("all_reduce", "all_gather", "copy"):
        request = plait.Request(collective, 64 * mib, "fp32", ranks=2, peer=1)
        plans = [one.plan for one in what_runs.ranked(machine, request)[0]]
        assert plans and {
            _core.why_no_call(machine, plan) for plan in plans if not plan.symmetric
        } == {""}
        # The machine alone lets a plan relay by GPUs that have no rank.
        others = plait.propose(machine, request)[0]
        assert any("GPU outside the job" in _core.why_no_call(machine, plan) for plan in others)
    assert any(plan.symmetric for plan in plans)  # of plait.copy


def test_a_plan_that_calls_have_no_memory_for_says_what_it_wants():
    machine = plait.load_topology("hgx-b200")
    request = plait.Request("all_reduce", 1 << 26, "fp32", ranks=4)
    plan = plait.propose_one(machine, request, "direct")
    wants = r"wants \d+ bytes of scratch, the ranks' arenas have 4194304; PLAIT_DEVICE_SCRATCH=\d+"
    assert re.match(wants, _core.why_no_call(machine, plan))
    assert what_runs.by_lanes(machine, plan, "file").as_json()["why_no_call"]
    assert _core.why_no_call(machine, what_runs.named(machine, request, "direct", {})) == ""
    by_relay = ("-T", "narval", "-g", "2", "-s", "direct:relay=3,relay_permille=333")
    text = said("all_reduce", *by_relay)
    assert "  runs       in no call, since it wants a GPU outside the job" in text
    assert "refused" in marked_row(text) and "refused: calls have too little memory" in text


def test_masked_links_leave_the_call_to_a_plan():
    masked = ("all_reduce", "-b", "64K", "-T", "hgx-h200", "-g", "4", "--without", "nvlink:0-1")
    text = said(*masked)
    assert "  runs       by lanes, as calls choose: " in text and "strategy " in marked_row(text)
    assert "engine " not in "".join(text.partition("not engine")[0].split("bytes per path")[1:])
    why = "kernels go by links that masks have left out: rank 0 has none to rank 1"
    assert f"not engine one_shot, two_shot, direct_ll, tiled, scatter_ring: {why}" in text
    assert re.search(r"  plait run  by lanes, \w+", text), text
    done = plait_command("plan", *masked, "-s", "tiled")
    assert done.returncode == 2 and f"tiled: {why}" in done.stderr, done
    machine = plait.load_topology("hgx-h200").without(["nvlink:0>1"])
    request = plait.Request("all_reduce", 1 << 20, "fp32", ranks=8)
    assert plait.what_would_run(machine, request) is None
    assert not _core.goes_through_host(machine, request)
    again = plait.Topology.from_json(machine.to_json())
    assert "no_link.0.1" in again.parameters and "no_link.1.0" not in again.parameters
    others = plait.Request("all_reduce", 1 << 20, "fp32", ranks=2, devices=[2, 3])
    assert plait.what_would_run(machine, others).choice.engine


def test_a_long_message_has_the_first_plans_alone():
    for name, ranks in (("l40s-x8", 8), ("hgx-b200", 8)):
        machine = plait.load_topology(name)
        request = plait.Request("all_reduce", 2 << 28, "fp32", ranks=ranks)  # 2 GiB
        began = time.process_time()
        plans, refusals = plait.propose(plait.for_calls(machine, request), request)
        took = time.process_time() - began
        in_order = [plan for plan in plans if plan.sum_order == "rank_order"]
        assert in_order and len(plans) < 6, plans
        assert sum(plan.op_count() for plan in plans[:-1]) < 2 << 20
        few = "a message above 1 GiB has the first plans alone"
        assert any(why.endswith(few) for _, why in refusals) and took < 20, took
        staged = [why for name, why in refusals if name == "staged"]
        assert staged == [] or str(2 << 30) in staged[0]  # the bytes of the message, not a sample
        assert _core.taken_by_calls(machine, request).label in [one.label for one in in_order]


def test_a_message_without_an_end_has_no_plan_and_says_the_most():
    for name, ranks in (("narval", 4), ("hgx-b200", 8), ("local-cpu", 8)):
        machine = plait.load_topology(name)
        request = plait.Request("all_reduce", 2 << 40, "fp32", ranks=ranks)  # 8 TiB
        for topology in (machine, plait.for_calls(machine, request)):
            plans, refusals = plait.propose(topology, request)
            assert plans == []
            assert any(re.search(r"ask for \d+ GiB or less", why) for _, why in refusals)
        with pytest.raises(plait.UnsupportedError, match="more than 1048576 ops; ask for"):
            plait.propose_one(machine, request, "ring")


def test_ranks_are_as_many_as_cores():
    machine = plait.local_cpu(16)
    assert plan.usual_ranks(machine) == min(16, len(os.sched_getaffinity(0)))
    assert plan.usual_ranks(plait.load_topology("mist")) == 4


def test_the_header_names_the_reduction():
    for op in ("sum", "avg"):
        done = plait_command("plan", "all_reduce", "-b", "1K", "-T", "mist", "-o", op)
        assert done.stdout.startswith(f"all_reduce {op} of 1 KiB fp32 on 4 ranks of mist:"), done
    done = plait_command("plan", "all_gather", "-b", "1K", "-T", "mist")
    assert done.stdout.startswith("all_gather of 1 KiB fp32 on 4 ranks of mist:"), done
    for words in (["plan"], ["simulate"], ["simulate", "-e", "4K"]):
        done = plait_command(*words, "all_gather", "-b", "1K", "-T", "mist", "-o", "avg")
        assert done.returncode == 2 and "--op avg: wanted a collective that reduces" in done.stderr
        assert "found all_gather" in done.stderr


def test_long_times_are_in_seconds():
    assert outputs.time_text(2446785.59) == "2.45 s" and outputs.time_text(4.936) == "4.94 us"


def test_rows_alike_are_one():
    carried = {f"shm:cpu{a}>cpu{b}": 8 for a in range(4) for b in range(4) if a != b}
    assert plan.folded(carried | {"local": 5}) == [
        ("12 of shm (shm:cpu0>cpu1, ...), each", 8),
        ("local", 5),
    ]
    few = {"host:0": 3, "host:1": 3}
    assert plan.folded(few) == list(few.items())


def test_where_no_strategy_can_each_reason_has_a_line():
    machine = plait.load_topology("mist")
    request = plait.Request("all_reduce", 1024, "fp32", ranks=4)
    refusals = [("flat", "unsupported: no link"), ("tree", "not this"), ("ring", "no link")]
    with pytest.raises(plait.UnsupportedError) as refused:
        plan.plan_asked_for(one_way(machine), request, "", lambda: ([], refusals))
    assert str(refused.value).splitlines() == [
        "no strategy takes this request on mist",
        "  flat, ring: no link",
        "  tree: not this",
    ]


def one_way(machine: plait.Topology) -> plait.Topology:
    """Returns the machine without links to the first GPU."""
    said_json = json.loads(machine.to_json())
    said_json["links"] = [link for link in said_json["links"] if link["dst"] != "gpu0"]
    return plait.Topology.from_json(json.dumps(said_json))


def test_a_busy_resource_beside_a_low_share_is_explained():
    machine = plait.load_topology("rtx-5090-x4")
    request = plait.Request("all_reduce", 1 << 24, "fp32", ranks=4)
    timeline = plait.simulate(plait.propose_one(machine, request, "fold"), machine)
    text = str(timeline)
    assert timeline.bound_by in text and "this plan moves more through it than the bound" in text
