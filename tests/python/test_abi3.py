"""Tests the Python module of wheels, built for every CPython from 3.10 on.

The module is the only part of a wheel that differs from the installed package, and builds in
seconds. The libraries are the installed files, checked by test_wheel.py.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import plait
from plait import elf

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "dev"
SPEC = importlib.util.spec_from_file_location("abi3_wheel", ROOT / "tools" / "wheel.py")
assert SPEC is not None and SPEC.loader is not None
wheel = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(wheel)
OLDEST = (3, 10)
pytestmark = pytest.mark.timeout(1200)  # takes minutes if the linked libraries are rebuilt

abi3info = pytest.importorskip("abi3info")
pytest.importorskip("nanobind_backend")


@pytest.fixture(scope="module")
def module() -> Path:
    # The install's own: another version would rebuild everything.
    ninja = str(Path(sys.executable).parent / "ninja")
    if not (BUILD / "build.ninja").exists() or not Path(ninja).exists():
        pytest.skip(f"wanted make install's build in {BUILD} and ninja, found them not")
    made = subprocess.run([ninja, "-C", BUILD, "core_abi3"], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout
    return BUILD / "abi3" / "_core.abi3.so"


def newer_than(oldest: tuple[int, int], names: set[str]) -> list[str]:
    """Returns Python names outside the stable ABI of that version."""
    stable = {symbol.name: one.added for symbol, one in abi3info.FUNCTIONS.items()}
    stable |= {symbol.name: one.added for symbol, one in abi3info.DATAS.items()}
    added = {name: (one.major, one.minor) for name, one in stable.items()}
    asked = [name for name in names if re.match("_?Py", name)]
    return sorted(name for name in asked if added.get(name, (99, 0)) > oldest)


def test_it_asks_for_the_stable_abi_of_the_oldest_python_alone(module):
    names = elf.asked_for(module)
    assert sum(name.startswith("Py") for name in names) > 20
    assert newer_than(OLDEST, names) == []
    assert newer_than((3, 1), names) != []  # the check finds such names
    assert newer_than(OLDEST, {"PyUnicode_KIND", "_PyObject_New", "PyType_GetName"}) != []


def test_modules_show_what_python_calls_alone(module):
    installed = next((Path(plait.__file__).parent).glob("_core.*.so"))
    for one in (module, installed):
        assert elf.exported(one) == {"PyInit__core"}


def test_it_loads_on_the_systems_of_the_wheels_tag(module):
    if wheel.number_of(os.confstr("CS_GNU_LIBC_VERSION").split()[1]) > (2, 36):
        pytest.skip("built on a system newer than the one that wheels are built on")
    assert wheel.too_new(module) == []


def test_what_a_wheel_would_hold_is_small_enough():
    """Excludes device code and the module: both differ here. Packing leaves a third."""
    folder = Path(plait.__file__).parent
    libraries = [
        one for one in folder.rglob("*.so*") if elf.is_elf(one) and "_core" not in one.name
    ]
    host = [one for one in libraries if one.name != "libplait_kernels.so"]
    assert len(host) >= 4
    packed = sum(len(zlib.compress(one.read_bytes())) for one in host)
    assert packed < wheel.MOST_BYTES, [(one.name, one.stat().st_size) for one in host]


def test_metadata_names_the_licences_by_their_files():
    about = importlib.metadata.metadata("plait")
    assert about["License-Expression"] == "Apache-2.0"
    version = tuple(int(part) for part in about["Metadata-Version"].split("."))
    assert version >= (2, 4) and about["License"] is None
    named = about.get_all("License-File")
    files = importlib.metadata.files("plait") or []
    held = {one.as_posix().partition(".dist-info/licenses/")[2] for one in files}
    assert "LICENSE" in named and len(named) > 1 and set(named) <= held


PROGRAM = """
import json, sys
import numpy as np
import plait
comm = plait.init()
total = comm.all_reduce(np.full(1000, comm.rank + 1, np.float32))
plan = plait.ranked(plait.load_topology("mist"), plait.Request("all_reduce", 1 << 20, ranks=4))
said = {"module": plait._core.__file__, "sum": float(total[-1]), "plans": len(plan[0])}
try:
    comm.all_reduce(np.full(3, 1j))
except plait.Error as error:
    said["error"] = type(error).__name__
if comm.rank == 0:
    print(json.dumps(said))
"""


def test_plait_runs_over_it(module, tmp_path):
    folder = tmp_path / "plait"
    skip = shutil.ignore_patterns("_core.*.so", "__pycache__")
    shutil.copytree(Path(plait.__file__).parent, folder, ignore=skip)
    shutil.copy2(module, folder)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "plait", "launch", "-n", "2", "--", sys.executable]
    done = subprocess.run(
        [*command, str(tmp_path / "program.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["module"] == str(folder / "_core.abi3.so")
    assert said["sum"] == 3.0 and said["plans"] > 3
    assert said["error"] == "UnsupportedError"
