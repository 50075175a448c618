"""Reads plans from files: output of `plait plan --json`, or a plan's JSON."""

from __future__ import annotations

import json
import os
import stat
import sys

import plait
from plait.outputs import why

MAX_FILE_BYTES = 64 << 20


def is_plan_file(word: str) -> bool:
    """Returns whether a command's first argument names a file, not a collective."""
    return word == "-" or word.endswith(".json") or os.sep in word


def load_plan(name: str) -> plait.Plan:
    """Returns the plan in a file or on standard input ('-'), not yet verified."""
    text = _read(name)
    try:
        found = json.loads(text)
    except ValueError:
        found = None  # the reader of plans names the place
    if isinstance(found, dict) and "plan" in found:
        text = json.dumps(found["plan"])
    return plait.Plan.from_json(text)


def machine_of(plan: plait.Plan) -> plait.Topology:
    """Returns the shipped topology of a plan, else this machine's."""
    if plan.topology in plait.shipped_topologies():
        return plait.load_topology(plan.topology)
    return plait.discover()


def _read(name: str) -> str:
    """Returns a file's text. Refuses non-regular files (a pipe could block) and long files."""
    wanted = f"wanted a regular file of at most {MAX_FILE_BYTES >> 20} MiB"
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            # Opened once, then checked; does not wait for the writer of a pipe.
            with os.fdopen(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise plait.FileError(f"{wanted}, found {name}, which is none")
                data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise plait.FileError(f"{wanted}, found more in {name}")
        return data.decode()
    except FileNotFoundError:
        raise plait.FileError(f"wanted a plan's file, found no file {name}") from None
    except OSError as error:
        raise plait.FileError(f"{wanted}, found {name}: {why(error)}") from None
    except UnicodeDecodeError:
        raise plait.FileError(f"wanted a plan's file, found {name}, which is no text") from None
