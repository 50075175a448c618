"""Tests the line by which a rank under NCCL explains a hang: its text, its time, and that one rank
says it once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

WARN_S = 1.5  # s; ranks of a busy machine enter calls at different times
MESSAGES = {"STANDIN_MESSAGES": "1"}


def _lines(run_case, case: str, env: dict[str, str] | None = None) -> tuple[list[str], list[int]]:
    """Returns the lines of a case of three ranks without host, process and thread, and the pids of
    the ranks that ended."""
    rows = run_case(case, 3, env={"PLAIT_WARN_S": str(WARN_S), **(env or {})})
    found = re.findall(r"PLAIT WARN (.*)", run_case.stderr)
    lines = [line for line in found if " aborts communicator " not in line]
    return lines, [row["pid"] for row in rows]


def _written(line: str) -> dict[str, Any]:
    """Returns the communicator in the file that the line names, and removes the file."""
    path = Path(re.search(r"; last calls of all ranks: (\S+)$", line)[1])
    assert path.stat().st_mode & 0o777 == 0o600
    status = json.loads(path.read_text())
    path.unlink()
    return status["communicators"][0]


@pytest.mark.parametrize(
    ("case", "state"),
    [
        ("hang_absent", ""),
        ("hang_simulated", ""),  # one rank drops calls, which count for no rank
        ("hang_stopped", ", stopped (SIGSTOP or a debugger)"),
    ],
)
def test_an_absent_rank_is_named(run_case, case, state):
    lines, pids = _lines(run_case, case)
    assert len(lines) == 1, lines
    wanted = (
        r"rank ([01]) waits in call 2 \(all_reduce of 16 int32, sum\) on communicator \S+: (\S+) s "
        r"so far; entered by ranks 0, 1 alone; "
    )
    said = re.match(wanted, lines[0])
    assert said is not None, lines
    assert WARN_S - 0.1 <= float(said[2]) < 4.9  # before the rank comes
    assert (
        f"rank 2 (pid {pids[2]}{state}) was last in call 1 (all_reduce of 8 int32, sum), "
        in lines[0]
    )
    assert lines[0].endswith(f"`plait status {pids[int(said[1])]}` shows more")


BROADCAST = "broadcast of 8 int32, root {}"
SUM = "all_reduce of {} int32, sum"
LIMITED = "all_reduce of 16 int32, sum, at most {} blocks"


@pytest.mark.parametrize(
    ("case", "calls"),
    [
        ("hang_count", (SUM.format(16), SUM.format(32))),
        ("hang_root", (BROADCAST.format(0), BROADCAST.format(1))),
        ("hang_limit", (LIMITED.format(4), LIMITED.format(8))),
        ("hang_order", (SUM.format(16), BROADCAST.format(0))),
    ],
)
def test_unlike_calls_are_said_as_such(run_case, case, calls):
    """Rank 0 speaks, or rank 1 if rank 0 enters the call later."""
    lines, pids = _lines(run_case, case)
    assert len(lines) == 1, lines
    one = int(re.match(r"rank ([01]) waits ", lines[0])[1])
    other = 1 - one
    wanted = f"; calls 2 are unlike: rank {one} makes {calls[one]}, rank {other} {calls[other]}"
    assert wanted in lines[0]
    order = f"; rank {other} makes rank {one}'s call 2 as call 3: the order is unlike"
    assert (order in lines[0]) == (case == "hang_order"), lines
    assert f"; rank 2 (pid {pids[2]}) was last in call 1 (" in lines[0]


def test_a_dead_rank_is_named(run_case):
    lines, _ = _lines(run_case, "hang_dead")
    assert len(lines) == 1, lines
    assert re.match(
        r"rank 2 \(process \d+\) has died: calls on communicator \S+ fail from here on; the rank "
        r"was last in call 1 \(all_reduce of 8 int32, sum\), ",
        lines[0],
    ), lines
    dead = _written(lines[0])["here"][2]
    assert dead["state"] == "dead"
    assert [call["call"] for call in dead["calls"]] == ["all_reduce of 8 int32, sum"]


def test_a_rank_without_its_message_is_named(run_case):
    lines, pids = _lines(run_case, "hang_message", MESSAGES)
    assert len(lines) == 1, lines
    assert "rank 0 waits in a receive of 64 bytes from rank 2 on communicator " in lines[0]
    assert f"; rank 2 (pid {pids[2]}) was last in call 1 (" in lines[0]


def test_an_abort_writes_the_last_calls_of_all_ranks(run_case):
    _lines(run_case, "hang_order")
    said = re.findall(r"PLAIT WARN (rank 0 aborts communicator .*)", run_case.stderr)
    assert len(said) == 1, run_case.stderr
    assert " with calls under way; " in said[0]
    one = _written(said[0])
    assert one["door"] == "nccl" and one["bytes"]["segment"] > 0
    assert one["waits"]["reason"].startswith("calls 2 are unlike: rank 0 makes all_reduce of 16")
    assert [call["number"] for call in one["here"][1]["calls"]] == [1, 2, 3]


def test_an_abort_of_calls_not_known_to_hang_writes_nothing(run_case):
    run_case("hang_order", 3, env={"PLAIT_WARN_S": "60"})
    assert "PLAIT WARN" not in run_case.stderr


def test_a_program_that_only_idles_is_not_accused(run_case):
    run_case("hang_idle", 3, env={"PLAIT_WARN_S": str(WARN_S)})
    assert "PLAIT WARN" not in run_case.stderr
