"""`python -m plait.evidence.papers`: prints the papers' rows or writes the evidence page."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from plait.evidence.papers.page import markdown, number, paper_rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m plait.evidence.papers", description=__doc__)
    parser.add_argument(
        "--paper", default="all", help="micro, collaborative, wotir, direct, nodes, all"
    )
    parser.add_argument("--write", default="", help="write the whole evidence page to this file")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    options = parser.parse_args()
    if options.write:
        Path(options.write).write_text(markdown())
        return
    rows = paper_rows(options.paper)
    if options.json:
        print(json.dumps([{**asdict(row), "deviation": row.deviation} for row in rows], indent=1))
        return
    for row in rows:
        deviation = "" if row.deviation is None else f"{100 * row.deviation:+.1f} %"
        print(
            f"{row.id:4} {row.kind:4} {'ok' if row.ok else '--'} {row.what}: claim {row.claim}, "
            f"simulated {number(row.simulated, row.unit)} {deviation} {row.reason}"
        )


if __name__ == "__main__":
    main()
