"""The HTML page: well-formed, self-contained, with every section; and the picture of a timeline."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import plait
from plait import papers, report, timeline_plot

VOID = {"meta", "line", "circle", "rect", "polyline"}


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
    rows = [papers.Row("M1", "must", "a <b> & c", "2x", 2.0, 2.1)]
    text = report.page(plait.load_topology("mist"), results=tmp_path, evidence=rows)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.seen.count("svg") == 3
    assert tags.seen.count("table") == 1
    assert not re.search(r"(src|href)=|https?://|@import", text)
    assert "ring (measured)" in text
    assert "a &lt;b&gt; &amp; c" in text
    assert any(tip.startswith("nvlink 0 - 1: 72.5 GB/s") for tip in tags.tips)


def test_bad_results_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "text.csv").write_text("bytes,busbw\nmany,fast\n")
    measured = report.measurements(tmp_path, "mist", "all_reduce")
    assert all(points == [] for points in measured.values())


def test_timeline_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    topology = plait.load_topology("mist")
    plan = plait.propose(topology, plait.Request("all_reduce", 1 << 20, "fp32", "sum", 4))[0][0]
    file = tmp_path / "t.png"
    timeline_plot.plot(plait.simulate(plan, topology), plan, str(file))
    assert file.read_bytes().startswith(b"\x89PNG")
