"""Tests `plait verify --all`: cases of strategies and engines, and the counts."""

import json
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
