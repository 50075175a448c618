"""Makes the tables of docs/ from lists in the code, tuning/ and bench/results, and the recorded
times beside NCCL that the package has.

A table stands between two marks on a page. performance_tables.py makes the tables of
docs/performance.md.

    python tools/doc_tables.py            # writes all tables
    python tools/doc_tables.py --check    # names the pages that are not up to date

The opening comment of a .def file names the fields of its rows, as in `PLAIT_ENV(NAME, field,
...)`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import performance_tables  # noqa: E402

BESIDE_NCCL = ROOT / "python" / "plait" / "evidence" / "beside_nccl.csv"  # for the report's page
FOLDERS = ("include", "src", "shims", "tests")
DEFAULT_TUNING = "hgx-h200"  # of GPUs without a table: gpu_tables.cpp
ARGUMENT = re.compile(r'\s*("(?:\\.|[^"\\])*"|[^,"]*)\s*(?:,|$)')
Row = dict[str, str]


def def_file(name: str) -> Path:
    """Returns the only file of a name below FOLDERS."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob(name))]
    if len(found) != 1:
        raise SystemExit(f"doc_tables: wanted one {name} below {', '.join(FOLDERS)}, found {found}")
    return found[0]


def arguments(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        match = ARGUMENT.match(text, at)
        if match is None:
            raise SystemExit(f"doc_tables: wanted words or a string, found {text[at:]!r}")
        found.append(match[1].strip().strip('"'))
        at = match.end()
    return found


def rows(name: str, macro: str) -> list[Row]:
    """Returns the rows of `macro`, with the field names of the file's opening comment. A last field
    named `NAME...` becomes NAME, and holds all further arguments."""
    text = def_file(name).read_text()
    named = re.search(rf"^//.*\b{macro}\(([^)]*)\)", text, re.M)
    if named is None:
        raise SystemExit(f"doc_tables: {name} has no comment that names {macro}'s fields")
    fields = arguments(re.sub(r"\n// *", " ", named[1]))  # the comment may go on in the next line
    found = re.findall(rf"^{macro}\((.*?)\)[ \t]*(?://[^\n]*)?$", text, re.M | re.S)
    if not fields[-1].endswith("..."):
        return [dict(zip(fields, arguments(row), strict=True)) for row in found]
    *first, last = fields
    return [open_row(first, last.removesuffix("..."), arguments(row)) for row in found]


def open_row(first: list[str], last: str, given: list[str]) -> Row:
    row = dict(zip(first, given[: len(first)], strict=True))
    return row | {last: ", ".join(given[len(first) :])}


def table(head: Iterable[str], body: Iterable[Iterable[str]]) -> list[str]:
    heads = list(head)
    rule = "|" + "---|" * len(heads)
    said = [f"| {' | '.join(cells)} |" for cells in (heads, *body)]
    return [said[0], rule, *said[1:]]


# --- tuning/*.json: the engine of each size, with rows that precede others resolved.


def tuning_tables() -> list[dict[str, Any]]:
    """Returns the tables of GPU kinds: the default table, then the others by name."""
    tables = [json.loads(file.read_text()) for file in sorted((ROOT / "tuning").glob("*.json"))]
    return sorted(tables, key=lambda one: one["name"] != DEFAULT_TUNING)


def size_of(words: str) -> int:
    """Returns the bytes of `96M`."""
    found = re.fullmatch(r"(\d+)([KMG]?)", words)
    if found is None:
        raise SystemExit(f"doc_tables: wanted a size as in 96M, found {words!r}")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


def upto(row: dict[str, Any]) -> float:
    """Returns the largest size of a row; infinite without one."""
    return size_of(row["upto_bytes"]) if "upto_bytes" in row else float("inf")


def in_words(size: float) -> str:
    for unit, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << unit and int(size) % (1 << unit) == 0:
            return f"{int(size) >> unit} {name}"
    return f"{int(size)} B"


def span(least: float, most: float) -> str:
    """Returns the text for sizes above `least` and up to `most`."""
    if least == 0:
        return "all" if most == float("inf") else f"up to {in_words(most)}"
    if most == float("inf"):
        return f"beyond {in_words(least)}"
    return f"{in_words(least)} to {in_words(most)}"


def engine_of(row: dict[str, Any]) -> str:
    """Returns an engine with parameters: `tiled` with order=2, shift=1."""
    params = ", ".join(f"{name}={value}" for name, value in row.get("params", {}).items())
    return f"`{row['engine']}`" + (f" with {params}" if params else "")


def against(row: dict[str, Any]) -> str:
    """Returns the comparison with NCCL, and that the row is a guess if it is."""
    said = "no slower" if row["ahead_of_nccl"] else "slower somewhere"
    return f"{said} (guess)" if row["source"].startswith("guess") else said


def used(when: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Returns the tables with rows of a use, and these rows. A table that is not the default table
    lacks rows for more ranks than measured: those rows are guesses from another table."""
    found = []
    for one in tuning_tables():
        most = one["gpu"]["upto_ranks"] if one["name"] != DEFAULT_TUNING else 1 << 10
        listed = [row for row in one["rows"] if row.get("when", "") == when]
        found.append((one, [row for row in listed if row["upto_ranks"] <= most]))
    return found


def spans_of(choices: list[dict[str, Any]], ranks: int) -> list[list[str]]:
    """Returns [sizes, engines, against NCCL] for a number of ranks, in order of size."""
    found: list[tuple[float, float, dict[str, str]]] = []
    least = 0.0
    for row in choices:
        most = upto(row)
        said = {engine_of(row): against(row)}
        if ranks > row["upto_ranks"] or most < least:
            continue
        if most == least:  # serves calls that the previous row's engine refuses
            found[-1][2].update(said | found[-1][2])
        else:
            found.append((least, most, said))
        least = most
    return [
        [span(beyond, most), ", else ".join(said), ", else ".join(dict.fromkeys(said.values()))]
        for beyond, most, said in found
    ]


def by_kind(head: Iterable[str], when: str, body_of: Callable[[list[Any]], list[Any]]) -> list[str]:
    """Makes a table with a heading for each GPU kind that has rows of a use."""
    lines: list[str] = []
    for one, rows_of_use in used(when):
        if rows_of_use:
            most = f"up to {one['gpu']['upto_ranks']} of {one['gpu']['model']} were measured"
            lines += ["", f"**`{one['name']}`** ({most})", ""]
            lines += table(head, body_of(rows_of_use))
    return lines[1:]


def alone() -> list[str]:
    """Makes the tables of engines for calls that may use the whole GPU."""

    def body_of(choices: list[dict[str, Any]]) -> list[list[str]]:
        body: list[list[str]] = []
        for collective in dict.fromkeys(row["collective"] for row in choices):
            about = [row for row in choices if row["collective"] == collective]
            fewest = 2
            for most in sorted({row["upto_ranks"] for row in about}):
                ranks = str(most) if most == fewest else f"{fewest} to {most}"
                body += [[f"`{collective}`", ranks, *line] for line in spans_of(about, most)]
                fewest = most + 1
        return body

    return by_kind(("collective", "ranks", "size", "engine", "against NCCL"), "", body_of)


def with_overlap() -> list[str]:
    """Makes the tables of engines for calls that leave multiprocessors to other work, the largest
    sizes first."""

    def ranks_of(row: dict[str, Any]) -> str:
        return str(row["upto_ranks"]) if row["upto_ranks"] < 4 else f"3 to {row['upto_ranks']}"

    def body_of(choices: list[dict[str, Any]]) -> list[list[str]]:
        return [
            [
                f"`{row['collective']}`",
                ranks_of(row),
                f"at most {row['upto_blocks']}" if "upto_blocks" in row else "any",
                f"from {in_words(size_of(row.get('from_bytes', '0')))}",
                engine_of(row),
                against(row),
            ]
            for row in choices
        ]

    head = ("collective", "ranks", "blocks", "size", "engine", "against NCCL")
    return by_kind(head, "leaving_sms", body_of)


def in_graphs() -> list[str]:
    """Makes the tables of engines for captured calls."""

    def body_of(choices: list[dict[str, Any]]) -> list[list[str]]:
        return [
            [
                f"`{row['collective']}`",
                str(row["upto_ranks"]),
                f"from {in_words(size_of(row.get('from_bytes', '0')))}",
                engine_of(row),
                against(row),
            ]
            for row in choices
        ]

    return by_kind(("collective", "ranks", "size", "engine", "against NCCL"), "captured", body_of)


# --- errors.def and env.def.


def errors() -> list[str]:
    head = ("code", "name", "kind", "in Python", "exit code", "under NCCL", "text")
    return table(
        head,
        (
            [
                row["number"],
                f"`{row['name']}`",
                row["kind"],
                f"`{row['PythonClass']}`",
                row["exit_code"],
                f"`{row['nccl_result']}`",
                row["text"],
            ]
            for row in rows("errors.def", "PLAIT_ERROR")
            if row["name"] != "ok"
        ),
    )


def wanted(row: Row) -> str:
    low, high = (f"{float(row[bound]):g}" for bound in ("low", "high"))
    return {
        "text": "text",
        "flag": "0 or 1",
        "auto_flag": "auto, 0 or 1",
        "integer": f"integer, {low} to {high}",
        "real": f"number, {low} to {high}",
        "byte_count": "bytes, as in 64K, 64M or 1G",
    }[row["kind"]]


def default(row: Row) -> str:
    fallback = row["fallback"]
    if row["kind"] == "auto_flag":
        return "auto"
    if row["kind"] == "byte_count" and fallback != "0":
        return in_words(int(fallback))
    unset = fallback == "" or float(fallback) < float(row["low"])
    return "unset" if unset else fallback


def environment() -> list[str]:
    listed = rows("env.def", "PLAIT_ENV")
    body = ([f"`{row['NAME']}`", wanted(row), default(row), row["text"]] for row in listed)
    return table(("variable", "value", "default", "meaning"), body)


# --- parameters.def: parameters of a topology other than speeds.


def parameters() -> list[str]:
    body = [
        [f"`{row['key']}`", row["default"] or row["otherwise"], row["meaning"]]
        for row in rows("parameters.def", "PLAIT_PARAMETER")
    ]
    made_by_masks = [
        ["`no_relay.N`", "", "device N is no relay GPU (made by masks)"],
        ["`no_link.A.B`", "", "a link from GPU A to GPU B is left out (made by masks)"],
    ]
    return table(("key", "default", "meaning"), [*body, *made_by_masks])


# --- faults that tests put into engines, and the checks that reject them.

COPY_CALLS = {  # names in engine_mutants.def; test_engine_mutants.cpp makes the calls
    "sums": "`copy_rotation`, all_reduce",
    "places": "`copy_rotation`, all_to_all",
    "passes": "`copy_rotation`, broadcast",
    "batched": "`copy_rotation`, all_reduce in batches",
    "ring": "`copy_ring`, all_gather",
    "chain": "`copy_ring`, broadcast",
    "exchange": "`copy_exchange`, all_reduce with a part through host memory",
    "hosted": "`copy_exchange` without a link, all_reduce",
    "beside": "`tiled`, reduce of two ranks with a part through host memory",
    "gather": "`copy_rotation`, all_reduce with a part through host memory",
    "cores": "`copy_rotation`, all_reduce with a part by CPU cores",
    "summed": "`host_cores`, all_reduce",
    "rooted": "`host_cores`, reduce",
    "scattered": "`scatter_ring`, all_reduce",
}
TRACED = "comparing loads and stores with the plan"
TRACED_FLAGS = "comparing loads, stores and flag writes with the plan"
TEXTS = {  # files of mutants.py
    "fused": ("kernels `one_shot` and `two_shot`", TRACED),
    "escaped": (
        "LL packets of `direct_ll` and `ll_chain`",
        "comparing loads and stores with the plan",
    ),
    "direct_ll": ("kernel `direct_ll`", TRACED),
    "ll_chain": ("kernel `ll_chain`", TRACED),
    "long_chain": (
        "kernel `long_chain`",
        TRACED_FLAGS,
    ),
    "long_two_shot": (
        "kernel `long_two_shot`",
        TRACED_FLAGS,
    ),
    "scatter_ring": ("`scatter_ring`, between its halves", "`verify`"),
}


def faults_in_texts() -> Counter[str]:
    """Counts the faults of each file that the build makes."""
    path = ROOT / "tests" / "conformance" / "mutants.py"
    spec = importlib.util.spec_from_file_location("mutants", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Counter(fault[0] for fault in module.FAULTS)


def mutants() -> list[str]:
    """Every list of mistakes: the mutated code, the number of mistakes, the test that rejects
    all."""
    body: list[tuple[str, int, str]] = []
    by_queue = rows("engine_mutants.def", "PLAIT_MUTANT")
    for call in dict.fromkeys(row["call"] for row in by_queue):
        rules = Counter(row["rule"] for row in by_queue if row["call"] == call)
        said = ", ".join(f"{rule} {count}" for rule, count in sorted(rules.items()))
        body.append((COPY_CALLS[call], rules.total(), f"`verify`: {said}"))
    for file, count in faults_in_texts().items():
        what, by = TEXTS[file]
        body.append((what, count, by))
    plans = "plan_mutants.def"
    tiles, lines, schedules = (
        len(rows(plans, f"PLAIT_{of}_MUTANT")) for of in ("TILE", "LINE", "SCHEDULE")
    )
    body.append(("plan of `tiled`, in each of a kernel's roles", tiles, "`verify`"))
    body.append(("plans of LL calls, at every place", lines, "`verify`"))
    body.append(("plans `fold`, `phases` and `ring`, at every place", schedules, "`verify`"))
    body.append(("all", sum(count for _, count, _ in body), ""))
    return table(
        ("mistakes in", "number", "rejected by"), ([what, f"{n}", by] for what, n, by in body)
    )


TABLES: dict[str, Callable[[], list[str]]] = {
    "choices, alone": alone,
    "choices, in graphs": in_graphs,
    "choices, overlap_compute": with_overlap,
    "errors": errors,
    "environment": environment,
    "mutants": mutants,
    "parameters": parameters,
    **performance_tables.TABLES,
}
MARKED = re.compile(r"(<!-- table: ([^>]+), by tools/doc_tables\.py -->\n).*?(<!-- end -->)", re.S)


def updated(text: str) -> str:
    """Returns a page with the marked tables made anew."""
    return MARKED.sub(lambda m: m[1] + "\n".join(["", *TABLES[m[2]](), "", m[3]]), text)


def main() -> int:
    old = []
    made = {page: updated(page.read_text()) for page in sorted((ROOT / "docs").rglob("*.md"))}
    made[BESIDE_NCCL] = performance_tables.beside_nccl()
    for page, new in made.items():
        if page.exists() and page.read_text() == new:
            continue
        old.append(page)
        if "--check" not in sys.argv[1:]:
            page.write_text(new)
    for page in old:
        word = "not up to date" if "--check" in sys.argv[1:] else "written"
        print(f"{page.relative_to(ROOT)}: {word}")
    return 1 if old and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
