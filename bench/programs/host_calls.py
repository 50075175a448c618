"""Compiles host_calls.c against the installed plait and runs it: C calls of CPU ranks.

A turn times a series of calls on every rank, and counts as long as its slowest rank. Prints the
median turn, the fastest and the slowest.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

from plait import places


def run(given: SimpleNamespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        program, libraries = f"{folder}/host_calls", str(places.libraries())
        source = str(Path(__file__).with_suffix(".c"))
        command = [os.environ.get("CC", "cc"), "-O2", source, f"-I{places.include()}"]
        command += [f"-L{libraries}", "-lplait", f"-Wl,-rpath,{libraries}", "-o", program]
        subprocess.run(command, check=True)
        words = ["--ranks", str(given.ranks), "--turns", str(given.turns)]
        words += ["--pinned"] * given.pinned + (["--csv", str(given.csv)] if given.csv else [])
        return subprocess.run([program, *words], check=False).returncode
