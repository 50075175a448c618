"""Asks running programs of this user for their communicators, over the sockets that
src/comm/trace/status.cpp makes."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import struct
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import plait
from plait.keeper import children, stat_of

ANSWER_S = 2.0
Status = dict[str, Any]


def _is_private(folder: Path) -> bool:
    state = folder.lstat()
    mine = state.st_uid == os.geteuid()
    return mine and stat.S_ISDIR(state.st_mode) and state.st_mode & 0o077 == 0


def _owner(asked: socket.socket) -> int:
    """Returns the user of the process at the far end."""
    size = struct.calcsize("3i")
    return struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]


def _answer(path: Path) -> Status | None:
    """Returns a process's answer. None if no process listens, or none answers in time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(ANSWER_S)
        try:
            asked.connect(str(path))
            if _owner(asked) != os.geteuid():
                return None
            parts = []
            while part := asked.recv(1 << 16):
                parts.append(part)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)  # of a process that was killed
            return None
        except OSError:
            return None
    return json.loads(b"".join(parts)) if parts else None


def sockets(pid: int | None = None) -> dict[tuple[int, int], list[Path]]:
    """Returns the sockets of running programs by process and PID namespace; a program has one for
    each of its libraries of plait."""
    folder = Path(plait._core.rendezvous_folder())
    found: dict[tuple[int, int], list[Path]] = {}
    if not _is_private(folder):
        return found
    for path in sorted(folder.glob("status-*")):
        named = re.fullmatch(r"status-(\d+)-(\d+)(-\d)?", path.name)
        if named and pid in (None, int(named[1])):
            found.setdefault((int(named[1]), int(named[2])), []).append(path)
    return found


def _joined(answers: list[Status]) -> Status:
    """Returns the answers of a process's libraries as one. A library of an older version may lack a
    part."""
    joined = {
        part: [one for each in answers for one in each.get(part, [])]
        for part in ("communicators", "now")
    }
    return answers[0] | joined


def ask(pid: int | None = None) -> tuple[list[Status], list[int]]:
    """Returns the states of this user's programs, or of one, and the processes that did not
    answer."""
    states, silent = [], []
    for (process, _), paths in sockets(pid).items():
        answers = [answer for path in paths if (answer := _answer(path)) is not None]
        if answers:
            states.append(_joined(answers))
        elif any(path.exists() for path in paths):
            silent.append(process)
    return states, silent


def state_of(pid: int) -> str:
    """Returns "stopped", "dead" or "runs", by the kernel."""
    letter = (stat_of(pid) or "X")[0]
    return {"T": "stopped", "t": "stopped", "Z": "dead", "X": "dead"}.get(letter, "runs")


def _uses_plait(pid: int) -> bool:
    """Returns whether a library of plait is loaded. Raises OSError for another user's process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return any(line.rpartition("/")[2].startswith("libplait") for line in lines)


def ranks_below(pid: int) -> list[int]:
    """Returns the nearest descendants of a process that have plait loaded: a launcher's ranks."""
    of_parent, found, parents = children(), list[int](), [pid]
    while parents:
        for child in of_parent.get(parents.pop(), []):
            with suppress(OSError):
                (found if _uses_plait(child) else parents).append(child)
    return sorted(found)


def _is_launcher(pid: int) -> bool:
    """Returns whether the process is `plait launch`, which loads plait and is no rank."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    names = [Path(os.fsdecode(word)).name for word in words[:4]]
    return any(
        name in ("plait", "plait.cli", "__main__.py", "cli.py") and then == "launch"
        for name, then in pairwise(names)
    )


def why_none(pid: int) -> str:
    """Returns why a process has no socket."""
    if state_of(pid) == "dead":
        return f"process {pid}: wanted a running program, found no such process, or one that ended"
    try:
        uses, launches = _uses_plait(pid), _is_launcher(pid)
    except OSError as error:
        return f"process {pid}: wanted a program of this user, found another's ({error.strerror})"
    if launches or not uses:
        ranks = ranks_below(pid)
        has = "is plait launch" if launches else "has no library of plait loaded"
        below = f"; ask its ranks: {', '.join(map(str, ranks))}" if ranks else ""
        return f"process {pid} {has}{below}"
    return (
        f"process {pid} uses plait and has no socket in {plait._core.rendezvous_folder()}: a "
        "program of CPU ranks alone has one while a rank has waited for 1 s in a call, or always "
        "if started with PLAIT_WARN_S set; on GPUs and under NCCL, while it has a communicator"
    )


def prometheus(states: list[Status]) -> str:
    """Returns the states in Prometheus' text format."""
    rows: dict[str, tuple[str, str, list[str]]] = {
        "plait_calls_total": ("counter", "Calls that the rank has entered.", []),
        "plait_behind_calls": ("gauge", "Calls that a rank is behind the furthest one.", []),
        "plait_waiting_seconds": ("gauge", "Seconds for which the rank waits in a call.", []),
        "plait_rank_up": ("gauge", "1 = the rank's process runs, 0 = stopped or dead.", []),
        "plait_memory_bytes": ("gauge", "Memory that the communicator holds, by part.", []),
    }

    def add(name: str, value: float, **labels: object) -> None:
        text = ",".join(f'{key}="{label}"' for key, label in labels.items())
        shown = repr(value) if isinstance(value, float) else str(int(value))  # all digits
        rows[name][2].append(f"{name}{{{text}}} {shown}")

    for state in states:
        for one in state["communicators"]:
            common = {"pid": state["pid"], "door": one["door"], "communicator": one["id"]}
            common |= {"memory": one["memory"]}
            most = max((rank["number"] for rank in one["here"]), default=0)
            add("plait_calls_total", one["number"], **common, rank=one["rank"])
            waits = one["waits"]["seconds"] if one["waits"] else 0
            add("plait_waiting_seconds", waits, **common, rank=one["rank"])
            for rank in one["here"]:
                add("plait_behind_calls", most - rank["number"], **common, rank=rank["rank"])
                add("plait_rank_up", rank["state"] == "runs", **common, rank=rank["rank"])
            for part, held in one["bytes"].items():
                add("plait_memory_bytes", held, **common, rank=one["rank"], part=part)
    lines = []
    for name, (kind, meaning, values) in rows.items():
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *values]
    return "\n".join(lines) + "\n"
