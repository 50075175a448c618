"""Tests tools/tidy.py: no finding in the tree, and a finding for each breach of the rules."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))  # tidy.py imports words.py from the tool's folder
SPEC = importlib.util.spec_from_file_location("tidy", ROOT / "tools" / "tidy.py")
assert SPEC is not None and SPEC.loader is not None
tidy = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tidy)


def test_the_tree_is_tidy():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "tidy.py")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("folder", "line", "rule"),
    [
        ("planner", '#include "sim/clock.hpp"', "include order"),
        ("verify", '#include "plait/timeline.hpp"', "include order"),
        ("topo", '#include "plan/shots.hpp"', "include order"),
        ("gpu/arena", '#include "gpu/tile/tile_memory.hpp"', "include order"),
        ("gpu/copy", '#include "gpu/host_path/host_reducer.hpp"', "include order"),
        ("gpu/abi", '#include "plait/communicator.hpp"', "include order"),
        ("comm/shm", '#include "comm/node/setup.hpp"', "include order"),
        ("gpu/attic", "", "room"),
        ("gpu", "", "room"),
        ("comm/trace", 'const char* rank = ::secure_getenv("RANK");', "environment"),
        ("plan", "std::vector<int> parts;", "include"),
        ("plan", "class PlanManager {", "name"),
        ("plan", "#ifdef __CUDA_ARCH__", "architecture #if"),
        ("plan", "// " + "x" * 100, "columns"),
        ("plan", "// TO" + "DO: later", "unfinished"),
    ],
)
def test_breaches_are_found(monkeypatch, tmp_path, folder, line, rule):
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    file = tmp_path / "src" / folder / "new.cpp"
    file.parent.mkdir(parents=True)
    file.write_text(f"// What becomes what.\n{line}\n")
    assert [one.split(": ")[1] for one in tidy.check_cpp(file)] == [rule]


def test_folders_of_the_drop_in_under_mpi_have_an_order(monkeypatch, tmp_path):
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    file = tmp_path / "shims" / "mpi" / "requests" / "new.cpp"
    file.parent.mkdir(parents=True)
    for folder, rules in (("staging", []), ("requests", []), ("p2p", ["include order"])):
        file.write_text(f'// What becomes what.\n#include "shims/mpi/{folder}/one.hpp"\n')
        assert [one.split(": ")[1] for one in tidy.check_cpp(file)] == rules


def test_evidence_imports_the_public_api_alone(monkeypatch, tmp_path):
    package = tmp_path / "python" / "plait"
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    monkeypatch.setattr(tidy, "EVIDENCE", package / "evidence")
    (package / "evidence").mkdir(parents=True)
    (package / "__init__.py").write_text('__all__ = ["simulate"]\n')
    file = package / "evidence" / "new.py"
    header = '"""What becomes what."""\n'
    file.write_text(header + "import csv\nfrom plait import simulate\nimport plait.evidence.rows\n")
    assert tidy.check_python(file) == []
    for name in ("_core", "bench.sizes", "outputs"):
        file.write_text(f"{header}import plait.{name}\n")
        assert [one.split(": ")[1] for one in tidy.check_python(file)] == ["import of evidence"]


@pytest.mark.parametrize(
    "rows",
    [
        "base:\nplan: base topo\ntopo: base",  # an arrow back up
        "base:\nplan: topo\ntopo: plan",  # a pair
        "base: base",
        "gpu/abi:\ngpu/ll: gpu/abi gpu/rank\ngpu/rank: gpu/*",
    ],
)
def test_a_room_may_not_include_from_rooms_below(rows):
    with pytest.raises(SystemExit, match="is no room above it"):
        tidy.rooms_of(rows)


def test_rows_name_the_rooms_above():
    rows = tidy.rooms_of("base:\ngpu/abi: base\ngpu/ll: base\n    gpu/abi\ncomm: gpu/*")
    assert rows["gpu/ll"] == {"base", "gpu/abi"}
    assert rows["comm"] == {"gpu/abi", "gpu/ll"}


def test_each_row_is_a_folder():
    wanted = {
        path.parent.relative_to(ROOT / "src").parts[:2] for path in (ROOT / "src").rglob("*.?pp")
    }
    rooms = {tidy.room_of((*parts, "file.cpp")) for parts in wanted}
    assert rooms == set(tidy.MAY_INCLUDE)


def test_the_architecture_page_has_the_rooms_of_the_table():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    for folder in tidy.SPLIT:
        table = page.split(f"Rooms of `src/{folder}`", 1)[1].split("\n\n", 2)[1]
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
        rooms = [f"{folder}/{row[0].strip('`')}" for row in rows]
        assert rooms == [room for room in tidy.MAY_INCLUDE if room.startswith(f"{folder}/")]
        if folder == "gpu":
            for room, (_, _, includes) in zip(rooms, rows, strict=True):
                named = {f"gpu/{name}" for name in includes.replace("`", "").split(", ") if name}
                allowed = {one for one in tidy.MAY_INCLUDE[room] if one.startswith("gpu/")}
                assert named in (allowed, {"gpu/the rooms above"}), room


def test_long_functions_are_found(monkeypatch, tmp_path):
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    file = tmp_path / "src" / "plan" / "new.cpp"
    file.parent.mkdir(parents=True)
    body = "  call();\n" * tidy.FUNCTION_LINES
    file.write_text(f"// What becomes what.\nnamespace plait {{\nint f(int a) {{\n{body}}}\n}}\n")
    assert [one.split(": ")[1] for one in tidy.check_cpp(file)] == ["function length"]
    file.write_text(
        f"// What becomes what.\nnamespace plait {{\nint f(int a) {{\n{body[20:]}}}\n}}\n"
    )
    assert tidy.check_cpp(file) == []


def test_wide_lines_of_pages_are_found_but_for_tables(monkeypatch, tmp_path):
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    page, wide = tmp_path / "page.md", "x" * (tidy.LINE_COLUMNS - 1)
    page.write_text(f"# Page\n| {wide} |\n  | {wide} |\n{wide}x\n{wide}xx\n")
    assert tidy.check_page(page) == ["page.md:5: columns: 101, at most 100"]


def test_types_of_one_name_are_found(monkeypatch, tmp_path):
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    marks, times = tmp_path / "marks.hpp", tmp_path / "times.hpp"
    marks.write_text("namespace plait::cuda {\nstruct Times {\n};\n}  // namespace plait::cuda\n")
    times.write_text(
        "namespace plait {\nclass Times;\nstruct Times::Inner {\n};\n"
        "namespace {\nstruct Own {\n};\n}  // namespace\n"
        "namespace cuda {\nstruct Times : Base {\n};\n}  // namespace cuda\n"
        "struct Own {\n};\n}  // namespace plait\n"
    )
    found = tidy.check_one_definition([marks, times])
    assert found == ["times.hpp:10: one definition: plait::cuda::Times is another in marks.hpp"]


def test_words_counts_pointing_words_and_fragments(tmp_path):
    file = tmp_path / "new.cpp"
    file.write_text(
        "// Sends a chunk to the next rank. What it sends is kept by them.\n"
        '// Of a rank the last chunk. "quoted" text counts as prose.\n'
        'int f() { return g("// no comment"); }  ///< whose flag is raised last\n'
    )
    count = tidy.words.counted(tidy.words.texts_of(file))
    assert (count.words, count.pointing, count.sentences) == (30, 4, 5)  # What, it, them, whose
    assert count.fragments == (
        "What it sends is kept by them.",
        "Of a rank the last chunk.",
        "whose flag is raised last",
    )


def test_words_reports_the_worst_file_first_and_fails_nothing(tmp_path):
    plain, odd = tmp_path / "src" / "a" / "plain.py", tmp_path / "src" / "a" / "odd.py"
    plain.parent.mkdir(parents=True)
    plain.write_text('"""' + "The sender copies a chunk into the inbox. " * 8 + '"""\n')
    odd.write_text('"""' + "What it sends to them there is theirs. " * 8 + '"""\n')
    said = tidy.words.report([plain, odd], tmp_path).splitlines()
    assert said[1].endswith("src/a/")
    assert [line.split()[-1] for line in said if line.endswith(".py")] == [
        "src/a/odd.py",
        "src/a/plain.py",
    ]
    assert "100.0" in next(line for line in said if line.endswith("odd.py"))
