"""Tests `plait verify --all`: cases of strategies and engines, and the counts."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import plait
from plait import _core, prove

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "plan.schema.json"


def test_a_sample_of_engines_cases_is_proved_or_refused_with_a_reason() -> None:
    cases = prove.engine_cases()
    outcomes = [prove.prove(case) for case in cases[::211]]
    assert [outcome.findings for outcome in outcomes if outcome.findings] == []
    kinds = {bool(outcome.refusal) for outcome in outcomes}
    assert kinds == {True, False}
    assert all(outcome.case.label and outcome.case.engine for outcome in outcomes)


def test_engines_and_strategies_are_counted_apart() -> None:
    call = prove.EngineCallCase(7, "copy_ring", "all_gather of 5")
    plan = prove.ProofCase("hgx-h200", "ring", "all_gather", 4, 5, "fp32", 1)
    result = prove.summary(
        [
            prove.ProofOutcome(call, [], "", ""),
            prove.ProofOutcome(call, ["hazard (rank 0, op 3): no order"], "", ""),
            prove.ProofOutcome(call, [], "no slots", ""),
            prove.ProofOutcome(plan, [], "", "rank_order"),
        ]
    )
    assert result["engines"] == {"copy_ring": {"proved": 1, "found": 1, "refused": 1}}
    assert result["strategies"]["ring"]["proved"] == 1
    assert (result["cases"], result["proved"], result["findings"]) == (4, 2, 1)
    assert result["failures"][0]["case"] == {
        "number": 7,
        "engine": "copy_ring",
        "label": "all_gather of 5",
    }


@pytest.mark.parametrize("engine", ["copy_exchange", "one_shot"])
def test_an_engines_plan_goes_through_json_as_the_schema_says(engine: str) -> None:
    schema = json.loads(SCHEMA.read_text())
    request = plait.Request("all_reduce", 1 << 14, "fp32", "sum", 2)
    plan = _core.engine_plan(plait.load_topology("hgx-h200"), request, engine)
    document = json.loads(plan.to_json())
    jsonschema.validate(document, schema)
    assert plait.Plan.from_json(plan.to_json()) == plan
    assert bool(document.get("counts")) == (engine == "copy_exchange")
    document["lanes"][0]["ops"][0]["before"] = -1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_findings_are_grouped_by_kind_with_types_ranks_and_machines() -> None:
    def outcome(kind: str, ranks: int, finding: str, machine: str = "mist") -> prove.ProofOutcome:
        case = prove.ProofCase(machine, "chain", "all_reduce", ranks, 7, kind, 0)
        return prove.ProofOutcome(case, [finding] if finding else [], "", "rank_order")

    outcomes = [outcome(kind, ranks, "") for kind in ("fp32", "bf16") for ranks in (1, 2)]
    for ranks in (3, 4):
        sums = "((0+1)+2)" if ranks == 3 else "(((0+1)+2)+3)"
        finding = f"contract rank 0: wanted one reduction over 0..{ranks - 1}, found {sums}"
        outcomes.append(outcome("bf16", ranks, finding))
        outcomes.append(outcome("fp32", ranks, ""))
    outcomes.append(outcome("fp32", 1, "hazard: 2 writes at 0x10", "vista"))
    case = prove.EngineCallCase(3, "tiled", "two calls")
    outcomes.append(prove.ProofOutcome(case, ["flag 3 falls"], "", ""))
    most, *rest = prove.summary(outcomes)["groups"]
    assert (most["what"], most["cases"]) == ("chain, all_reduce", 2)
    assert most["where"] == "bf16, 3 ranks and more, on mist"
    assert most["example"] == "7 bf16, 3 ranks, root 0, mist" and "0..2" in most["finding"]
    assert [group["where"] for group in rest] == ["fp32, 1 rank, on vista", ""]
    assert rest[1]["what"] == "engine tiled" and rest[1]["example"] == "two calls"


def test_a_machines_proof_leaves_engines_to_their_own_option() -> None:
    words = [sys.executable, "-m", "plait", "verify", "--all", "-T", "vista", "-s", "direct"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=100).stdout
    assert "proofs by engine" not in said
    assert "engines are proved for all machines at once: plait verify --engines" in said
