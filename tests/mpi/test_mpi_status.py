"""`plait status` shows calls that the native MPI serves, in programs with PLAIT_WARN_S set."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from mpi_programs import compiled, environment

from plait import running

LIMIT_S = 30


def _pid(file: Path) -> int:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if file.exists() and (said := file.read_text()).endswith("\n"):
            return int(said)
        time.sleep(0.02)
    raise AssertionError(f"no {file.name}")


def _native(pid: int) -> dict[str, Any] | None:
    """Returns the recorder of calls that the MPI serves, if the process answers and has one."""
    states, _ = running.ask(pid)
    found = [one for state in states for one in state["communicators"] if one["door"] == "mpi"]
    assert len(found) <= 1
    return found[0] if found else None


def _waiting(pid: int) -> dict[str, Any]:
    """Returns the recorder once the process waits in a call."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if (found := _native(pid)) is not None and found["waits"]:
            return found
        time.sleep(0.05)
    raise AssertionError("no call waits")


@pytest.fixture
def late(mpi, drop_in, folder, tmp_path):
    """Starts late.cpp. Ends the job behind the test: rank 1 comes to its last call."""
    started = []

    def start(**settings: str) -> tuple[int, int]:
        program = compiled(mpi, folder, "late", ["late.cpp"])
        env = environment(drop_in, **settings)
        command = [mpi.launcher, "-n", "2", str(program), str(tmp_path)]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        return _pid(tmp_path / "pid-0"), _pid(tmp_path / "pid-1")

    yield start
    (tmp_path / "go").touch()
    for job in started:
        said, _ = job.communicate(timeout=LIMIT_S)
        assert job.returncode == 0 and said.count('"wrong": 0') == 2, said


REASONS = {
    "smaller than PLAIT_MIN_BYTES, or not in PLAIT_OPS": {"PLAIT_MIN_BYTES": "64K"},
    "no call of the job is served": {"PLAIT_DISABLE": "1"},
}


@pytest.mark.parametrize("why", REASONS)
def test_status_shows_the_call_that_the_mpi_serves(late, why):
    waiting, missing = late(PLAIT_WARN_S="100", **REASONS[why])
    found = _waiting(waiting)
    assert (found["rank"], found["ranks"], found["number"]) == (0, 2, 4)
    assert found["waits"]["in"] == "call 4 (all_reduce of 4 bytes)"
    assert "the other ranks are not known" in found["waits"]["reason"]
    assert [call["ended"] for call in found["calls"]] == [True, True, True, False]
    assert {call["why"] for call in found["calls"]} == {why}
    assert {call["call"] for call in found["calls"]} == {"all_reduce of 4 bytes"}
    other = _native(missing)
    assert other is not None and other["number"] == 3 and other["waits"] is None


def test_without_the_setting_nothing_is_recorded(late):
    pids = late(PLAIT_MIN_BYTES="64K")
    assert all(_native(pid) is None for pid in pids)
