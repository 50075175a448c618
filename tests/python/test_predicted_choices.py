"""Tests that `plait plan` chooses the engine with the best prediction on every shipped machine.

Measurements take precedence over predictions if a tuning table has measurements.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import plait
from plait import what_runs

SURE = 1.05
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce")
SIZES = (64 << 10, 4 << 20, 64 << 20, 256 << 20)
# Excluded: several nodes (the library decides, docs/nodes.md) and CPU ranks (no engines).
ONE_NODE = (
    *("a100-pcie-x4", "cardinal", "cedar", "daisy", "delta-ai", "dgx-a100", "dgx1v", "hgx-b200"),
    *("hgx-h200", "l40s-x4", "l40s-x8", "mi300x-x8", "mist", "narval"),
    *("rtx-5090-x2", "rtx-5090-x4", "rtx-pro-6000-x4"),
)
# GPUs and engines: docs/devices.md, docs/nccl.md.
NO_TILES = ("a100-pcie-x4", "daisy", "dgx-a100", "l40s-x4", "narval", "rtx-5090-x2")
NO_KERNELS = ("cedar", "dgx1v", "mi300x-x8", "mist")


def unequal(folder: Path) -> plait.Topology:
    """Writes a topology of four A100 with 2, 4 or 6 NVLinks a pair, without a switch."""
    said = json.loads(plait.load_topology("narval").to_json())
    said["name"] = "unequal"
    for link in said["links"]:
        if link["kind"] == "nvlink":
            ends = {link["src"], link["dst"]}
            links = 6 if ends == {"gpu0", "gpu1"} else 2 if ends == {"gpu0", "gpu2"} else 4
            link["width"], link["gb_per_s"] = links, 24 * links
    file = folder / "unequal.json"
    file.write_text(json.dumps(said))
    return plait.load_topology(str(file))


def requests(machine: plait.Topology) -> Iterator[plait.Request]:
    """Yields requests for all GPUs of the machine, and for two ranks."""
    gpus = len(machine.rank_devices())
    for ranks in sorted({2, gpus} if gpus > 1 else set()):
        for collective in COLLECTIVES:
            for size in SIZES:
                blocks = (
                    ranks if collective in ("all_gather", "reduce_scatter", "all_to_all") else 1
                )
                yield plait.Request(collective, size // 4 // blocks, "fp32", ranks=ranks)


def predicted_us(machine: plait.Topology, request: plait.Request) -> dict[str, float]:
    """Returns us of each engine that takes the request, or of the plan by lanes."""
    found = {runs.engine: runs.predicted_us for runs in what_runs.engines(machine, request)}
    if (taken := what_runs.taken_by_calls(machine, request)) is not None:
        found[what_runs.LANES] = what_runs.by_lanes(machine, taken, "simulated").predicted_us
    return found


@pytest.mark.parametrize("name", [*ONE_NODE, "unequal"])
def test_what_is_chosen_is_as_fast_as_the_best_that_may_run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PLAIT_TUNING", "none")
    machine = unequal(tmp_path) if name == "unequal" else plait.load_topology(name)
    compared = 0
    for request in requests(machine):
        chosen = what_runs.by_engine(machine, request)
        if chosen is not None and chosen.by == "built in":
            assert name == "hgx-h200"  # the only shipped machine of measured GPUs
            continue
        may_run = predicted_us(machine, request)
        took = chosen.predicted_us if chosen is not None else may_run[what_runs.LANES]
        assert took <= SURE * min(may_run.values()), (request, took, may_run)
        compared += 1
    assert compared >= 24 or name == "hgx-h200"


def test_every_shipped_machine_is_among_them():
    shipped = {
        name.rsplit("-", 1)[0] if name[-2:-1] == "-" else name
        for name in plait.shipped_topologies()
    }
    assert shipped - {"local-cpu", "vista"} == set(ONE_NODE)  # vista has a single GPU


@pytest.mark.parametrize("name", [*NO_TILES, *NO_KERNELS])
def test_engines_whose_kernels_such_gpus_do_not_run_are_refused(name):
    machine = plait.load_topology(name)
    models = {one.model for one in machine.devices if one.kind == "gpu"}
    for request in requests(machine):
        refused = dict(plait.engine_refusals(request, machine))
        lacking = (
            {"tiled", "scatter_ring"} if name in NO_TILES else {e.name for e in plait.engines()}
        )
        assert lacking <= set(refused)
        lacks = "GPU of AMD" if name == "mi300x-x8" else "compute capability"
        assert any(lacks in why for why in refused.values())
        assert any(model in why for model in models for why in refused.values())
        chosen = what_runs.by_engine(machine, request)
        assert chosen is None or chosen.engine not in lacking
        whys = plait._core.why_no_plans(machine, request)
        assert ("compute capability 7.0" in whys or "GPU of AMD" in whys) == (name in NO_KERNELS)


def test_an_engine_by_name_that_such_gpus_do_not_run_is_an_error():
    machine = plait.load_topology("narval")
    request = plait.Request("all_reduce", 16 << 20, "fp32", ranks=4)
    with pytest.raises(plait.UnsupportedError, match=r"tiled kernels want 9\.0"):
        what_runs.by_engine(machine, request, "tiled")
