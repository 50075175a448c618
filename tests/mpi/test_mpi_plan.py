"""`plait plan` says of calls of MPI what the drop-in does: collectives, types, sizes, settings."""

from __future__ import annotations

import os

import pytest
from mpi_programs import compiled, environment, launched, rows

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


def request_of(name: str, plait_type: str, count: int, ranks: int) -> plait.Request:
    """Returns the request of a call of each_call.cpp."""
    collective = name.removesuffix("_v")
    counts = [count * (part + 1) for part in range(ranks)] if name.endswith("_v") else []
    if collective == "all_to_all" and counts:
        counts = [mine for mine in counts for _ in range(ranks)]
    count = max(counts, default=count)
    return plait.Request(collective, count, plait_type, "sum", ranks, counts=counts)


@pytest.mark.parametrize("name", SETTINGS)
def test_plan_says_what_serves_each_call(mpi, drop_in, folder, monkeypatch, name):
    ranks, settings = SETTINGS[name]
    program = compiled(mpi, folder, "each_call", ["each_call.cpp"])
    env = {key: one for key, one in environment(None).items() if not key.startswith("PLAIT_")}
    env |= {"LD_PRELOAD": str(drop_in), **settings}
    found = rows(launched(mpi, ranks, [str(program)], env))
    for variable in [key for key in os.environ if key.startswith("PLAIT_")]:
        monkeypatch.delenv(variable)
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    machine, calls = plait.local_cpu(ranks), found[0]["calls"].rstrip(";").split(";")
    serves_none = name in ("no host memory", "disabled", "nodes of one rank")
    assert any(words.endswith(" 1") for words in calls) != serves_none
    for words in calls:
        called, plait_type, count, served = words.split()
        said = entry_points.under_mpi(machine, request_of(called, plait_type, int(count), ranks))
        is_native = "under Open MPI" in said and mpi.name.startswith("openmpi")
        assert (said.startswith("as above") and not is_native) == (served == "1"), (words, said)
