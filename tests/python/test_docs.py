"""Compares strategies and figures in the docs with the library and recorded rows."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import recorded

import plait
from plait import outputs
from plait.bench.nccl import COLLECTIVES

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from bench.programs import memory_table  # noqa: E402

SOURCES = {".py", ".cpp", ".hpp", ".h", ".c", ".cu", ".cuh", ".def"}
SPEC = importlib.util.spec_from_file_location("doc_tables", ROOT / "tools" / "doc_tables.py")
assert SPEC is not None and SPEC.loader is not None
doc_tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(doc_tables)


def test_generated_tables_are_up_to_date():
    pages = {page.name: page.read_text() for page in (ROOT / "docs").glob("*.md")}
    marked = [name for text in pages.values() for _, name, _ in doc_tables.MARKED.findall(text)]
    assert sorted(marked) == sorted(doc_tables.TABLES)
    for name, text in pages.items():
        assert doc_tables.updated(text) == text, f"{name}: run python tools/doc_tables.py"
    stale = pages["errors.md"].replace("peer_lost", "peer_found")
    assert doc_tables.updated(stale) != stale


def test_a_row_of_choices_may_say_how_its_engine_does_it():
    common = {"collective": "all_reduce", "upto_ranks": 16, "ahead_of_nccl": True, "source": "x"}
    common |= {"upto_bytes": "64M"}
    shifted = common | {"engine": "tiled", "params": {"order": 2, "shift": 1}}
    plain = common | {"engine": "two_shot"}
    assert doc_tables.spans_of([shifted, plain], 8) == [
        ["up to 64 MiB", "`tiled` with order=2, shift=1, else `two_shot`", "no slower"]
    ]


def first_row(rows: list[dict[str, Any]], ranks: int, size: int) -> str:
    """Returns the engine of the first row for a call of a collective's rows."""
    for row in rows:
        if ranks <= row["upto_ranks"] and size <= doc_tables.upto(row):
            return doc_tables.engine_of(row)
    raise AssertionError((rows[0]["collective"], ranks, size))


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 16])
def test_the_page_of_choices_says_what_the_first_row_says(ranks):
    rows = doc_tables.used("")[0][1]
    for collective in {row["collective"] for row in rows}:
        about = [row for row in rows if row["collective"] == collective]
        spans = doc_tables.spans_of(about, ranks)
        sizes = [doc_tables.upto(row) for row in about]
        for size in {int(size) for size in sizes if size < 1 << 60} | {1 << 40}:
            inside = [
                engines
                for (low, high), (_, engines, _) in zip(bounds(spans), spans, strict=True)
                if low < size <= high
            ]
            assert [one.split(", else ")[0] for one in inside] == [first_row(about, ranks, size)]


def bounds(spans: list[list[str]]) -> list[tuple[float, float]]:
    """Parses spans of sizes: `up to 2 MiB`, `2 MiB to 96 MiB`, `beyond 96 MiB`."""
    units = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30}
    found = []
    for words, _, _ in spans:
        ends = [int(number) << units[unit] for number, unit in re.findall(r"(\d+) (\w+)", words)]
        low = 0.0 if words.startswith("up to") else ends[0]
        found.append((low, float("inf") if words.startswith("beyond") else ends[-1]))
    return found


def test_the_page_of_devices_says_what_less_memory_costs():
    page = (ROOT / "docs" / "devices_reference.md").read_text()
    table = memory_table.rows()
    assert memory_table.updated(page, table) == page, "run python -m bench memory-table --write"
    stale = page.replace("| 8 | 48M |", "| 8 | 49M |")
    assert memory_table.updated(stale, table) == page


def test_design_pages_have_one_form_and_the_index_lists_them():
    folder = ROOT / "docs" / "design"
    pages = {page.name for page in folder.glob("*.md")} - {"README.md"}
    index = re.findall(r"^\| \[(\w+)\]\((.*)\) \| .* \|$", (folder / "README.md").read_text(), re.M)
    assert [f"{name}.md" for name, _ in index] == [link for _, link in index]
    assert sorted(link for _, link in index) == sorted(pages)
    assert len(pages) <= 16
    for name in pages:
        sections = re.findall(r"^## (.*)$", (folder / name).read_text(), re.M)
        assert sections == ["Now", "Why", "Tried and dropped"], name


def test_links_between_pages_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
    ]
    assert len(links) > 30
    lost = [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()]
    assert lost == []


def test_files_that_pages_name_are_there():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    folders = "src|include|shims|bindings|python|bench|tests|tools|docs|topologies|examples"
    examples = {"src/planner/NAME.cpp", "src/planner/chain.cpp"}
    named = [
        (page, path)
        for page in pages
        if page.name != "CHANGELOG.md"  # what versions held
        for path in re.findall(rf"`((?:{folders})/[\w./*-]+)`", page.read_text())
        + [f"bench/results/{name}" for name in re.findall(r"`(gpu_[\w*]+\.\w+)`", page.read_text())]
        if path not in examples
    ]
    assert len(named) > 60
    lost = [f"{page.name}: {path}" for page, path in named if not any(ROOT.glob(path))]
    assert lost == []


def test_the_page_of_errors_says_what_to_do_about_each():
    page = (ROOT / "docs" / "errors.md").read_text()
    advised = re.findall(r"^\| `(\w+)` \|", page, re.M)
    named = [row["name"] for row in doc_tables.rows("errors.def", "PLAIT_ERROR")]
    assert advised == [name for name in named if name != "ok"]


def test_the_table_of_strategies_names_what_each_does():
    said: dict[str, set[str]] = {}
    for line in (ROOT / "docs" / "strategies.md").read_text().splitlines():
        if found := re.match(r"\| `(\w+)` \| ([^|]*) \|", line):
            words = set(re.findall(r"\w+", found[2])) & set(COLLECTIVES)
            said.setdefault(found[1], set()).update(COLLECTIVES if "all ten" in found[2] else words)
    assert said == {info.name: set(info.collectives) for info in plait.strategies()}


def test_figures_against_nccl_are_those_of_the_recorded_rows():
    """The smallest ratio of a line is the smallest NCCL time / plait time in the file."""
    tables = doc_tables.performance_tables
    lines = tables.against_nccl()[2:]
    assert len(lines) == 8 * len(tables.MACHINES)
    for line in lines:
        title, call, *_, slower = [cell.strip() for cell in line.strip("|").split("|")]
        us: dict[int, dict[str, float]] = {}
        for row in recorded.rows(tables.MACHINES[title]):
            if f"{row['collective']}, {row['type']}" == call:
                us.setdefault(int(row["bytes"]), {})[row["way"].split()[0]] = float(row["graph_us"])
        least = min(by["nccl"] / by["plait"] for by in us.values() if min(by.values()) > 0)
        assert (slower == "none") == (least >= 1), line
        if slower != "none":
            assert f"({least:.2f}" in slower, line


def test_sizes_at_which_nccl_is_faster_are_named_in_runs():
    behind = doc_tables.performance_tables.behind
    assert behind({1 << 10: 2.0, 1 << 20: 1.0}) == "none"
    assert (
        behind({1 << 10: 0.9, 1 << 20: 1.5, 1 << 30: 0.8}) == "1 KiB, from 1 GiB on (0.80 to 0.90)"
    )
    ratios = {1 << 10: 1.1, 1 << 11: 0.95, 1 << 12: 0.95, 1 << 13: 1.2}
    assert behind(ratios) == "2 KiB to 4 KiB (0.95)"


def test_no_advice_to_install_plait_from_an_index():
    """No package index has plait, hence the only ways to install it name a folder or a file."""
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for folder in ("python", "src", "shims", "include", "examples"):
        files += [file for file in (ROOT / folder).rglob("*") if file.suffix in SOURCES]
    assert len(files) > 100
    advised = re.compile(r"pip install ['\"]?plait\b")
    assert [str(file) for file in files if advised.search(file.read_text())] == []


def test_what_a_missing_matplotlib_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if not installed
    with pytest.raises(plait.UnsupportedError, match=r"found none; pip install matplotlib$"):
        outputs.check_picture("a.png", "--plot")
    assert "pip install '.[plot]'" in (ROOT / "README.md").read_text()
