"""`plait verify --all`: every strategy x topology x rank count x odd size, and engines' calls.

Worker processes build and verify numbered cases. A strategy or engine may refuse a case with a
reason; refusals are counted separately, since a refusal proves nothing. Engines' cases come from
the core (src/gpu/select/engine_cases.hpp) and need no topology.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

import plait
from plait._core import Finding, engine_case_count, prove_engine_case, takes_counts
from plait.bench.sizes import BLOCKS, SHAPES, counts_for
from plait.finding_groups import groups
from plait.launch import without_interrupts
from plait.planning import load

# Counts that break wrong cuts: 0, 1, primes, one off a power of two; and two large counts.
COUNTS = (0, 1, 3, 7, 127, 1009, 65537, 1048573, 16777259)
TYPES = ("fp32", "bf16")
MAX_RANKS = 16


@dataclass(frozen=True)
class ProofCase:
    """A plan to prove."""

    topology: str
    strategy: str
    collective: str
    ranks: int
    count: int
    type: str
    root: int
    counts: str = ""  # a shape of sizes.SHAPES; "" = blocks of one size


@dataclass(frozen=True)
class EngineCallCase:
    """One or more consecutive engine calls, by number in the core."""

    number: int
    engine: str = ""
    label: str = ""


@dataclass(frozen=True)
class ProofOutcome:
    """Result of a case: findings (none = proved), or the reason of a refusal."""

    case: ProofCase | EngineCallCase
    findings: list[str]
    refusal: str
    sum_order: str


def rank_counts(topology: plait.Topology) -> list[int]:
    """Returns 1..16, limited by the topology's devices."""
    return list(range(1, min(MAX_RANKS, len(topology.rank_devices())) + 1))


def all_cases(topologies: list[str] | None = None) -> Iterator[ProofCase]:
    """Yields all plan cases, topology by topology."""
    for name in topologies or plait.shipped_topologies():
        for ranks in rank_counts(plait.load_topology(name)):
            for info in plait.strategies():
                for collective in info.collectives:
                    yield from _counts(name, info.name, collective, ranks)


def _counts(topology: str, strategy: str, collective: str, ranks: int) -> Iterator[ProofCase]:
    for index, count in enumerate(COUNTS):
        # Types alternate over counts, so that both occur with every kind of count.
        plait_type = TYPES[(index + ranks) % len(TYPES)]
        yield ProofCase(topology, strategy, collective, ranks, count, plait_type, count % ranks)
        if ranks == 1 or collective not in BLOCKS or not takes_counts(strategy):
            continue
        for shape in SHAPES[1:]:
            case = (topology, strategy, collective, ranks, count, plait_type, count % ranks)
            yield ProofCase(*case, shape)


def engine_cases() -> list[EngineCallCase]:
    """Returns all engine cases; prove() fills in the labels."""
    return [EngineCallCase(number) for number in range(engine_case_count())]


_topologies: dict[str, plait.Topology] = {}


def _texts(findings: list[Finding]) -> list[str]:
    return [str(finding) for finding in findings]


def prove(case: ProofCase | EngineCallCase) -> ProofOutcome:
    """Builds and verifies a case; returns the outcome."""
    if isinstance(case, EngineCallCase):
        proof = prove_engine_case(case.number)
        case = EngineCallCase(case.number, proof.engine, proof.label)
        return ProofOutcome(case, _texts(proof.findings), proof.refusal, "")
    topology = _topologies.setdefault(case.topology, plait.load_topology(case.topology))
    peer = (case.root + 1) % case.ranks
    counts = []
    if case.counts:
        counts = counts_for(case.counts, case.collective, case.count, case.ranks)
    request = plait.Request(
        *(case.collective, case.count, case.type, "sum", case.ranks, case.root, peer),
        counts=counts,
    )
    try:
        plan = plait.propose_one(topology, request, case.strategy)
    except plait.UnsupportedError as refusal:
        return ProofOutcome(case, [], str(refusal), "")
    except plait.Error as error:
        return ProofOutcome(case, [f"{error.name}: {error}"], "", "")
    report = plait.verify(plan)
    return ProofOutcome(case, _texts(report.findings), "", plan.sum_order)


def _load(files: list[str]) -> None:
    for file in files:
        load(file)


def prove_all(
    cases: list[ProofCase | EngineCallCase], workers: int | None = None, loaded: Sequence[str] = ()
) -> Iterator[ProofOutcome]:
    """Yields outcomes in any order, from a worker process per core.

    loaded: Python files that register strategies of the cases.
    """
    context = multiprocessing.get_context("spawn")
    processes = workers or os.cpu_count() or 1
    resource_tracker.ensure_running()  # else the pool starts the tracker and unblocks SIGINT
    with without_interrupts():
        pool = context.Pool(processes, initializer=_load, initargs=(list(loaded),))
    with pool:
        yield from pool.imap_unordered(prove, cases, chunksize=64)


def _kind(outcome: ProofOutcome) -> str:
    return "refused" if outcome.refusal else "found" if outcome.findings else "proved"


def summary(outcomes: list[ProofOutcome]) -> dict[str, Any]:
    """Returns counts by strategy and engine, all findings, and groups of them."""
    by_strategy: dict[str, dict[str, int]] = {}
    by_engine: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        kind = _kind(outcome)
        if isinstance(outcome.case, EngineCallCase):
            zeros = {"proved": 0, "found": 0, "refused": 0}
            by_engine.setdefault(outcome.case.engine, zeros)[kind] += 1
            continue
        row = by_strategy.setdefault(
            outcome.case.strategy, {"proved": 0, "found": 0, "refused": 0, "rank_order": 0}
        )
        row[kind] += 1
        row["rank_order"] += outcome.sum_order == "rank_order" and kind == "proved"
    rows = [*by_strategy.values(), *by_engine.values()]
    failures = [
        {"case": vars(outcome.case), "findings": outcome.findings}
        for outcome in outcomes
        if outcome.findings
    ]
    most_ranks: dict[str, int] = {}
    for outcome in outcomes:
        if isinstance(outcome.case, ProofCase):
            name = outcome.case.strategy
            most_ranks[name] = max(most_ranks.get(name, 0), outcome.case.ranks)
    return {
        "cases": len(outcomes),
        "proved": sum(row["proved"] for row in rows),
        "refused": sum(row["refused"] for row in rows),
        "findings": sum(len(failure["findings"]) for failure in failures),
        "strategies": by_strategy,
        "engines": by_engine,
        "failures": failures,
        "groups": groups(failures, most_ranks),
    }


def dump(result: dict[str, Any]) -> str:
    """Returns the summary as JSON."""
    return json.dumps(result, indent=1)
