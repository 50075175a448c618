"""Says what serves a call in each entry point: under NCCL (`plait run`) and under MPI.

The core answers for NCCL by the functions of the drop-in, and has the sizes of the drop-in under
MPI. Settings (PLAIT_OPS, PLAIT_MIN_BYTES, PLAIT_BITWISE, ...) are those of this environment.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

import plait
from plait import _core, run, settings
from plait.bench.sizes import REDUCTIONS
from plait.outputs import human_bytes
from plait.what_runs import Runs

MESSAGES = ("send_recv", "copy")
MOST_ON_NODE, MOST_RANKS = _core.MOST_RANKS, 64
# Calls of MPI that tell each rank its own part of the sizes alone (MPI_Alltoallv, ...).
SIZES_OF_TWO = ("all_to_all", "gather", "scatter")
NO_TYPE_OF_MPI = ("fp16", "bf16", "fp8e4m3", "fp8e5m2")
NO_OP_OF_MPI = ("avg", "premul_sum")
SHORT = ("int8", "uint8", "int16", "uint16")


def _on_gpus(machine: plait.Topology, request: plait.Request) -> bool:
    places = machine.rank_devices()[: request.ranks]
    return any(machine.devices[place].kind == "gpu" for place in places)


def _nccl_version() -> str:
    """Returns the version of the NCCL that programs would use, as files of tables have it."""
    library = run.find_nccl()
    number = run.nccl_version(library) if library else 0
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number >= 10000 else ""


def table_beside_nccl(machine: plait.Topology, request: plait.Request) -> str:
    """Returns the file of the tuning table that the drop-in reads; empty = none.

    Where no NCCL is found, the table beside the newest NCCL.
    """
    pattern = _core.tuning_file_beside_nccl(machine, request, "*")
    if not pattern or os.environ.get("PLAIT_TUNING"):
        return pattern
    folder, _, name = pattern.rpartition("/")
    files = glob.glob(f"{glob.escape(folder)}/{name}")
    if not files:
        return ""
    if version := _nccl_version():
        file = _core.tuning_file_beside_nccl(machine, request, version)
        return file if Path(file).exists() else ""

    versions = [re.search(r"-nccl(\d+)\.(\d+)\.(\d+)-\d+\.json$", file) for file in files]
    newest = max((tuple(map(int, one.groups())) for one in versions if one), default=())
    text = ".".join(map(str, newest))
    return _core.tuning_file_beside_nccl(machine, request, text) if text else ""


def _shortened(why: str) -> str:
    """Returns the reason without the list of measured GPUs."""
    return re.sub(
        r"plait was measured beside NCCL on .*, not on (\d+ of [^,(;]*|unlike GPUs)"
        r"[^(;]*?(, through host memory)?( \([^)]*\))?;",
        lambda found: f"not measured beside NCCL on {found[1]}{found[2] or ''}{found[3] or ''};",
        why,
    )


def under_nccl(machine: plait.Topology, request: plait.Request) -> str:
    """Returns what serves the call of a program under NCCL (`plait run`); empty without GPUs.

    Text such as 'engine two_shot(...), predicted 40.1 us', or why NCCL serves it and what changes
    that.
    """
    if not _on_gpus(machine, request):
        return ""
    file = table_beside_nccl(machine, request)
    found = _core.under_nccl(machine, request, settings.read_table(file))
    if found.is_error:
        return f"an error, since PLAIT_BITWISE_STRICT is 1: {found.why}"
    if found.why:
        return f"left to NCCL: {_shortened(found.why)}"
    if found.engine is None:
        return str(found.other)
    by = f", as {file} says" if found.engine.choice.by == "table" else ""
    return f"engine {found.engine.plan.label}, predicted {found.engine.predicted_us:.2f} us{by}"


def served_by(said: str) -> str:
    """Returns who serves a call of which under_nccl() or under_mpi() says `said`: "plait",
    "library" or "error"; empty = there is no such call."""
    if not said or said.startswith("an error"):
        return "error" if said else ""
    return "library" if said.startswith("left to ") else "plait"


def of_call(machine: plait.Topology, request: plait.Request, runs: Runs) -> dict[str, str]:
    """Returns what serves the call under NCCL and MPI. A named strategy is of plait's own calls."""
    if runs.by in ("caller", "file"):
        return {}
    doors = {
        "plait run": under_nccl(machine, request),
        "under MPI": under_mpi(machine, request),
    }
    return {door: said for door, said in doors.items() if said}


def _nodes(machine: plait.Topology, request: plait.Request) -> list[int]:
    """Returns the number of ranks of each node; PLAIT_NODE_SIZE pretends nodes."""
    places = machine.rank_devices()[: request.ranks]
    size = int(os.environ.get("PLAIT_NODE_SIZE") or 0)
    named = [rank // size if size else machine.devices[at].node for rank, at in enumerate(places)]
    return [named.count(node) for node in dict.fromkeys(named)]


def _why_no_call_of_mpi(request: plait.Request, nodes: list[int]) -> str:
    """Returns why plait serves the call at no place of its buffers; empty = it may."""
    reduces = request.collective in REDUCTIONS
    if request.ranks > MOST_RANKS:
        return f"more than {MOST_RANKS} ranks"
    if max(nodes) > MOST_ON_NODE:
        return f"a node has more than {MOST_ON_NODE} ranks"
    if reduces and request.op in NO_OP_OF_MPI:
        return f"MPI has no {request.op}; plait does not run programs' own operations"
    if reduces and request.type in NO_TYPE_OF_MPI:
        return f"MPI has no {request.type}; plait does not reduce programs' own types"
    if len(nodes) > 1 and len(nodes) == request.ranks and not os.environ.get("PLAIT_MIN_BYTES"):
        return "each node has one rank; PLAIT_MIN_BYTES changes that"
    if len(nodes) > 1 and request.counts:
        return "over several nodes parts of unequal sizes are the MPI's"
    return ""


def _bytes_compared(request: plait.Request) -> int:
    """Returns the bytes that PLAIT_MIN_BYTES is compared with."""
    if not request.counts or request.collective not in SIZES_OF_TWO:
        return int(request.message_bytes())
    element = plait.Request(request.collective, 1, request.type).message_bytes()
    if request.collective != "all_to_all":
        return sum(request.counts) * element
    ranks = request.ranks
    rows = [request.counts[rank * ranks : (rank + 1) * ranks] for rank in range(ranks)]
    sent, got = map(sum, rows), map(sum, zip(*rows, strict=True))
    return max(*sent, *got) * element


def under_mpi(machine: plait.Topology, request: plait.Request) -> str:
    """Returns what serves a blocking call of MPI (`plait run -- mpirun`), and what changes that."""
    if request.ranks < 2 or request.count == 0:
        return ""
    on_gpus, nodes = _on_gpus(machine, request), _nodes(machine, request)
    left = "left to the MPI, from pinned staging buffers" if on_gpus else "left to the MPI"
    if os.environ.get("PLAIT_DISABLE") == "1":
        return "left to the MPI: PLAIT_DISABLE is 1"
    name = "send_recv" if request.collective in MESSAGES else request.collective
    has_own_sizes = bool(request.counts) and name in SIZES_OF_TWO
    if on_gpus and len(nodes) == 1 and not has_own_sizes:
        if why := _why_no_call_of_mpi(request, nodes):
            return f"{left}: {why}"
        least = _core.mpi_sizes().on_gpus(name)
        if least is not None and _bytes_compared(request) >= least:
            return _on_device_memory(machine, request, name) + _but_for_short_sums(request)
        if least is None:
            return f"{left}: PLAIT_OPS does not name {name}"
        return f"{left}: below PLAIT_MIN_BYTES ({human_bytes(least)})"
    return _on_host_memory(request, nodes, name, left, on_gpus)


def _on_device_memory(machine: plait.Topology, request: plait.Request, name: str) -> str:
    if name == "send_recv":
        return "one copy between the processes, if the MPI makes progress in all its functions"
    staged = "staged through host memory by plait's CPU ranks"
    if lacks := _core.why_no_plans(machine, request):
        return f"{staged}: {lacks}"
    if request.counts:
        return f"{staged}: engines take parts of equal sizes alone"
    return "as above, on device memory"


def _on_host_memory(
    request: plait.Request, nodes: list[int], name: str, left: str, on_gpus: bool
) -> str:
    """Returns what serves a call whose buffers lie in host memory or are staged there."""

    def least(with_host: bool) -> int | None:
        sizes = _core.mpi_sizes(with_host)
        found = sizes.multinode(name) if len(nodes) > 1 else sizes.on_host(name)
        return None if found is None else int(found)

    bytes_compared = _bytes_compared(request)
    if why := _why_no_call_of_mpi(request, nodes):
        return f"{left}: {why}"
    now, most = least(False), least(True)
    if now is not None and bytes_compared >= now:
        return _served_on_host(name, on_gpus) + _but_for_short_sums(request)
    if most is None:
        others = "" if os.environ.get("PLAIT_MPI_HOST") == "1" else "PLAIT_MPI_HOST=1 and "
        names = ",".join(filter(None, (os.environ.get("PLAIT_OPS", ""), name)))
        return f"{left}; {others}PLAIT_OPS={names} change that"
    if bytes_compared < most:
        return f"{left}: below PLAIT_MIN_BYTES ({human_bytes(most)})"
    return f"{left}; PLAIT_MPI_HOST=1 changes that"


def _served_on_host(name: str, on_gpus: bool) -> str:
    if name == "send_recv":
        return "one copy between the processes, if the MPI makes progress in all its functions"
    return "staged through host memory, summed by CPU cores" if on_gpus else "as above"


def _but_for_short_sums(request: plait.Request) -> str:
    if request.collective not in REDUCTIONS or request.op != "sum" or request.type not in SHORT:
        return ""
    return "; under Open MPI, whose sums of 8 and 16 bits saturate, left to the MPI"
