"""The drop-in under MPI's list of functions: generated files, exported names, MPI's own header."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mpi_programs import ROOT

SPEC = importlib.util.spec_from_file_location("mpi_functions", ROOT / "tools" / "mpi_functions.py")
assert SPEC is not None and SPEC.loader is not None
mpi_functions = importlib.util.module_from_spec(SPEC)
sys.modules["mpi_functions"] = mpi_functions
SPEC.loader.exec_module(mpi_functions)

FUNCTIONS = mpi_functions.parsed(mpi_functions.LIST.read_text())[1]
HEADER = Path(sys.prefix) / "include" / "mpi_abi.h"  # of MPI 5, in MPICH's wheel


def test_generated_files_equal_the_generators_output():
    for name, text in mpi_functions.generated().items():
        assert (ROOT / name).read_text() == text, f"{name}: run tools/mpi_functions.py"


def test_the_drop_in_exports_the_functions_of_the_list(drop_in):
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", str(drop_in)], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1].split("@")[0] for line in shown.stdout.splitlines()}
    exported = {name for name in exported if name.startswith(("MPI_", "PMPI_", "MPIX_"))}
    wanted = mpi_functions.exported_names(FUNCTIONS)
    assert exported == wanted, exported ^ wanted


def test_a_search_for_a_name_finds_the_function():
    text = "\n".join(
        path.read_text() for path in (ROOT / "shims" / "mpi" / "intercept").glob("*.cpp")
    )
    for name in mpi_functions.exported_names(FUNCTIONS):
        assert text.count(f"\nint {name}(") == 1, name


def test_declarations_equal_those_of_mpis_header():
    if not HEADER.exists():
        pytest.skip(f"no {HEADER}: the test extra installs MPICH")
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    declared = dict(re.findall(r"^int MPI_(\w+)\((.*)\);$", text, re.M))
    compared = 0
    for one in FUNCTIONS:
        for form in mpi_functions.forms_of(one):
            if form.name.endswith("_x"):  # removed in MPI 5
                continue
            theirs = re.sub(r"\s*(\*+)\s*", r"\1 ", declared[form.name])
            wanted = [] if theirs == "void" else mpi_functions.parameters_of(theirs)
            assert [(form.c_type(kind), name) for kind, name in form.listed] == wanted, form.name
            compared += 1
    assert compared > 200
