"""Every test's needs from the machine: a separate folder for temporary files."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell starts background jobs with SIGINT ignored. Children inherit this: tests that interrupt
# programs would see no interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Fake GPUs have no table. Tests of the first start set the variable themselves.
os.environ.setdefault("PLAIT_AUTOTUNE", "0")


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """TMPDIR is new and empty in each test and is removed afterwards.

    Open MPI's mpiexec keeps a folder named by its process id there. A killed mpiexec leaves that
    folder behind, and a later mpiexec of the same id then fails: "The PMIx server's listener thread
    failed to start". The name is short, because paths of Unix sockets may have 107 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="plait-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def headers_of_fmt() -> None:
    """Shows {fmt}'s headers to compilers, for tests that compile plait's sources themselves."""
    folders = [Path(entry) / "cmeel.prefix" / "include" for entry in sys.path if entry]
    found = [str(folder) for folder in folders if (folder / "fmt").exists()]
    given = os.environ.get("CPLUS_INCLUDE_PATH", "")
    os.environ["CPLUS_INCLUDE_PATH"] = os.pathsep.join([*found, *filter(None, [given])])
