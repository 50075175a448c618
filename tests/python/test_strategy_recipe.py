"""Follows the recipe for a strategy in CONTRIBUTING.md and docs/strategies.md: compiles the example
with a line added in strategies.def, and verifies its plans."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import plait

ROOT = Path(__file__).resolve().parents[2]
PLANNER = ROOT / "src" / "planner"
BUILD = Path(os.environ.get("TEST_BUILD", ROOT / "build" / "dev"))
FOLDERS = ("planner", "verify", "plan", "topo", "driver", "base")  # in link order

PROVES = r"""
#include <cstdio>

#include "plait/error.hpp"
#include "plait/report.hpp"

using namespace plait;

int main() {
  int proved = 0;
  for (const char* machine : {"hgx-h200", "mist", "dgx1v", "local-cpu"})
    for (const int ranks : {1, 2, 3, 4})
      for (const std::uint64_t count : {0ull, 1ull, 1009ull, (1ull << 20) + 3}) {
        const Topology topology = load_topology(machine);
        Request request;
        request.collective = Collective::broadcast;
        request.ranks = ranks;
        request.root = ranks / 2;
        request.count = count;
        try {
          const Report report = verify(propose_one(topology, request, "NAME", {}));
          if (!report.proved()) return std::puts(print(report).c_str()), 1;
        } catch (const Error& error) {
          return std::puts(error.what()), 1;
        }
        ++proved;
      }
  std::printf("%d proved; last: %s\n", proved, strategies().back().name.c_str());
}
"""


def listed() -> list[str]:
    return re.findall(r"^PLAIT_STRATEGY\((\w+)\)", (PLANNER / "strategies.def").read_text(), re.M)


def test_every_file_that_defines_a_strategy_has_its_line():
    defined = {
        name: file.stem
        for file in PLANNER.glob("*.cpp")
        for name in re.findall(r"^const Strategy& (\w+)_strategy\(\) \{", file.read_text(), re.M)
    }
    assert defined == {name: name for name in listed()}
    assert listed() == [info.name for info in plait.strategies()]


def test_the_files_that_the_recipe_names_are_there():
    recipe = re.search(
        r"- A new \*\*strategy\*\*.*?\n- ", (ROOT / "CONTRIBUTING.md").read_text(), re.S
    )
    named = set(re.findall(r"`([\w/]+\.\w+)`", recipe[0]))
    assert "src/planner/strategies.def" in named and "docs/strategies.md" in named
    for name in named - {"src/planner/NAME.cpp"}:
        assert (ROOT / name).is_file(), name


def test_a_strategy_by_the_recipe_compiles_and_is_proved(tmp_path):
    archives = [BUILD / f"libplait_{folder}.a" for folder in FOLDERS]
    if not all(archive.exists() for archive in archives):
        pytest.skip(f"no build in {BUILD}: make install makes one, TEST_BUILD names another")
    page = (ROOT / "docs" / "strategies.md").read_text()
    code = re.search(r"```cpp\n(// (\w+): .*?)```", page, re.S)
    name, folder = code[2], tmp_path / "planner"
    assert f"`PLAIT_STRATEGY({name})` in `src/planner/strategies.def`" in page
    folder.mkdir()
    (folder / f"{name}.cpp").write_text(code[1])
    lines = (PLANNER / "strategies.def").read_text()
    (folder / "strategies.def").write_text(f"{lines}PLAIT_STRATEGY({name})\n")
    (tmp_path / "proves.cpp").write_text(PROVES.replace("NAME", name))
    compiler = os.environ.get("CXX", "g++")
    flags = [
        "-std=c++20",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Wno-restrict",
        "-Wconversion",
        "-Werror",
    ]
    places = [f"-I{tmp_path}", f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}"]
    sources = [folder / f"{name}.cpp", PLANNER / "registry.cpp", tmp_path / "proves.cpp"]
    program = tmp_path / "proves"
    done = subprocess.run(
        [compiler, *flags, *places, *sources, *archives, "-ldl", "-pthread", "-o", program],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"64 proved; last: {name}\n", done.stdout + done.stderr
