"""`plait verify --all`: engines' cases beside strategies', and how both are counted."""

from plait import prove


def test_a_sample_of_engines_cases_is_proved_or_refused_with_a_reason() -> None:
    cases = prove.engine_cases()
    outcomes = [prove.prove(case) for case in cases[::211]]
    assert [outcome.findings for outcome in outcomes if outcome.findings] == []
    kinds = {bool(outcome.refusal) for outcome in outcomes}
    assert kinds == {True, False}
    assert all(outcome.case.label and outcome.case.engine for outcome in outcomes)


def test_engines_and_strategies_are_counted_apart() -> None:
    call = prove.EngineCase(7, "copy_ring", "all_gather of 5")
    plan = prove.Case("hgx-h200", "ring", "all_gather", 4, 5, "fp32", 1)
    result = prove.summary(
        [
            prove.Outcome(call, [], "", ""),
            prove.Outcome(call, ["hazard (rank 0, op 3): no order"], "", ""),
            prove.Outcome(call, [], "no slots", ""),
            prove.Outcome(plan, [], "", "rank_order"),
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
