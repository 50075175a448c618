"""Finds the drop-in's test programs and runs them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shim_env import ROOT, plain_env


def _built() -> Path | None:
    """Returns the newest build of the test programs. Skips sanitized builds, since the sanitizer's
    runtime must be preloaded too; SHIM_TESTS names another build."""
    if named := os.environ.get("SHIM_TESTS"):
        return Path(named)
    programs = ROOT.glob("build/*/tests_shims/nccl_linked")
    found = [path.parent for path in programs if "san" not in path.parent.parent.name]
    return max(found, key=lambda path: (path / "nccl_linked").stat().st_mtime, default=None)


@pytest.fixture(scope="session")
def built() -> Path:
    """Folder of the test programs and of the drop-in with the host engine."""
    folder = _built()
    if folder is None:
        pytest.skip("the drop-in's test programs are not built: make test builds them")
    return folder


Rows = list[dict[str, Any]]
Run = Callable[..., Rows]


@pytest.fixture
def run_case(built: Path) -> Run:
    """Returns run_case("split", ranks=3, env={...}) -> rows by rank; every rank must exit 0."""

    def run(
        case: str,
        ranks: int = 2,
        mode: str = "processes",
        env: dict[str, str] | None = None,
        shim: bool = True,
    ) -> Rows:
        # A sanitizer's runtime is preloaded first: SHIM_RUNTIME names it.
        first = [os.environ["SHIM_RUNTIME"]] if "SHIM_RUNTIME" in os.environ else []
        extra = {"LD_PRELOAD": ":".join([*first, str(built / "libplait_nccl.so")])} if shim else {}
        said = {"STANDIN_PATIENCE_S": "20"}
        limit_s = 280 if first else 120  # sanitized code is slower; pytest's own limit is 300 s
        done = subprocess.run(
            [str(built / "nccl_linked"), case, str(ranks), mode],
            env=plain_env({**extra, **said, **(env or {})}),
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        assert done.returncode == 0, (case, done.returncode, done.stdout, done.stderr)
        rows = sorted((json.loads(line) for line in done.stdout.splitlines()), key=_rank)
        run.stderr = done.stderr  # type: ignore[attr-defined]
        return rows

    return run


def _rank(row: dict[str, Any]) -> int:
    return int(row["rank"])
