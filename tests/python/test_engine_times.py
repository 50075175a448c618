"""Engines' predicted times, held to the recorded ones that no parameter was fitted on."""

import sys
from pathlib import Path

import pytest

import plait
from plait import what_runs
from plait.evidence import engines

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "bench" / "results" / "engines.csv"
sys.path.append(str(ROOT / "bench"))
import engine_rows  # noqa: E402


@pytest.fixture(scope="module")
def rows() -> list[engines.Recorded]:
    return engines.recorded(TABLE)


@pytest.fixture(scope="module")
def unseen(rows: list[engines.Recorded]) -> list[engines.Recorded]:
    return [row for row in rows if not row.fitted]


def test_the_table_is_what_the_recorded_files_say() -> None:
    assert TABLE.read_text() == engine_rows.as_csv(engine_rows.gather()), (
        "run bench/engine_rows.py --write"
    )


def test_engines_are_there_on_all_numbers_of_gpus_that_were_recorded(rows) -> None:
    found = {(row.engine, row.ranks) for row in rows}
    all_reduces = ("one_shot", "two_shot", "tiled")
    assert {(engine, gpus) for engine in all_reduces for gpus in (2, 4, 8)} <= found
    assert {("hop", 2), ("messages", 2), ("copy_exchange", 2)} <= found
    assert {("copy_ring", 4), ("copy_rotation", 4)} <= found


def test_nine_of_ten_times_are_near_and_none_is_far_off(unseen) -> None:
    topology = engines.machine()
    off = {row: abs(row.deviation(topology)) for row in unseen}
    assert len(off) > 1000
    near = sum(one <= engines.NEAR for one in off.values())
    assert near >= engines.WANTED_NEAR * len(off)
    assert not [row for row, one in off.items() if one > engines.FAR]


def test_what_is_predicted_fastest_was_recorded_nearly_as_fast(rows) -> None:
    chosen = engines.choices(rows, engines.machine())
    assert len(chosen) > 600
    assert not [choice for choice in chosen if choice.behind > engines.NEAR]


def test_what_plait_plan_says_is_near_what_was_recorded(rows) -> None:
    """Of the engine that it names, launched and cut as a communicator's: the room is today's."""
    topology, off = engines.machine(), {}
    for row in rows:
        if row.eager or row.beside or row.asked or row.host:
            continue
        request = row.plan.request
        alike = plait.Request(request.collective, request.count, row.type, "sum", row.ranks, 0, 1)
        runs = what_runs.by_engine(topology, alike)
        if runs is not None and runs.engine == row.engine:
            off[row] = abs(runs.predicted_us / row.us - 1)
    assert len(off) > 200 and {row.ranks for row in off} == {2, 4, 8}
    near = sum(one <= engines.NEAR for one in off.values())
    assert near >= engines.WANTED_NEAR * len(off)
    assert not [(row, one) for row, one in off.items() if one > engines.FAR]


def test_parameters_that_were_fitted_say_so() -> None:
    topology = (ROOT / "topologies" / "hgx-h200.json").read_text()
    fitted = topology.count('"source": "fitted by bench/fit_prices.py on bench/results/engines.csv')
    assert 20 <= fitted <= 40
    assert engines.machine().to_json().count("fitted by bench/fit_prices.py") == fitted


def test_a_machine_with_slower_links_takes_longer(unseen) -> None:
    slow = plait.load_topology("dgx1v")
    kernels = [row for row in unseen if row.plan.kernel]
    pair = [row for row in kernels if row.ranks == 2 and row.size >= 1 << 20]
    assert pair
    assert all(row.predicted_us(slow) > row.predicted_us(engines.machine()) for row in pair)
