"""Tools of MPI's profiling interface beside the drop-in."""

import os
import re

import pytest
from mpi_programs import compiled, environment, launched, rows


def test_a_preloaded_tool_sees_the_calls_that_plait_serves(mpi, drop_in, folder):
    run = pytest.importorskip("plait.run")
    program = compiled(mpi, folder, "cases", ["cases.cpp"])
    tool = compiled(mpi, folder, "tool.so", ["tool.cpp"], "-shared", "-fPIC")
    env = environment(None, PLAIT_MPI_HOST="1", PLAIT_OPS="all_reduce", PLAIT_MIN_BYTES="0")
    planned = run.plan([str(program)], "mpi", str(drop_in), env | {"LD_PRELOAD": str(tool)})
    runtime = os.environ.get("SHIM_RUNTIME", "")
    env["LD_PRELOAD"] = f"{runtime} {planned.env['LD_PRELOAD']}".strip()
    done = launched(mpi, 2, [str(program), "corners"], env)
    assert all(row["wrong"] == 0 and row["served"] > 0 for row in rows(done))
    counts = [int(count) for count in re.findall(r"the tool saw (\d+) calls", done.stdout)]
    assert len(counts) == 2 and min(counts) > 0, done.stdout


def test_the_drop_in_comes_before_an_mpi_in_ld_preload():
    run = pytest.importorskip("plait.run")
    behind = run._behind_tools
    assert behind("plait.so", None) == behind("plait.so", "") == "plait.so"
    assert behind("plait.so", "/a/tool.so b.so") == "/a/tool.so:b.so:plait.so"
    assert behind("plait.so", "libpmpi.so.12:libmpi.so") == "plait.so:libpmpi.so.12:libmpi.so"
    assert behind("plait.so", "t.so:/a/libmpi.so.40:c.so") == "t.so:plait.so:/a/libmpi.so.40:c.so"
