"""Tests what waiting CPU ranks say, and `plait status` over the programs' private sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plait import launch, running

FOLDER = str(Path(__file__).parent)
PLAIT = [sys.executable, "-m", "plait"]


def _lines(err: str) -> list[str]:
    return [line.partition("PLAIT WARN ")[2] for line in err.splitlines() if " s so far" in line]


@pytest.mark.parametrize("how", ["absent", "stopped"])
def test_a_waiting_rank_names_who_is_missing(capfd, how):
    env = {"PLAIT_DEBUG": "", "PLAIT_WARN_S": "1.5"}
    job = launch.start("rank_programs:hangs", 3, {"how": how}, env, FOLDER)
    rows = {row["rank"]: row["pid"] for row in job.lines()}
    assert job.wait() == [0, 0, 0]
    lines = [line for line in _lines(capfd.readouterr().err) if " to enter call 2 " in line]
    assert len(lines) == 1, lines  # on a busy machine ranks also wait in earlier steps
    state = ", stopped (SIGSTOP or a debugger)" if how == "stopped" else ""
    # Rank 0 speaks, or rank 1 if rank 0 enters the call later.
    said = r"rank [01] waits for rank 2 to enter call 2 \(all_reduce of 64 fp32, sum\): (\S+) s "
    found = re.match(said, lines[0])
    assert found and float(found[1]) < 5.9, lines
    assert "; entered by ranks 0, 1 alone; " in lines[0]
    assert f"; rank 2 (pid {rows[2]}{state}) was last in call 1 (barrier), " in lines[0]


def _plain() -> dict[str, str]:
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("PLAIT_")},
        "PYTHONUNBUFFERED": "1",
    }


def _status(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [*PLAIT, "status", *arguments]
    return subprocess.run(words, capture_output=True, text=True, env=_plain())


def _state_of(pid: int) -> dict:
    """Asks until the rank waits for someone."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        states, _ = running.ask(pid)
        if states and states[0]["communicators"] and states[0]["communicators"][0]["waits"]:
            return states[0]
        time.sleep(0.1)
    raise AssertionError(f"process {pid} says nothing")


@pytest.fixture
def waiting_job():
    """Three ranks, of which the last never enters the second call; without a watch thread."""
    env = {"PLAIT_DEBUG": "NONE"}
    job = launch.start("rank_programs:hangs", 3, {"how": "never"}, env, FOLDER)
    lines = job.lines()
    pids = {}
    while len(pids) < 3:
        row = next(lines)
        pids[row["rank"]] = row["pid"]
    yield pids
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    job.wait()
    for pid in pids.values():
        running.ask(pid)  # removes the socket of a killed process
        assert running.sockets(pid) == {}


def test_status_of_a_rank_that_waits(waiting_job):
    pids = waiting_job
    state = _state_of(pids[0])
    assert state["schema"] == "plait.status/1" and state["pid"] == pids[0]
    one = state["communicators"][0]
    assert one["door"] == "native" and one["memory"] == "host"
    assert (one["rank"], one["ranks"], one["number"]) == (0, 3, 2)
    assert [call["call"] for call in one["calls"]] == ["barrier", "all_reduce of 64 fp32, sum"]
    assert [call["ended"] for call in one["calls"]] == [True, False]
    assert one["waits"]["in"] == "call 2 (all_reduce of 64 fp32, sum)"
    assert f"rank 2 (pid {pids[2]}) was last in call 1 (barrier)" in one["waits"]["reason"]
    assert [rank["number"] for rank in one["here"]] == [2, 2, 1]
    assert one["bytes"]["control pages"] > 0
    ((path,),) = running.sockets(pids[0]).values()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    shown = _status(str(pids[0]), "--calls")
    assert shown.returncode == 0, shown.stderr
    assert f"process {pids[0]}: rank 0 of 3, communicator " in shown.stdout
    assert "s in call 2 (all_reduce of 64 fp32, sum); entered by ranks 0, 1 alone" in shown.stdout
    assert json.loads(_status(str(pids[0]), "--json").stdout)[0]["pid"] == pids[0]

    metrics = _status(str(pids[0]), "--prom").stdout
    labels = f'pid="{pids[0]}",door="native",communicator="{one["id"]}",memory="host"'
    assert f'plait_calls_total{{{labels},rank="0"}} 2\n' in metrics
    assert f'plait_behind_calls{{{labels},rank="2"}} 1\n' in metrics
    assert "# TYPE plait_waiting_seconds gauge\n" in metrics


def test_status_of_all_programs_has_a_table_for_each_communicator(waiting_job):
    pids = waiting_job
    ids = [_state_of(pids[rank])["communicators"][0]["id"] for rank in (0, 1)]
    assert ids[0] == ids[1]
    shown = _status("--calls").stdout
    found = re.search(rf"communicator {ids[0]}: 2 of 3 ranks answer .*?(?=\n[cp]|\Z)", shown, re.S)
    assert found and found[0].splitlines()[0].endswith(" ranks answer (plait), host memory"), shown
    for rank, pid in pids.items():
        assert len(re.findall(rf"^│ +{rank} │ +{pid} │ runs ", found[0], re.M)) == 1, shown
        assert (f"\n  rank {rank} waits " in found[0]) == (rank < 2), shown
        assert (f"\n  rank {rank} holds control pages " in found[0]) == (rank < 2), shown
        assert (f"\n  rank {rank} called\n" in found[0]) == (rank < 2), shown
    assert found[0].count(" s ago  barrier\n") == 2, shown


def test_status_of_a_stopped_rank_and_of_none(waiting_job):
    pids = waiting_job
    _state_of(pids[1])
    os.kill(pids[1], signal.SIGSTOP)
    try:
        shown = _status(str(pids[1]))
        assert shown.returncode != 0
        assert f"process {pids[1]} is stopped: ask another rank's process" in shown.stderr
        here = _state_of(pids[0])["communicators"][0]["here"]
        assert [rank["state"] for rank in here] == ["runs", "stopped", "runs"]
    finally:
        os.kill(pids[1], signal.SIGCONT)


IDLE = "import os, time, plait; os.write(1, b'%d\\n' % os.getpid()); time.sleep(60)"


def test_status_says_why_a_process_has_no_answer():
    job = subprocess.Popen(["true"])
    job.wait()
    assert "found no such process, or one that ended" in _status(str(job.pid)).stderr
    job = subprocess.Popen(["sleep", "60"])
    try:
        assert f"process {job.pid} has no library of plait loaded\n" in _status(str(job.pid)).stderr
    finally:
        job.kill()
        job.wait()
    words = [*PLAIT, "launch", "-n", "2", "--", sys.executable, "-c", IDLE]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=_plain())
    try:
        ranks = sorted(int(job.stdout.readline()) for _ in range(2))
        said = _status(str(job.pid)).stderr
        assert f"process {job.pid} is plait launch; ask its ranks: {ranks[0]}, {ranks[1]}" in said
        said = _status(str(ranks[0])).stderr
        assert f"process {ranks[0]} uses plait and has no socket in " in said
        assert "PLAIT_WARN_S" in said and "1 s" in said
    finally:
        job.kill()
        job.communicate()


def test_metrics_keep_all_digits():
    rank = {"rank": 0, "number": 12345678, "state": "runs"}
    one = {"door": "native", "id": "a", "memory": "host", "rank": 0, "here": [rank]}
    one |= {"number": 12345678, "waits": {"seconds": 1234.5678}, "bytes": {"arena": 67121209}}
    rows = running.prometheus([{"pid": 7, "communicators": [one]}]).splitlines()
    values = (row.split("{") for row in rows if not row.startswith("#"))
    ends = {name: rest.rpartition(" ")[2] for name, rest in values}
    assert ends == {
        "plait_calls_total": "12345678",
        "plait_waiting_seconds": "1234.5678",
        "plait_behind_calls": "0",
        "plait_rank_up": "1",
        "plait_memory_bytes": "67121209",
    }


def test_status_has_one_format_and_a_time_while_it_watches():
    done = _status("--json", "--prom")
    assert done.returncode == 2 and "wanted --json or --prom, found both" in done.stderr
    watching = subprocess.Popen(
        [*PLAIT, "status", "--watch", "60"], stdout=subprocess.PIPE, text=True, env=_plain()
    )
    try:
        assert re.fullmatch(r"at \d\d:\d\d:\d\d:\n", watching.stdout.readline())
    finally:
        watching.kill()
        watching.communicate()


def test_status_shows_a_running_program_again_and_again_until_an_interrupt(tmp_path):
    task = {"how": "until", "file": str(tmp_path / "seen")}
    job = launch.start("rank_programs:hangs", 2, task, {"PLAIT_WARN_S": "20"}, FOLDER)
    lines = job.lines()
    pid = next(lines)["pid"]
    words = [*PLAIT, "status", str(pid), "--watch", "0.1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    watching = subprocess.Popen(words, env=_plain(), **pipes)
    try:
        refreshes = 0
        for line in watching.stdout:
            if re.fullmatch(r"at \d\d:\d\d:\d\d:\n", line):
                said = watching.stdout.readline()
                assert re.match(rf"process {pid}: rank [01] of 2, .* 1 calls\n", said), said
                refreshes += 1
            if refreshes == 3:
                break
        watching.send_signal(signal.SIGINT)
        rest, said = watching.communicate(timeout=20)
        assert (watching.returncode, said) == (130, "plait: interrupted\n"), rest
    finally:
        watching.kill()
        watching.communicate()
        (tmp_path / "seen").touch()
    assert len(list(lines)) == 1
    assert job.wait() == [0, 0]


def test_a_program_that_asks_for_it_answers_between_calls():
    job = launch.start("rank_programs:hangs", 3, {"how": "idle"}, {"PLAIT_WARN_S": "20"}, FOLDER)
    lines = job.lines()
    row = next(lines)
    states, _ = running.ask(row["pid"])
    assert states[0]["communicators"][0]["waits"] is None
    assert states[0]["warn_s"] == 20
    assert len(list(lines)) == 2
    assert job.wait() == [0, 0, 0]
    assert running.sockets(row["pid"]) == {}  # gone with the program
