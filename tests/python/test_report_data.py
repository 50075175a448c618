"""Tests that the report's page shows what predict() and `plait plan` say: sizes, NCCL, links, what
is left to gain."""

from __future__ import annotations

import csv
import html
import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import plait
from plait import by_size, timeline_rows
from plait.commands import report_drawing as drawing
from plait.commands import report_gain as gain
from plait.commands import report_machine as parts
from plait.commands import report_nccl as nccl
from plait.commands import report_page as report
from plait.commands import report_sizes
from plait.commands.report_html import time_text
from plait.evidence import beside_nccl
from plait.outputs import human_bytes
from plait.ways import SIMULATED

MACHINES = sorted(file.stem for file in (Path(__file__).parents[2] / "topologies").glob("*.json"))
NODES = ("cedar-2", "hgx-h200-2", "mist-2")
FEW = (1 << 12, 1 << 20, 1 << 26)


def found_of(machine: str, ranks: int, sizes: tuple[int, ...] = FEW) -> by_size.BySize:
    return by_size.predict(plait.load_topology(machine), "all_reduce", ranks, sizes)


def bench_rows(file: str) -> list[dict[str, str]]:
    lines = (Path(__file__).parents[2] / "bench" / "results" / file).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def tables(text: str) -> list[list[list[str]]]:
    """Returns the words of each cell, by row and table."""
    found = []
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
        cells = [re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL) for row in rows]
        found.append([[html.unescape(re.sub(r"<.*?>", "", c)).strip() for c in r] for r in cells])
    return found


@pytest.mark.parametrize("machine", ["hgx-b200", "mist", "rtx-5090-x4", "hgx-h200-2"])
def test_the_page_has_the_times_of_predict_and_of_plan(machine: str) -> None:
    found = report.gathered(plait.load_topology(machine))
    ranks = found.request.ranks
    same = by_size.predict(found.topology, "all_reduce", ranks, report.SIZES)
    assert found.as_json()["by_size"] == same.as_json()
    head, *rows = tables(report.html_of(found))[0]
    runs = "what would run" if machine == "mist" else "what runs"
    assert head == ["size", runs, "predicted time", "predicted GB/s"]
    assert [row[0] for row in rows] == [human_bytes(size) for size in report.SIZES]
    for row, (size, ways) in zip(rows, same.ways.items(), strict=True):
        assert row[1:3] == [by_size.line_name(ways.running), time_text(ways.running.us)], size
    for size in ("4K", "64M"):
        said = subprocess.run(
            [sys.executable, "-m", "plait.cli", "plan", "all_reduce", "-T", machine, "-b", size],
            capture_output=True,
            text=True,
            timeout=200,
        ).stdout
        bytes_of = {"4K": 1 << 12, "64M": 1 << 26}[size]
        running = same.ways[bytes_of].running
        label = re.escape(same.ways[bytes_of].runs.plan.label)
        assert re.search(rf"^  as +{label}$", said, re.MULTILINE), said
        assert f"  predicted  {running.us:.2f} us" in said


def test_the_picture_has_the_styles_of_simulate_and_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = found_of("hgx-b200", 8)
    lines = report_sizes.lines(found)
    assert [line.name for line in lines] == [*found.lines()]
    assert [line.look for line in lines] == [by_size.style(n) for n in range(len(lines))]
    assert len({by_size.style(n) for n in range(report_sizes.MOST_LINES)}) == 28
    text = report_sizes.section(found)
    assert text.count('<polyline class="runs"') == 2  # wide and narrow
    for line in lines:
        assert f"</svg> {line.name}</li>" in text
        if line.look.dashes:
            dashes = " ".join(map(str, line.look.dashes))
            assert f'stroke-dasharray="{dashes}"' in text
    refused = {name for name, _ in found.ways[FEW[0]].refusals}
    said = text.split("Left out: ")[1]
    assert all(name in said for name in refused - {line.name for line in lines})
    ticks = re.findall(r">(\d+ [KMG]iB)</text>", text)
    assert ticks[0] == "4 KiB" and "16 MiB" in ticks

    monkeypatch.setattr(report_sizes, "MOST_LINES", 3)
    few = report_sizes.lines(found)
    runs = {by_size.line_name(ways.running) for ways in found.ways.values()}
    assert len(few) == 3 and runs <= {line.name for line in few}
    said = report_sizes.left_out(found, few)
    for name in {line.name for line in lines} - {line.name for line in few}:
        assert name in said.split("Without a line")[1]


def test_recorded_rows_of_such_gpus_stand_beside_nccl() -> None:
    found = found_of("hgx-h200", 8)
    known = nccl.compare(found)
    assert known.kind == nccl.ALIKE
    recorded = [
        row for row in bench_rows("gpu_run_table_h200x8.csv") if row["collective"] == "all_reduce"
    ]
    for size, row in known.rows.items():
        of_size = [one for one in recorded if (one["type"], one["bytes"]) == ("fp32", str(size))]
        times = {one["way"].split()[0]: float(one["graph_us"]) for one in of_size}
        assert times == {"plait": row.plait_us, "nccl": row.nccl_us}
    assert "gpu_run_table_h200x8.csv" in known.source and "NCCL 2.28.9" in known.source
    assert {*known.fewer} == {2, 4}
    head, *rows = tables(nccl.section(found, known))[0]
    assert head[:3] == ["size", "NCCL, measured", "plait, measured"]
    for row, (size, times) in zip(rows, known.rows.items(), strict=True):
        assert row[:3] == [human_bytes(size), time_text(times.nccl_us), time_text(times.plait_us)]
    # GPUs without an NVSwitch are others, even of the same model.
    assert not beside_nccl.recorded(plait.load_topology("cardinal"), 4)
    assert not beside_nccl.recorded(plait.load_topology("hgx-b200"), 8)


def test_predicted_times_beside_nccl_say_so_and_unknown_ones_are_one_sentence() -> None:
    b200 = nccl.compare(found_of("hgx-b200", 8, (1 << 20, 1 << 28)))
    assert b200.kind == nccl.PREDICTED and [*b200.rows] == [1 << 28]
    between = found_of("hgx-h200-2", 16)
    known = nccl.compare(between)
    assert known.itself and not known.rows
    assert "run NCCL itself" in nccl.section(between, known)
    pcie = found_of("rtx-5090-x4", 4)
    known = nccl.compare(pcie)
    text = nccl.section(pcie, known)
    assert not known.kind and "<table" not in text
    assert "<code>plait tune</code>" in text and "--against nccl" in text
    assert "leaves calls to NCCL: plait was not measured beside NCCL on 4 of NVIDIA" in text
    cpus = found_of("local-cpu", 2)
    assert "NCCL does not run on CPUs" in nccl.section(cpus, nccl.compare(cpus))


def test_a_table_of_this_machine_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = {
        **{"collective": "all_reduce", "from_ranks": 8, "upto_ranks": 8, "type": "fp32"},
        **{"when": "overlap_compute", "upto_bytes": "8M", "engine": "tiled"},
        **{"us": 50.0, "nccl_us": 75.0, "ahead_of_nccl": True, "source": "plait tune"},
    }
    others = [{**row, "collective": "all_gather"}, {**row, "upto_ranks": 4, "from_ranks": 2}]
    gpu = {"model": "x", "multiprocessors": 1, "links": ["x"], "upto_ranks": 8}
    table = {"schema": "plait.tuning/4", "name": "here", "gpu": gpu, "nccl": "2.28.9"}
    table |= {"date": "2026-11-29T10:00:00", "rows": [*others, row]}
    file = tmp_path / "t.json"
    file.write_text(json.dumps(table))
    file.chmod(0o600)
    monkeypatch.setenv("PLAIT_TUNING", str(file))
    found = found_of("hgx-h200", 8)
    known = nccl.compare(found)
    assert known.kind == nccl.HERE
    times = {size: (row.plait_us, row.nccl_us) for size, row in known.rows.items()}
    assert times == {8 << 20: (50.0, 75.0)}
    assert str(file) in nccl.section(found, known)


@pytest.mark.parametrize("machine", [*MACHINES, *NODES])
def test_every_link_that_a_call_uses_is_drawn(machine: str) -> None:
    topology = plait.load_topology(machine)
    ranks = min(len(topology.rank_devices()), 8)
    found = by_size.predict(topology, "all_reduce", ranks, (1 << 26,))
    timeline = plait.simulate(found.ways[1 << 26].runs.plan, topology)
    shares = parts.shares(timeline)
    for load in timeline.resources:
        if load.bytes:
            assert shares[load.name] == pytest.approx(load.busy_ns / timeline.total_ns)
    nodes = parts.nodes(topology, ranks)
    drawn = {name for node in nodes for edge in node.edges for name in edge.names}
    drawn |= {name for node in nodes for box in node.boxes.values() for name in box.names}
    missing = {name for name in shares if name not in drawn}
    assert not {name for name in missing if not re.search(r"memory|spine|dram", name)}
    used = {key: part for node in nodes for key, part in parts.use_of(node, shares).items()}
    assert used and all(0 < part <= 100 for part in used.values())
    picture = drawing.draw(nodes[:2], used)
    shown = dict(re.findall(r'<text class="share[^>]*data-use="([^"]+)"[^>]*>(\d+) %<', picture))
    on_wide = {key for node in nodes[:2] for key in parts.use_of(node, shares)}
    ranks_of = {box.key for node in nodes for box in node.in_layer("rank")}
    assert {*shown} == on_wide - ranks_of
    assert all(used[key] == int(part) for key, part in shown.items())


@pytest.mark.parametrize("machine", [*MACHINES, *NODES])
def test_boxes_of_the_machine_do_not_overlap(machine: str) -> None:
    topology = plait.load_topology(machine)
    for node in parts.nodes(topology, min(len(topology.rank_devices()), 16)):
        for layer in drawing.ORDER:
            boxes = sorted(node.in_layer(layer), key=lambda box: box.u)
            for one, two in pairwise(boxes):
                assert one.u + one.width / 2 < two.u - two.width / 2, (layer, one, two)
            assert all(box.u - box.width / 2 >= 0 for box in boxes)
            assert all(box.u + box.width / 2 <= node.cells for box in boxes)
    assert len(parts.nodes(plait.load_topology("mist-4"), 16)) == 4


@pytest.mark.parametrize("machine", ["hgx-h200", "mist", "mist-2"])
def test_the_script_has_the_use_of_each_size(machine: str) -> None:
    found = report.gathered(plait.load_topology(machine))
    text = report.html_of(found)
    data = json.loads(
        re.findall(r'<script type="application/json" id="use">(.*?)</script>', text)[0]
    )
    assert [int(size) for size in data] == [*report.SIZES]
    assert [int(v) for v in re.findall(r'name="size" value="(\d+)"', text)] == [*report.SIZES]
    nodes = parts.nodes(found.topology, found.request.ranks)
    for size in report.SIZES:
        timeline = plait.simulate(found.found.ways[size].runs.plan, found.topology)
        shares = parts.shares(timeline)
        wanted = {k: p for node in nodes[:2] for k, p in parts.use_of(node, shares).items()}
        assert data[str(size)]["use"] == wanted
        assert data[str(size)]["title"].endswith(
            f", {time_text(found.found.ways[size].running.us)} predicted"
        )
    # The page without a script shows the same at the size that is picked.
    picked = re.findall(r'value="(\d+)" checked', text)
    assert picked == [str(64 << 20)] and data[picked[0]]["said"] in html.unescape(text)


@pytest.mark.parametrize("machine", ["hgx-b200", "mist"])
def test_what_is_left_to_gain_is_beside_the_bound_and_the_fastest(machine: str) -> None:
    topology = plait.load_topology(machine)
    found = report.gathered(topology)
    rows = gain.gains(found.found, found.timelines, found.beside_nccl)
    head, *shown = tables(gain.section(found.found, rows))[0]
    assert head[2] == "call, predicted"
    assert ("a faster way by name" in head[3]) == any(row.speedup for row in rows)
    for row, cells in zip(rows, shown, strict=True):
        request = found.found.ways[row.size].runs.plan.request
        bound_us = plait._core.lower_bound_ns(request, topology) / 1e3
        assert row.floor_us == pytest.approx(bound_us)
        assert 0 < row.floor_us <= row.us and row.fastest.us <= row.us
        assert row.fastest.may != SIMULATED
        assert cells[:3] == [human_bytes(row.size), time_text(bound_us), time_text(row.us)]
        assert f"{100 * bound_us / row.us:.0f} %" in cells[3]
        assert (f"{row.fastest.name}: " in cells[3]) == (row.fastest.us * 1.02 < row.us)


def test_ways_of_the_simulator_alone_are_no_gain_between_nodes() -> None:
    found = found_of("hgx-h200-2", 16, (1 << 10, 1 << 28))
    timelines = {
        size: plait.simulate(ways.runs.plan, found.machine) for size, ways in found.ways.items()
    }
    small, large = gain.gains(found, timelines, nccl.compare(found))
    simulated = by_size.fastest(found.ways[1 << 10])
    assert simulated.may == SIMULATED
    assert small.fastest.may != SIMULATED and small.fastest.us > simulated.us
    assert large.fastest.name == "library" and large.us > large.floor_us
    said = report_sizes.left_out(found, report_sizes.lines(found))
    assert "recursive_doubling" in said.split("In simulation alone")[1]


def test_the_opening_is_one_sentence_with_the_best_known_comparison() -> None:
    measured = report.opening(report.gathered(plait.load_topology("hgx-h200")))
    assert measured.startswith(
        "On 8 NVIDIA H200 a sum over all ranks (all_reduce) of 1 KiB takes 3.26 us, and of 1 GiB"
    )
    assert measured.endswith("measured on such GPUs.") and "times as fast as NCCL" in measured
    unknown = report.opening(report.gathered(plait.load_topology("rtx-5090-x4")))
    assert unknown.endswith("how fast NCCL is here is not known.")
    old = report.opening(report.gathered(plait.load_topology("mist")))
    assert old.startswith("plait does not run on 4 Tesla V100")
    assert "all that follows is what the simulator predicts" in old
    for said in (measured, unknown, old):
        assert not re.search(r"\.\s", said)


def tiles_of(found: report.ReportData) -> list[str]:
    cells = re.findall(r"<li><b>(.*?)</b><span>(.*?)</span></li>", report.html_of(found))
    return [html.unescape(" ".join(cell)) for cell in cells]


def test_measured_times_are_the_opening_s_the_cards_and_what_is_left() -> None:
    found = report.gathered(plait.load_topology("hgx-h200"))
    rows = gain.gains(found.found, found.timelines, found.beside_nccl)
    assert {row.kind for row in rows} == {nccl.ALIKE}
    head, *shown = tables(gain.section(found.found, rows))[0]
    assert head[2:] == ["call, measured", "least time / call"]
    measured = found.beside_nccl.rows
    assert [row[2] for row in shown] == [time_text(measured[r.size].plait_us) for r in rows]
    assert any(row.us != row.predicted_us for row in rows)
    last = 1 << 30
    assert f"of 1 GiB {time_text(measured[last].plait_us)}" in report.opening(found)
    share = 100 * found.timelines[last].lower_bound_ns / 1e3 / measured[last].plait_us
    *_, left = tiles_of(found)
    assert left == f"{share:.0f} % of what the links allow, at 1 GiB, measured on such GPUs"


def test_a_time_that_this_machine_s_table_lacks_is_marked_as_predicted() -> None:
    found = report.gathered(plait.load_topology("hgx-h200"))
    rows = {size: row for size, row in found.beside_nccl.rows.items() if size == 4 << 20}
    part = replace(found, beside_nccl=nccl.Comparison(nccl.HERE, rows, "a table"))
    first = time_text(found.found.ways[1 << 10].running.us)
    assert f"of 1 KiB takes {first} (predicted), and" in report.opening(part)
    small, large, beside, _left = tiles_of(part)
    assert small.endswith(nccl.PREDICTED) and large.endswith(nccl.PREDICTED)
    assert beside.endswith("as fast as NCCL at 4 MiB, measured here")
    gains = gain.gains(part.found, part.timelines, part.beside_nccl)
    text = gain.section(part.found, gains)
    assert "measured here at 4 MiB, as beside NCCL, and predicted at the other sizes" in text
    head, *shown = tables(text)[0]
    assert head[2] == "call"
    for row, cells in zip(gains, shown, strict=True):
        kind = "measured" if row.size == 4 << 20 else "predicted"
        assert cells[2] == f"{time_text(row.us)} {kind}"


def test_the_first_screen_says_what_plait_run_serves() -> None:
    def said(machine: str) -> str:
        found = found_of(machine, 8 if machine == "hgx-h200" else 4, (1 << 10, 1 << 20, 1 << 26))
        return nccl.under_plait_run(found, nccl.compare(found))

    assert said("hgx-h200").startswith(
        "`plait run` serves a program's calls of NCCL by plait up to 1 MiB, and leaves other"
    )
    assert said("rtx-5090-x4") == (
        "`plait run` leaves calls of all sizes to NCCL: "
        "plait was not measured beside NCCL on 4 of NVIDIA GeForce RTX 5090."
    )
    assert said("mist") == "`plait run` leaves calls of all sizes to NCCL."
    assert said("local-cpu") == said("mi300x-x8") == ""
    header = report.page(plait.load_topology("rtx-5090-x4")).split("</header>")[0]
    assert "<code>plait run</code> leaves calls of all sizes to NCCL" in header


def test_a_machine_without_kernels_of_plait_has_one_reason_and_no_card_beside_nccl() -> None:
    found = report.gathered(plait.load_topology("mist-2"))
    text = report.html_of(found)
    assert text.count(found.runs.why_not.split(",")[0]) == 1 and "grants no direct" not in text
    assert not any("NCCL" in tile for tile in tiles_of(found))
    assert "What a call of each size would run</h2>" in text
    before = text.split("<table")[0]
    assert "<code>library</code> is NCCL itself" in before


def test_resources_have_words() -> None:
    topology = plait.load_topology("hgx-h200")
    names = [resource.name for resource in topology.resources]
    assert all(parts.in_words(name) != name for name in names)
    assert parts.in_words("gpu3.nvlink.in") == "NVLink into GPU 3"
    together = timeline_rows.names_of([f"gpu{rank}.nvlink.out" for rank in range(8)])
    assert parts.in_words(together) == "NVLink out of GPUs 0 to 7"
