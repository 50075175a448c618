"""Writes a run's rows into the repository, or makes the pages from the rows anew.

With a run's folder: results, choices, the simulator's parameters. Build and install plait after
that, since choices are compiled. With --docs: tables of docs/ from lists and results, the
evidence, memory, tables of bench/notes. Run the tests afterwards, and add an experiment to
bench/notes by hand.
"""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

from bench.lib.rows import ROOT


def run(given: SimpleNamespace) -> None:
    if given.docs == bool(given.folder):
        raise SystemExit("wanted a run's folder or --docs")
    write = SimpleNamespace(write=True, folder=given.folder, check=False, next=False)
    if given.docs:
        from bench.programs import memory_table, notes

        subprocess.run([sys.executable, str(ROOT / "tools" / "doc_tables.py")], check=True)
        page = str(ROOT / "docs" / "evidence.md")
        words = ["-m", "plait.evidence.papers", "--write", page]
        subprocess.run([sys.executable, *words], check=True)
        memory_table.run(write)
        notes.run(write)
        return
    from bench.programs import engine_rows, fit_prices, tables

    tables.run(SimpleNamespace(folder=given.folder, gpus=given.gpus, write=True))
    engine_rows.run(write)
    fit_prices.run(write)
    print("now build and install plait, then: python -m bench renew --docs")
