"""`plait verify --all`: every strategy x topology x rank count x odd size, proved.

Cases are numbered and dealt to worker processes; a case is built and verified, or refused by its
strategy with a reason (refusals are counted apart: they prove nothing).
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import plait

# Counts that break careless cuts: none, one, primes, one off a power of two; and two large ones.
COUNTS = (0, 1, 3, 7, 127, 1009, 65537, 1048573, 16777259)
TYPES = ("fp32", "bf16")
MAX_RANKS = 16


@dataclass(frozen=True)
class Case:
    """One plan to prove."""

    topology: str
    strategy: str
    collective: str
    ranks: int
    count: int
    type: str
    root: int


@dataclass(frozen=True)
class Outcome:
    """What became of a case: findings (none = proved), or the strategy's refusal."""

    case: Case
    findings: list[str]
    refusal: str
    sum_order: str


def rank_counts(topology: plait.Topology) -> list[int]:
    """1..16 ranks, as far as the topology has devices."""
    return list(range(1, min(MAX_RANKS, len(topology.rank_devices())) + 1))


def all_cases(topologies: list[str] | None = None) -> Iterator[Case]:
    """Every case, topology by topology."""
    for name in topologies or plait.shipped_topologies():
        for ranks in rank_counts(plait.load_topology(name)):
            for info in plait.strategies():
                for collective in info.collectives:
                    yield from _counts(name, info.name, collective, ranks)


def _counts(topology: str, strategy: str, collective: str, ranks: int) -> Iterator[Case]:
    for index, count in enumerate(COUNTS):
        # Types alternate over counts: the cuts depend on bytes, so both meet every kind of count.
        plait_type = TYPES[(index + ranks) % len(TYPES)]
        yield Case(topology, strategy, collective, ranks, count, plait_type, count % ranks)


_topologies: dict[str, plait.Topology] = {}


def prove(case: Case) -> Outcome:
    """Builds and verifies one case."""
    topology = _topologies.setdefault(case.topology, plait.load_topology(case.topology))
    peer = (case.root + 1) % case.ranks
    request = plait.Request(
        case.collective, case.count, case.type, "sum", case.ranks, case.root, peer
    )
    try:
        plan = plait.propose_one(topology, request, case.strategy)
    except plait.UnsupportedError as refusal:
        return Outcome(case, [], str(refusal), "")
    except plait.Error as error:
        return Outcome(case, [f"{error.name}: {error}"], "", "")
    report = plait.verify(plan)
    findings = [f"{f.rule} (rank {f.rank}, op {f.op}): {f.sentence}" for f in report.findings]
    return Outcome(case, findings, "", plan.sum_order)


def prove_all(cases: list[Case], workers: int | None = None) -> Iterator[Outcome]:
    """Outcomes in no particular order, from one worker process a core."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers or os.cpu_count() or 1) as pool:
        yield from pool.imap_unordered(prove, cases, chunksize=64)


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Counts by strategy, and every finding."""
    by_strategy: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        row = by_strategy.setdefault(
            outcome.case.strategy, {"proved": 0, "found": 0, "refused": 0, "rank_order": 0}
        )
        kind = "refused" if outcome.refusal else "found" if outcome.findings else "proved"
        row[kind] += 1
        row["rank_order"] += outcome.sum_order == "rank_order" and kind == "proved"
    failures = [
        {"case": vars(outcome.case), "findings": outcome.findings}
        for outcome in outcomes
        if outcome.findings
    ]
    return {
        "cases": len(outcomes),
        "proved": sum(row["proved"] for row in by_strategy.values()),
        "refused": sum(row["refused"] for row in by_strategy.values()),
        "findings": sum(len(failure["findings"]) for failure in failures),
        "strategies": by_strategy,
        "failures": failures,
    }


def dump(result: dict[str, Any]) -> str:
    """The summary as JSON."""
    return json.dumps(result, indent=1)
