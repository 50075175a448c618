"""The installed package has the files that a wheel may hold, once, and runs on older systems."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

import plait
from plait import elf

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("wheel_check", ROOT / "tools" / "wheel.py")
assert SPEC is not None and SPEC.loader is not None
wheel = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(wheel)


@pytest.fixture(scope="module")
def installed():
    """Returns the folder of the installed plait, and the files installed by the wheel."""
    folder = Path(plait.__file__).parents[1]
    files = importlib.metadata.files("plait") or []
    names = [one.as_posix() for one in files if "__pycache__" not in one.parts]
    by_installer = ("INSTALLER", "REQUESTED", "direct_url.json")
    names = [one for one in names if not one.startswith("..")]
    return folder, [one for one in names if not one.endswith(by_installer)]


def test_it_holds_what_a_wheel_holds(installed):
    _, names = installed
    assert wheel.unexpected(names) == []
    assert sum(Path(name).name.startswith("libplait.so.") for name in names) == 1


def test_its_libraries_load_on_the_systems_of_its_tag(installed):
    if wheel.number_of(os.confstr("CS_GNU_LIBC_VERSION").split()[1]) > (2, 36):
        pytest.skip("built on a system newer than the one that wheels are built on")
    folder, names = installed
    assert wheel.wrong_with(folder, names) == []


def test_what_is_too_new_or_twice_is_found(installed, monkeypatch):
    folder, names = installed
    monkeypatch.setitem(wheel.MOST, "GLIBC", (2, 2, 5))
    library = folder / "plait" / "libplait_nccl.so"
    assert "libplait_nccl.so asks for GLIBC_2.34" in wheel.too_new(library)
    assert wheel.unexpected([*names, "plait/libplait.so.0.1.0"]) == [
        "plait/libplait.so.0.1.0: not expected"
    ]


def test_versions_are_those_that_other_tools_see(tmp_path):
    source = tmp_path / "one.c"
    source.write_text("#include <dlfcn.h>\nvoid *f(void) { return dlopen(0, 2); }\n")
    library = tmp_path / "one.so"
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    shown = subprocess.run(["readelf", "-V", library], check=True, capture_output=True, text=True)
    names = set(re.findall(r"Name: (\S+)", shown.stdout))
    assert elf.versions_needed(library) == names
    assert any(one.startswith("GLIBC_2.") for one in names)
