"""Compares the steps and bytes in docs/strategies.md with plans that are emulated and counted."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

import plait

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| ([a-z_, ]+) \| ([^|]+) \| ([^|]+) \| [^|]*α[^|]*β \|$", re.M)
WHOLE = {"chunks": 1, "lanes": 1, "pieces": 1, "segments": 1, "push": 1}  # one piece, no shares
SHARES = {"host_permille": 0, "relay_permille": 0, "host_cpu_permille": 0}
PER_RANK = 1 << 14
Span = tuple[int, int, int]  # begin, end, steps behind it


def with_context() -> list[tuple[str, str, str, str]]:
    return [
        (name, collective, steps, sent)
        for name, collectives, steps, sent in ROW.findall(PAGE)
        for collective in collectives.split(", ")
    ]


def value(formula: str, n: int) -> float:
    """Evaluates `2(n-1)/n` or `2 log2 n` for n ranks."""
    words = formula.replace("log2 n", "log2(n)")
    words = re.sub(r"\b(\d+) ?(?=\(|log)", r"\1*", words)
    return float(eval(words, {"n": n, "log2": math.log2, "min": min}))


class PlanWalk:
    """Runs a plan's lanes as far as waits allow, and counts the steps behind each datum."""

    def __init__(self, plan: plait.Plan) -> None:
        self.lanes = [lane["ops"] for lane in json.loads(plan.to_json())["lanes"]]
        self.memory: dict[tuple[str, int], list[Span]] = {}
        self.sent: dict[int, int] = {}
        self.steps = 0
        raised: dict[tuple[int, ...], int] = {}
        done = [0] * len(self.lanes)
        moving = True
        while moving:
            moving = False
            for lane, ops in enumerate(self.lanes):
                while done[lane] < len(ops) and self.runs(ops[done[lane]], raised):
                    done[lane] += 1
                    moving = True
        assert done == [len(ops) for ops in self.lanes]

    def runs(self, op: dict, raised: dict[tuple[int, ...], int]) -> bool:
        if op["op"] == "wait":
            return raised.get(tuple(op["flag"]), 0) >= op["value"]
        if op["op"] == "signal":
            raised[tuple(op["flag"])] = op["value"]
            return True
        behind = max(self.read(*source) for source in op["srcs"])
        if op["op"] == "copy" and op["path"] >= 0:
            behind += 1
            space, place, _, size = op["srcs"][0]
            if space != "ring":  # host memory is no rank's port
                self.sent[place] = self.sent.get(place, 0) + size
        self.write(op["dst"], behind)
        self.steps = max(self.steps, behind)
        return True

    def read(self, space: str, place: int, begin: int, size: int) -> int:
        spans = self.memory.get((space, place), [])
        return max((steps for b, e, steps in spans if b < begin + size and begin < e), default=0)

    def write(self, region: tuple[str, int, int, int], steps: int) -> None:
        space, place, begin, size = region
        end, kept = begin + size, []
        for b, e, before in self.memory.get((space, place), []):
            kept += [(b, min(e, begin), before)] if b < begin else []
            kept += [(max(b, end), e, before)] if e > end else []
        self.memory[(space, place)] = [*kept, (begin, end, steps)]


def plan_of(name: str, collective: str, ranks: int) -> plait.Plan:
    """Returns a plan in one piece over direct links."""
    machine = plait.load_topology("dgx1v" if name == "hierarchical" else "hgx-h200")
    of_all = collective in ("all_reduce", "broadcast", "reduce", "send_recv", "copy")
    count = PER_RANK * (ranks if of_all else 1)
    request = plait.Request(collective, count, "fp32", "sum", ranks, 0, 1)
    usual = json.loads(plait.propose_one(machine, request, name).to_json())["params"]
    params = {key: WHOLE[key] for key in usual if key in WHOLE} | {
        key: 0 for key in usual if key in SHARES
    }
    return plait.propose_one(machine, request, name, params)


def test_every_strategy_has_its_rows():
    said = {(name, collective) for name, collective, _, _ in with_context()}
    does = {(info.name, what) for info in plait.strategies() for what in info.collectives}
    elsewhere = {"rerouted", "multi_node", "leaders", "node_order", "library"}
    assert said == {pair for pair in does if pair[0] not in elsewhere}


@pytest.mark.parametrize(("name", "collective", "steps", "sent"), with_context())
def test_steps_and_bytes_are_those_of_the_plan(name, collective, steps, sent):
    compared = 0
    for ranks in {"pairwise": (2,), "hierarchical": (8,), "striped": (2,)}.get(name, (2, 4, 8)):
        walked = PlanWalk(plan_of(name, collective, ranks))
        assert walked.steps == value(steps, ranks), ranks
        message = PER_RANK * 4 * ranks
        assert max(walked.sent.values()) == pytest.approx(value(sent, ranks) * message, rel=0.01)
        compared += 1
    assert compared
