"""Machines that other tools describe (`plait topo --from`), or a few numbers (`plait topo --new`).

A reader (nvidia_smi, nccl_xml, hwloc_xml) takes facts from a file; `facts.as_json` adds speeds.
"""

from __future__ import annotations

import contextlib
import sys

import plait
from plait.machines import hwloc_xml, nccl_xml, nvidia_smi
from plait.machines.facts import Machine, as_json
from plait.machines.template import template

__all__ = ["Machine", "as_json", "read", "template"]

KINDS = (
    "output of `nvidia-smi topo -m`, XML of NCCL_TOPO_DUMP_FILE, or XML of "
    "`lstopo --of xml --whole-io`"
)

MOST_BYTES = 64 << 20  # as of a topology's own file


def read(file: str, model: str = "") -> Machine:
    """Returns the facts of a file that another tool has written; "-" = standard input. Gives the
    GPUs whose model the file does not state `model`.

    Raises FileError if the file cannot be read, ParseError if it is of no kind in KINDS or has no
    GPU.
    """
    try:
        with (
            contextlib.nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as source
        ):
            data = source.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise plait.FileError(f"--from {file}: {why}; wanted {KINDS}") from error
    if len(data) > MOST_BYTES:
        raise plait.FileError(
            f"--from {file}: wanted at most {MOST_BYTES >> 20} MiB, found more; wanted {KINDS}"
        )
    said = data.decode("utf-8", "replace")
    if "<topology" in said:
        machine = hwloc_xml.read(said, file)
    elif "<system" in said:
        machine = nccl_xml.read(said, file)
    else:
        machine = nvidia_smi.read(said, file, model)
    for gpu in machine.gpus:
        gpu.model = gpu.model or model
    return machine
