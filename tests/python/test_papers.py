"""Reruns the papers' rows and the calibration; compares with docs/evidence.md, within 10 %."""

from pathlib import Path

import pytest

from plait.evidence import calibrate, papers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def rows() -> list[papers.PaperRow]:
    return papers.paper_rows()


def test_evidence_is_what_the_command_writes(rows: list[papers.PaperRow]) -> None:
    table = ROOT / "bench" / "results" / "engines.csv"
    assert (ROOT / "docs" / "evidence.md").read_text() == papers.markdown(rows, table), (
        "run python -m plait.evidence.papers --write docs/evidence.md"
    )


def test_must_rows_hold(rows: list[papers.PaperRow]) -> None:
    assert not [row for row in rows if row.kind == "must" and not row.ok]
    assert all(row.reason for row in rows if row.kind == "show" and not row.ok)


def test_what_a_paper_recommends_ranks_first() -> None:
    rankings = papers.recommended()
    machines = {row.machine.split(",")[0] for row in rankings}
    assert machines == {"mist", "cedar", "daisy", "narval", "dgx1v", "vista"}
    behind = {(row.machine, row.size >> 20): row for row in rankings if not row.ok}
    most = {("daisy", 32): 0.02, ("dgx1v", 64): 0.07}  # reasons in docs/evidence.md
    assert set(behind) <= set(most)
    assert all(row.reason and row.behind < most[name] for name, row in behind.items())


def test_every_row_of_the_papers_is_there(rows: list[papers.PaperRow]) -> None:
    wanted = {f"M{n}" for n in range(1, 14)} | {f"C{n}" for n in range(1, 5)}
    wanted |= {f"W{n}" for n in range(1, 6)} | {f"D{n}" for n in range(1, 6)}
    wanted |= {f"N{n}" for n in range(1, 11)}
    assert {row.id for row in rows} == wanted


def test_calibration_is_within_ten_percent() -> None:
    figures = calibrate.calibration_rows()
    assert len(figures) > 20
    assert not [row for row in figures if abs(row.deviation) > 0.10]


def test_an_unknown_paper_is_refused() -> None:
    with pytest.raises(Exception, match="micro"):
        papers.paper_rows("nature")
