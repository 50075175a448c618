"""What the docs say of strategies and figures, beside the library and the recorded rows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import recorded

import plait
from plait import outputs
from plait.nccl import COLLECTIVES

ROOT = Path(__file__).parents[2]
SOURCES = {".py", ".cpp", ".hpp", ".h", ".c", ".cu", ".cuh", ".def"}


def test_the_table_of_strategies_names_what_each_does():
    said: dict[str, set[str]] = {}
    for line in (ROOT / "docs" / "strategies.md").read_text().splitlines():
        if found := re.match(r"\| `(\w+)` \| ([^|]*) \|", line):
            words = set(re.findall(r"\w+", found[2])) & set(COLLECTIVES)
            said[found[1]] = set(COLLECTIVES) if "all ten" in found[2] else words
    assert said == {info.name: set(info.collectives) for info in plait.strategies()}


def ratios(gpus: int) -> dict[int, float]:
    """NCCL's time over plait's by size: all_reduces of fp32 in graphs."""
    us: dict[int, dict[str, float]] = {}
    for row in recorded.rows(f"gpu_fused_h200x{gpus}.csv"):
        if (row["collective"], row["type"]) == ("all_reduce", "fp32"):
            us.setdefault(int(row["bytes"]), {})[row["way"].split()[0]] = float(row["graph_us"])
    return {size: ways["nccl"] / ways["plait"] for size, ways in us.items()}


@pytest.mark.parametrize(("gpus", "least_bytes"), [(4, 256 << 20), (8, 32 << 20)])
def test_where_the_readme_says_nccl_is_ahead(gpus, least_bytes):
    said = rf"(0\.\d+) to (0\.\d+)[^.]*on {gpus} GPUs[^.]*from\s+{least_bytes >> 20} MiB on"
    low, high = re.search(said, (ROOT / "README.md").read_text()).groups()
    behind = [ratio for size, ratio in ratios(gpus).items() if size >= least_bytes]
    assert (f"{min(behind):.2f}", f"{max(behind):.2f}") == (low, high)
    assert min(ratio for size, ratio in ratios(gpus).items() if size < least_bytes) > 0.99
    assert min(ratios(2).values()) > 1


def test_no_advice_to_install_plait_from_an_index():
    """No package index has plait, so the only ways to install it name a folder or a file."""
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for folder in ("python", "src", "shims", "include", "examples"):
        files += [file for file in (ROOT / folder).rglob("*") if file.suffix in SOURCES]
    assert len(files) > 100
    advised = re.compile(r"pip install ['\"]?plait\b")
    assert [str(file) for file in files if advised.search(file.read_text())] == []


def test_what_a_missing_matplotlib_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    with pytest.raises(plait.UnsupportedError, match=r"found none; pip install matplotlib$"):
        outputs.check_picture("a.png", "--plot")
    assert "pip install '.[plot]'" in (ROOT / "README.md").read_text()
