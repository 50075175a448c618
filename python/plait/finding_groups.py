"""Groups the failed cases of `plait verify --all`: one group for each kind of finding of a strategy
or engine, with the types, numbers of ranks and machines on which the finding occurs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

_EXPRESSION = re.compile(r"\([()\d+ ]*\)")  # of a sum: ((0+1)+2)
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
MOST_NAMES = 3


def groups(
    failures: Sequence[Mapping[str, Any]], most_ranks: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Returns {what, where, cases, example, finding} of each group, the largest first.

    failures: {case, findings}; most_ranks: the most ranks of the cases of each strategy.
    """
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for failure in failures:
        case = failure["case"]
        name = case.get("strategy") or case["engine"]
        found[name, case.get("collective", ""), _kind(failure["findings"][0])].append(failure)
    made = []
    for (name, collective, _), members in found.items():
        cases = [member["case"] for member in members]
        first = min(members, key=lambda member: _size(member["case"]))
        made.append(
            {
                "what": f"{name}, {collective}" if collective else f"engine {name}",
                "where": _where(cases, most_ranks.get(name, 0)) if collective else "",
                "cases": len(members),
                "example": _case_text(first["case"]),
                "finding": first["findings"][0],
            }
        )
    return sorted(made, key=lambda group: -group["cases"])


def _kind(finding: str) -> str:
    """Returns a finding without its numbers."""
    return _NUMBER.sub("#", _EXPRESSION.sub("(#)", finding))


def _size(case: Mapping[str, Any]) -> tuple[int, int]:
    return case.get("ranks", 0), case.get("count", case.get("number", 0))


def _case_text(case: Mapping[str, Any]) -> str:
    if "strategy" not in case:
        return str(case["label"])
    counts = f", {case['counts']} counts" if case["counts"] else ""
    return (
        f"{case['count']} {case['type']}{counts}, {_ranks({case['ranks']}, 0)}, "
        f"root {case['root']}, {case['topology']}"
    )


def _where(cases: Sequence[Mapping[str, Any]], most: int) -> str:
    """Returns text: 'bf16, 3 ranks and more, on mist'."""
    types = sorted({case["type"] for case in cases})
    machines = sorted({case["topology"] for case in cases})
    places = ", ".join(machines) if len(machines) <= MOST_NAMES else f"{len(machines)} machines"
    return f"{' and '.join(types)}, {_ranks({case['ranks'] for case in cases}, most)}, on {places}"


def _ranks(ranks: set[int], most: int) -> str:
    least = min(ranks)
    if len(ranks) > 1 and ranks == set(range(least, most + 1)):
        return "any number of ranks" if least == 1 else f"{least} ranks and more"
    if ranks == {1}:
        return "1 rank"
    *names, last = map(str, sorted(ranks))
    return f"{', '.join(names)} and {last} ranks" if names else f"{last} ranks"
