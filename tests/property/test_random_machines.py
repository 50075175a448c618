"""Random machines, requests and strategies: every proposed plan is proved, simulated and right.

Hypothesis prints the failing example and the seed; `--hypothesis-seed=N` repeats a run.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import plait
from plait.arrays import DTYPE_OF_TYPE
from plait.bench.oracle import Oracle, poison

COLLECTIVES = sorted({name for info in plait.strategies() for name in info.collectives})
speeds = st.sampled_from([9.0, 22.0, 50.0, 75.0, 390.0])


@st.composite
def machines(draw: st.DrawFn) -> plait.Topology:
    """2-6 GPUs on 1 or 2 sockets; every GPU on PCIe; each pair may have NVLink or not."""
    gpus = draw(st.integers(2, 6))
    sockets = draw(st.integers(1, 2))
    numa = [gpu * sockets // gpus for gpu in range(gpus)]
    devices = [{"name": f"gpu{gpu}", "node": 0, "numa": numa[gpu]} for gpu in range(gpus)]
    devices += [{"name": f"numa{socket}", "node": 0, "numa": socket} for socket in range(sockets)]
    links: list[dict[str, Any]] = []

    def both_ways(kind: str, one: str, other: str, speed: float) -> None:
        links.extend(
            {"kind": kind, "src": src, "dst": dst, "gb_per_s": speed, "latency_ns": 1500}
            for src, dst in ((one, other), (other, one))
        )

    for gpu in range(gpus):
        both_ways("pcie", f"gpu{gpu}", f"numa{numa[gpu]}", draw(st.sampled_from([9.0, 25.0, 55.0])))
        for other in range(gpu):
            if draw(st.booleans()):
                both_ways("nvlink", f"gpu{gpu}", f"gpu{other}", draw(speeds))
    if sockets == 2:
        both_ways("bus", "numa0", "numa1", draw(st.sampled_from([20.0, 64.0])))
    machine = {
        "schema": "plait.topology/1",
        "name": "random",
        "source": "hypothesis",
        "devices": devices,
        "resources": [],
        "links": links,
    }
    return plait.Topology.from_json(json.dumps(machine))


@st.composite
def requests(draw: st.DrawFn, ranks: int) -> plait.Request:
    """Any collective, odd counts, four types, sums (or minima)."""
    root = draw(st.integers(0, ranks - 1))
    return plait.Request(
        draw(st.sampled_from(COLLECTIVES)),
        draw(st.sampled_from([0, 1, 2, 3, 17, 127, 1000, 4099])),
        draw(st.sampled_from(["fp32", "bf16", "int8", "fp64"])),
        draw(st.sampled_from(["sum", "min"])),
        ranks,
        root,
        draw(st.integers(0, ranks - 1).filter(lambda peer: ranks == 1 or peer != root)),
    )


def outputs_of(plan: plait.Plan, oracle: Oracle) -> list[np.ndarray[Any, Any]]:
    """The reference executor's outputs, from poisoned memory."""
    dtype = DTYPE_OF_TYPE[plan.request.type]
    outputs = [
        np.empty(plan.request.output_bytes(rank) // dtype.itemsize, dtype)
        for rank in range(plan.request.ranks)
    ]
    for output in outputs:
        poison(output)
    plait.run_reference(plan, oracle.inputs(), outputs)
    return outputs


@pytest.mark.timeout(600)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_proposal_is_proved_right_and_bitwise_alike(data: st.DataObject) -> None:
    machine = data.draw(machines())
    ranks = data.draw(st.integers(1, len(machine.rank_devices())))
    request = data.draw(requests(ranks))
    oracle = Oracle(request, data.draw(st.integers(0, 99)))
    plans, refusals = plait.propose(machine, request)
    names = {plan.strategy for plan in plans} | {name for name, _ in refusals}
    assert names >= {
        info.name for info in plait.strategies() if request.collective in info.collectives
    }
    bits: bytes | None = None
    for plan in plans:
        report = plait.verify(plan)
        assert report.proved, f"{plan.label}\n{report}"
        outputs = outputs_of(plan, oracle)
        for rank, output in enumerate(outputs):
            assert oracle.wrong(rank, output, bitwise=False) == 0, plan.label
        if plan.sum_order == "rank_order":
            found = b"".join(output.tobytes() for output in outputs)
            assert bits is None or bits == found, plan.label
            bits = found


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_simulation_ends_and_respects_its_bounds(data: st.DataObject) -> None:
    machine = data.draw(machines())
    ranks = data.draw(st.integers(2, len(machine.rank_devices())))
    count = data.draw(st.sampled_from([0, 1000, 1 << 18, 1 << 24]))
    plans, _ = plait.propose(machine, plait.Request("all_reduce", count, "fp32", "sum", ranks))
    for plan in plans:
        timeline = plait.simulate(plan, machine)
        slack = 1 + 1e-9
        assert timeline.total_ns * slack >= timeline.lower_bound_ns, plan.label
        for resource in timeline.resources:
            assert timeline.total_ns * slack >= resource.busy_ns, (plan.label, resource.name)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_values_survive_json(data: st.DataObject) -> None:
    machine = data.draw(machines())
    assert plait.Topology.from_json(machine.to_json()) == machine
    ranks = data.draw(st.integers(1, len(machine.rank_devices())))
    plans, _ = plait.propose(machine, data.draw(requests(ranks)))
    assume(plans)
    plan = plans[0]
    assert plait.Plan.from_json(plan.to_json()) == plan


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["schema", "name", "devices", "links", "lanes", "request", "kind", "x"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
@example([{"schema": "00\x1f\x07\x80"}, {"schema": "00\x1f\x07\x80"}])  # error text cut in UTF-8
def test_parsers_refuse_what_is_no_value(value: Any) -> None:
    for parse in (plait.Topology.from_json, plait.Plan.from_json, plait.Report.from_json):
        with pytest.raises(plait.ParseError):
            parse(json.dumps(value))
