"""`plait status` and the line after PLAIT_WARN_S show calls that the native MPI serves."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from mpi_programs import compiled, environment, plait_command

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
    assert (found["rank"], found["ranks"], found["number"]) == (0, 2, 5)
    assert found["waits"]["in"] == "call 5 (all_reduce of 4 bytes)"
    assert "the other ranks are not known" in found["waits"]["reason"]
    assert [call["ended"] for call in found["calls"]] == [True, True, True, True, False]
    barrier, *sums = found["calls"]
    assert (barrier["call"], barrier["why"]) == ("barrier", "plait lacks the function")
    assert {call["why"] for call in sums} == {why}
    assert {call["call"] for call in sums} == {"all_reduce of 4 bytes"}
    other = _native(missing)
    assert other is not None and other["number"] == 4 and other["waits"] is None


def test_without_the_setting_nothing_is_recorded(late):
    pids = late(PLAIT_MIN_BYTES="64K")
    assert all(_native(pid) is None for pid in pids)


INT = "MPI_INT"
WORLD = "on MPI_COMM_WORLD"
MESSAGES = {
    "MPI_Recv": f"MPI_Recv of at most 4 {INT} from rank 1, tag 7, {WORLD}",
    "MPI_Recv-any": f"MPI_Recv of at most 4 {INT} from any source, any tag, {WORLD}",
    "MPI_Send": f"MPI_Send of 1048576 {INT} to rank 1, tag 7, {WORLD}",
    "MPI_Ssend": f"MPI_Ssend of 4 {INT} to rank 1, tag 7, {WORLD}",
    "MPI_Sendrecv": f"MPI_Sendrecv of 1 {INT} to rank 1, tag 7, from rank 1, tag 8, {WORLD}",
    "MPI_Probe": f"MPI_Probe for a message from rank 1, tag 7, {WORLD}",
    "MPI_Mprobe": f"MPI_Mprobe for a message from rank 1, tag 7, {WORLD}",
}
OTHERS = {
    "MPI_Wait": "MPI_Wait of 1 request",
    "MPI_Waitall": "MPI_Waitall of 2 requests among 3 handles",
    "MPI_Waitany": "MPI_Waitany of 1 request among 2 handles",
    "MPI_Waitsome": "MPI_Waitsome of 1 request among 2 handles",
    "MPI_Barrier": f"MPI_Barrier {WORLD}",
    "MPI_Bcast": f"MPI_Bcast of 4 {INT}, root 1, {WORLD}",
    "MPI_Alltoallw": f"MPI_Alltoallw {WORLD}",
}


class Hangs:
    """A job of hangs.cpp."""

    def __init__(self, mpi, drop_in, folder, tmp_path, calls, **settings):
        program = compiled(mpi, folder, "hangs", ["hangs.cpp"])
        self.folder, self.calls = tmp_path, calls
        command = [mpi.launcher, "-n", "2", str(program), str(tmp_path), *calls]
        env = environment(drop_in, PLAIT_MIN_BYTES="64M", **settings)
        self.job = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pid = _pid(tmp_path / "pid-0")

    def now(self, text: str, least_s: float) -> dict[str, Any]:
        """Returns the call of rank 0 once the call has lasted."""
        end = time.monotonic() + LIMIT_S
        found: list[dict[str, Any]] = []
        while time.monotonic() < end:
            states, _ = running.ask(self.pid)
            found = [one for state in states for one in state["now"]]
            for one in found:
                if one["in"] == text and one["seconds"] >= least_s:
                    return one
            time.sleep(0.05)
        raise AssertionError(f"wanted {text}, found {found}")

    def let(self, call: str) -> None:
        (self.folder / call).touch()

    def end(self) -> str:
        """Returns the job's stderr."""
        for call in self.calls:
            self.let(call)
        said, errors = self.job.communicate(timeout=LIMIT_S)
        assert self.job.returncode == 0 and said.count('"wrong": 0') == 2, said + errors
        return errors


@pytest.mark.parametrize("calls", [MESSAGES, OTHERS], ids=["messages", "others"])
def test_a_call_of_the_mpi_that_lasts_is_shown(mpi, drop_in, folder, tmp_path, calls):
    hangs = Hangs(mpi, drop_in, folder, tmp_path, calls, PLAIT_WARN_S="0.2")
    for call, text in calls.items():
        found = hangs.now(text, 0.4)
        assert (found["door"], found["rank"], found["ranks"]) == ("mpi", 0, 2)
        hangs.let(call)
    errors = hangs.end()
    for text in calls.values():
        said = [line for line in errors.splitlines() if f"rank 0 waits in {text}: " in line]
        assert said and f"`plait status {hangs.pid}` shows more" in said[0], errors


def test_without_the_setting_a_call_that_lasts_is_shown_after_a_second(
    mpi, drop_in, folder, tmp_path
):
    hangs = Hangs(mpi, drop_in, folder, tmp_path, ["MPI_Barrier"])
    hangs.now(f"MPI_Barrier {WORLD}", 1)
    shown = subprocess.run(
        plait_command("status", str(hangs.pid)), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert f"s in MPI_Barrier {WORLD}" in shown.stdout, shown
    assert _native(hangs.pid) is None
    assert "rank 0 waits in" not in hangs.end()
