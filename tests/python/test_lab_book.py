"""Holds the lab book (bench/notes): ids are unique and exist at each citation, each experiment has
all fields, and every file of bench/results is named somewhere."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from bench.programs import notes  # noqa: E402

NOTES = sorted((ROOT / "bench" / "notes").glob("*.md"))
RESULTS = ROOT / "bench" / "results"
HEADING = re.compile(r"^### (E-\d{4}) (\d{4}-\d\d-\d\d) \S.*$", re.M)
CITED = re.compile(r"\bE-\d{4}\b")
FIELDS = ("Hypothesis", "Change", "Machine", "Result", "Decision", "Data")
EXAMPLES = {"bench/notes/README.md", "tests/python/test_lab_book.py"}  # ids that stand for any id


def tracked_texts() -> dict[str, str]:
    """Every text file of the repository outside bench/results, by path."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    paths = [path for path in listed if path and not path.startswith("bench/results/")]
    texts = {}
    for path in paths:
        if (ROOT / path).is_file():
            texts[path] = (ROOT / path).read_text(errors="ignore")
    return texts


def experiments() -> list[tuple[str, str]]:
    """(id, text) of every experiment of every subject."""
    found = []
    for page in NOTES:
        text = page.read_text().partition("\n## Experiments\n")[2]
        matches = list(HEADING.finditer(text))
        ends = [match.start() for match in matches[1:]] + [len(text)]
        found += [
            (match[1], text[match.start() : end])
            for match, end in zip(matches, ends, strict=bool(matches))
        ]
    return found


def test_ids_of_experiments_are_unique():
    ids = [one for one, _ in experiments()]
    assert len(ids) > 400
    assert sorted(ids) == sorted(set(ids))


def test_headings_of_experiments_have_an_id_a_date_and_a_title():
    for page in NOTES:
        text = page.read_text().partition("\n## Experiments\n")[2]
        headings = [line for line in text.splitlines() if line.startswith("### ")]
        assert [line for line in headings if not HEADING.match(line)] == []


def test_every_experiment_has_all_fields():
    for one, text in experiments():
        named = re.findall(r"^- (\w+)(?: \([^)]*\))?: \S", text, re.M)
        assert tuple(named[: len(FIELDS)]) == FIELDS, one


def test_every_cited_experiment_exists():
    ids = {one for one, _ in experiments()}
    missing = [
        f"{path}: {cited}"
        for path, text in tracked_texts().items()
        if path not in EXAMPLES
        for cited in CITED.findall(text)
        if cited not in ids
    ]
    assert missing == []


def test_state_tables_are_up_to_date():
    """`python -m bench notes` writes the tables anew."""
    for page in NOTES:
        text = page.read_text()
        assert notes.renewed(text) == text, page.name


def test_every_result_is_cited():
    """A result that no experiment, test, page, code or row of engines.csv names is deleted: git
    keeps it."""
    texts = "\n".join([*tracked_texts().values(), (RESULTS / "engines.csv").read_text()])
    assert [file.name for file in sorted(RESULTS.iterdir()) if file.name not in texts] == []


def test_experiments_name_results_that_exist():
    for one, text in experiments():
        data = text.partition("\n- Data: ")[2].partition("\n\n")[0]
        for name in re.findall(r"`([^`]+)`", data):
            assert (RESULTS / name).is_file(), f"{one}: {name}"
