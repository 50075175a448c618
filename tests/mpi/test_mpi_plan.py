"""`plait plan` says of calls of MPI what the drop-in does: collectives, types, sizes, settings."""

from __future__ import annotations

import os

import pytest
from mpi_programs import Mpi, compiled, environment, launched, rows

import plait
from plait import entry_points

SETTINGS = {
    "no host memory": (2, {}),
    "defaults": (2, {"PLAIT_MPI_HOST": "1"}),
    "disabled": (2, {"PLAIT_MPI_HOST": "1", "PLAIT_DISABLE": "1"}),
    "every size": (2, {"PLAIT_MPI_HOST": "1", "PLAIT_MIN_BYTES": "0"}),
    "some": (3, {"PLAIT_MPI_HOST": "1", "PLAIT_OPS": "all_gather,all_to_all,gather,reduce"}),
    "some of 1 MiB": (
        *(2,),
        {"PLAIT_MPI_HOST": "1", "PLAIT_OPS": "scatter,all_to_all", "PLAIT_MIN_BYTES": "1M"},
    ),
    "two nodes": (4, {"PLAIT_MPI_HOST": "1", "PLAIT_NODE_SIZE": "2"}),
    "two nodes, some": (
        *(4,),
        {
            "PLAIT_MPI_HOST": "1",
            "PLAIT_NODE_SIZE": "2",
            "PLAIT_MIN_BYTES": "64K",
            "PLAIT_OPS": "all_reduce,all_gather",
        },
    ),
    "nodes of one rank": (2, {"PLAIT_MPI_HOST": "1", "PLAIT_NODE_SIZE": "1"}),
}


GPU_SETTINGS = {
    "defaults": {},
    "host memory too": {"PLAIT_MPI_HOST": "1"},
    "some": {"PLAIT_OPS": "all_gather,all_reduce"},
    "from 1 MiB": {"PLAIT_MIN_BYTES": "1M"},
    "host memory too, of every size": {"PLAIT_MPI_HOST": "1", "PLAIT_MIN_BYTES": "0"},
}


def request_of(name: str, plait_type: str, count: int, ranks: int) -> plait.Request:
    """Returns the request of a call of each_call.cpp."""
    collective = name.removesuffix("_v")
    counts = [count * (part + 1) for part in range(ranks)] if name.endswith("_v") else []
    if collective == "all_to_all" and counts:
        counts = [mine for mine in counts for _ in range(ranks)]
    count = max(counts, default=count)
    return plait.Request(collective, count, plait_type, "sum", ranks, counts=counts)


@pytest.fixture
def each_call(mpi, drop_in, folder, monkeypatch):
    """Runs the calls under the settings; returns each with whether plait served it, and sets the
    settings for this process too."""

    def run(ranks: int, settings: dict[str, str], **more: str) -> list[tuple[str, str, int, bool]]:
        program = compiled(mpi, folder, "each_call", ["each_call.cpp"])
        env = {key: one for key, one in environment(None).items() if not key.startswith("PLAIT_")}
        env |= {"LD_PRELOAD": str(drop_in), **settings, **more}
        found = rows(launched(mpi, ranks, [str(program)], env))
        for variable in [key for key in os.environ if key.startswith("PLAIT_")]:
            monkeypatch.delenv(variable)
        for variable, value in settings.items():
            monkeypatch.setenv(variable, value)
        calls = [words.split() for words in found[0]["calls"].rstrip(";").split(";")]
        return [(name, of, int(count), served == "1") for name, of, count, served in calls]

    return run


def is_native(said: str, mpi: Mpi) -> bool:
    short = "under Open MPI" in said and mpi.name.startswith("openmpi")
    return said.startswith("left to the MPI") or short


@pytest.mark.parametrize("name", SETTINGS)
def test_plan_says_what_serves_each_call(mpi, each_call, name):
    ranks, settings = SETTINGS[name]
    calls, machine = each_call(ranks, settings), plait.local_cpu(ranks)
    serves_none = name in ("no host memory", "disabled", "nodes of one rank")
    assert any(served for *_, served in calls) != serves_none
    for called, plait_type, count, served in calls:
        said = entry_points.under_mpi(machine, request_of(called, plait_type, count, ranks))
        assert is_native(said, mpi) != served, (called, plait_type, count, said)


@pytest.mark.parametrize("name", GPU_SETTINGS)
def test_plan_says_what_serves_each_call_on_device_memory(mpi, each_call, emulated_gpu, name):
    calls = each_call(2, GPU_SETTINGS[name], TEST_LIBCUDA=emulated_gpu)
    machine = plait.load_topology("hgx-h200")
    assert len({served for *_, served in calls}) == 2
    for called, plait_type, count, served in calls:
        said = entry_points.under_mpi(machine, request_of(called, plait_type, count, 2))
        assert is_native(said, mpi) != served, (called, plait_type, count, said)
