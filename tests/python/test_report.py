"""Tests the HTML page: well-formed, self-contained, complete; and plots of timelines."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import plait
from plait import timeline_plot, timeline_rows, ways, what_runs
from plait.commands import report_page as report
from plait.evidence import papers, results

VOID = {"meta", "line", "circle", "rect", "polyline", "path", "input"}


class Tags(HTMLParser):
    """Collects tags and checks that they nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.tips: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.tips += [value or "" for name, value in attrs if name == "data-tip"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_self_contained(tmp_path: Path) -> None:
    (tmp_path / "bench.csv").write_text(
        "# formula: busbw\nmachine,collective,strategy,bytes,busbw\n"
        "mist,all_reduce,ring,1048576,31.5\nmist,all_reduce,ring,4194304,40\nother,x,y,z,1\n"
    )
    rows = [papers.PaperRow("M1", "must", "a <b> & c", "2x", 2.0, 2.1)]
    text = report.page(plait.load_topology("mist"), results=tmp_path, evidence=rows)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    # Sizes, sizes beside NCCL, what is left, recorded rows, evidence.
    assert tags.seen.count("table") == 5
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text)
    assert '<meta name="viewport" content="width=device-width' in text
    # Wide tables scroll in separate boxes.
    assert text.count('<div class="wide"><table') == 5
    assert "1 of 1 claims of papers that must hold do" in text
    assert ">holds</th>" in text and "<td>yes</td>" in text
    recorded = text.split("Measured bandwidth")[1]
    assert "<td>ring</td>" in recorded and ">31.5</td>" in recorded
    assert "a &lt;b&gt; &amp; c" in text
    assert any(tip.startswith("GPU 0 - GPU 1: 72.5 GB/s") for tip in tags.tips)


def test_the_page_speaks_of_engines_where_they_run() -> None:
    topology = plait.load_topology("hgx-h200")
    text = report.page(topology)
    assert "engine two_shot:" in text and "<code>two_shot(" in text
    masked = topology.without(["nvlink:0-1"])
    assert "engine" not in report.page(masked).split("over time</h2>")[-1]


def test_bad_results_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "text.csv").write_text("bytes,busbw\nmany,fast\n")
    assert results.measurements(tmp_path, "mist", "all_reduce") == {}


def test_results_of_the_gpu_programs(tmp_path: Path) -> None:
    (tmp_path / "gpu.csv").write_text(
        "# machine: HGX H200 x4 (virtual machine), driver 580; date: 2026-11-21\n"
        f"{results.GPU_COLUMNS}\n"
        "all_reduce,4,threads,bf16,1000000,plait,one_shot,10.0,12.0,0\n"
        "all_reduce,4,threads,fp32,1000000,plait,one_shot,20.0,0.000,0\n"
        "all_reduce,4,threads,fp32,1000000,nccl,,0.000,30.0,0\n"
        "all_reduce,4,threads,fp32,1000000,direct:pieces=2,host_permille=0,engine=x,0.0,15.0,0\n"
        "all_reduce,4,threads,fp32,2000000,plait,one_shot,10.0,12.0,7\n"
        "broadcast,4,threads,fp32,1000000,plait,one_shot,10.0,12.0,0\n"
        "all_reduce,four\n"
    )
    found = results.measurements(tmp_path, "hgx-h200", "all_reduce")
    assert found == {
        4: {
            "one_shot (measured)": [(1000000, pytest.approx(150.0))],
            "NCCL (measured)": [(1000000, pytest.approx(50.0))],
            "direct (measured)": [(1000000, pytest.approx(100.0))],
        }
    }
    (tmp_path / "newer.csv").write_text(
        "# machine: HGX H200 x4 (virtual machine); date: 2026-11-22\n"
        f"{results.GPU_COLUMNS},commit\n"
        "all_reduce,4,processes,bf16,1000000,plait one_shot,one_shot,5.0,12.0,0,0a1b2c3\n"
        "all_reduce,4,processes,bf16,2000000,plait one_shot,one_shot,5.0,12.0,3,0a1b2c3\n"
    )
    found = results.measurements(tmp_path, "hgx-h200", "all_reduce")
    assert found[4]["one_shot (measured)"] == [(1000000, pytest.approx(300.0))]
    assert results.measurements(tmp_path, "mist", "all_reduce") == {}


def test_the_measured_node_is_found_in_the_results() -> None:
    folder = Path(__file__).resolve().parents[2] / "bench" / "results"
    found = results.measurements(folder, "hgx-h200", "all_reduce")
    assert {2, 4, 8} <= set(found)
    for ranks, curves in found.items():
        assert "NCCL (measured)" in curves
        assert ranks not in (2, 4, 8) or "one_shot (measured)" in curves
        assert all(0 < speed < 800 for points in curves.values() for _, speed in points)


def test_timeline_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    topology = plait.load_topology("mist")
    plan = plait.propose(topology, plait.Request("all_reduce", 1 << 20, "fp32", "sum", 4))[0][0]
    file = tmp_path / "t.png"
    timeline = plait.simulate(plan, topology)
    timeline_plot.plot(timeline, plan, str(file), lanes=True)
    assert file.read_bytes().startswith(b"\x89PNG")
    for load in timeline.resources:
        times_us, parts = timeline_rows.use_over_time(load, timeline.total_ns)
        assert times_us == sorted(times_us)
        assert max(parts) <= 1 + 1e-9
        carried = sum(
            part * (after - at)
            for at, after, part in zip(times_us, times_us[1:], parts, strict=False)
        )
        assert carried == pytest.approx(load.busy_ns / 1e3, rel=1e-6)


def test_trace_has_a_counter_a_resource() -> None:
    topology = plait.load_topology("mist")
    plan = plait.propose(topology, plait.Request("all_reduce", 1 << 20, "fp32", "sum", 4))[0][0]
    timeline = plait.simulate(plan, topology)
    events = json.loads(timeline.to_trace_json(plan))["traceEvents"]
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert counters == {"lanes at work", *(f"GB/s {load.name}" for load in timeline.resources)}


@pytest.mark.parametrize(
    ("machine", "ranks", "strategy"),
    [("mist", 4, "fold"), ("hgx-h200", 8, "phases"), ("mist-2", 8, "multi_node")],
)
def test_picture_report_and_trace_show_the_same_work_of_every_rank(
    machine: str, ranks: int, strategy: str
) -> None:
    topology = plait.load_topology(machine)
    request = plait.Request("all_reduce", 1 << 20, "fp32", "sum", ranks)
    plan = plait.propose_one(topology, request, strategy)
    timeline = plait.simulate(plan, topology)
    rows = timeline_rows.rank_rows(timeline, plan)
    assert [row.label.split(" (")[0] for row in rows.rows] == [f"rank {r}" for r in range(ranks)]
    assert rows.note == ""
    events = json.loads(timeline.to_trace_json(plan))["traceEvents"]
    lanes = [rank for rank, *_ in plan.lanes]
    for rank, row in enumerate(rows.rows):
        counted = [e for e in events if e["name"] == "lanes at work" and e["pid"] == rank]
        times = row.times_us[1:-1]
        assert [event["ts"] for event in counted] == pytest.approx(times)
        for kind in timeline_rows.WORK:
            parts = [event["args"][kind] / lanes.count(rank) for event in counted]
            assert row.shares[kind][1:-1] == pytest.approx(parts)
            assert min(parts) >= 0 and parts[-1] == 0
    drawn = report.draw_timeline(timeline, plan)
    for row in [*rows.rows, *timeline_rows.resource_rows(timeline).rows]:
        assert f">{html.escape(row.label)}</text>" in drawn


def test_rows_that_are_alike_are_drawn_once_and_named() -> None:
    topology = plait.load_topology("hgx-h200")
    request = plait.Request("all_reduce", 1 << 24, "fp32", "sum", 8)
    plan = plait.propose_one(topology, request, "phases")
    timeline = plait.simulate(plan, topology)
    labels = [row.label for row in timeline_rows.resource_rows(timeline).rows]
    assert [label.split(" (")[0] for label in labels] == [
        "gpu0..7.nvlink.out",
        "gpu0..7.nvlink.in",
        "gpu0..7.memory",
    ]
    lanes = timeline_rows.lane_rows(timeline, plan)
    assert "ranks 1 to 7 are like rank 0" in lanes.note
    assert {name.split()[1] for name, _ in lanes.lanes} == {"0"}
    cut = timeline_rows.lane_rows(timeline, plan, most=1)
    assert cut.note.startswith(f"1 of {len(plan.lanes)} lanes, the first 1 of each rank")
    assert timeline_rows.names_of(["gpu0.x", "gpu2.x"]) == "gpu0,2.x"
    assert timeline_rows.names_of(["nvlink:0>1", "nvlink:1>0"]) == "nvlink:0>1, nvlink:1>0"
    assert "bound by" in repr(timeline) and "phases" in repr(timeline)
    assert repr(request) == "<plait.Request all_reduce of 16777216 fp32 sum, 8 ranks>"


def test_a_report_shows_what_a_call_runs_and_not_the_fastest_plan() -> None:
    topology = plait.load_topology("mist").without(["nvlink:0-1"])
    request = plait.Request("all_reduce", 16 << 20, "fp32", "sum", 4)
    runs = ways.chosen(topology, request)
    taken = what_runs.taken_by_calls(topology, request)
    assert taken is not None and runs.plan == taken
    ranked, _ = plait.ranked(topology, request)
    assert any(one.plan.sum_order != "rank_order" for one in ranked)
    assert runs.plan.sum_order == "rank_order"


def test_lanes_come_by_rank_and_colours_are_explained() -> None:
    topology = plait.load_topology("mist")
    request = plait.Request("all_reduce", 1 << 20, "fp32", "sum", 4)
    plan = plait.propose_one(topology, request, "rerouted")
    timeline = plait.simulate(plan, topology)
    lanes = timeline_rows.spans_by_lane(timeline, plan)
    ranks = [int(name.split()[1]) for name, _ in lanes]
    assert ranks == sorted(ranks)
    drawn = report.draw_timeline(timeline, plan)
    for kind in timeline_rows.COLOURS:
        assert f">{kind}</text>" in drawn
