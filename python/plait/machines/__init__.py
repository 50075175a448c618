"""Machines that other tools describe (`plait topo --from`), or a few numbers (`plait topo --new`).

A reader (nvidia_smi, nccl_xml, hwloc_xml) takes facts from a file; `facts.as_json` adds speeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import plait
from plait.machines import hwloc_xml, nccl_xml, nvidia_smi
from plait.machines.facts import Machine, as_json
from plait.machines.template import template

__all__ = ["Machine", "as_json", "read", "template"]

KINDS = (
    "output of `nvidia-smi topo -m`, XML of NCCL_TOPO_DUMP_FILE, or XML of "
    "`lstopo --of xml --whole-io`"
)


def read(file: str, model: str = "") -> Machine:
    """Returns the facts of a file that another tool has written; "-" = standard input. Gives the
    GPUs whose model the file does not state `model`.

    Raises FileError if the file cannot be read, ParseError if it is of no kind in KINDS or has no
    GPU.
    """
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise plait.FileError(f"--from {file}: {why}; wanted {KINDS}") from error
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
