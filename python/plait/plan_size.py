"""Refuses messages whose plans would take more memory than there is.

A plan has an op for each piece of each rank's message, so that its memory grows in proportion to
the message.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

import plait
from plait.outputs import human_bytes

BYTES_OF_OP = 300  # of all proposals' ops together: measured 190 to 250 on three machines
SAMPLE = 1 << 30
FREE = 4 * SAMPLE  # smaller messages are not looked at


def available_bytes() -> int:
    """Returns what this process may still take: of the machine, the container and ulimit."""
    found = [1 << 60]
    with suppress(OSError, KeyError, ValueError):
        said = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(said["MemAvailable"].split()[0]) << 10)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most, now = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        found.append(most - now)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        found.append(limit - pages * resource.getpagesize())
    return max(0, min(found))


def require_memory(machine: plait.Topology, request: plait.Request) -> None:
    """Raises InvalidArgumentError if the plans of a request would not fit in the memory."""
    size = request.message_bytes()
    if size <= FREE:
        return
    of, share = request, SAMPLE / size
    sample = plait.Request(
        *(of.collective, max(1, int(of.count * share)), of.type, of.op, of.ranks, of.root, of.peer),
        counts=[int(count * share) for count in of.counts],
    )
    plans = plait.propose(plait.for_calls(machine, sample), sample)[0]
    # Of long messages only the first plans are made.
    most_ops = max((plan.op_count() for plan in plans), default=1)
    each = most_ops * BYTES_OF_OP  # for a message of SAMPLE
    available = available_bytes()
    if each * size / SAMPLE <= available / 2:
        return
    most = FREE
    while each * 2 * most / SAMPLE <= available / 2:
        most *= 2
    raise plait.InvalidArgumentError(
        f"--bytes: plans of {human_bytes(size)} over {of.ranks} ranks of {machine.name} take "
        f"{human_bytes(int(each * size / SAMPLE))} of memory, found {human_bytes(available)}; ask "
        f"for {human_bytes(most)} or less: times of larger messages grow in proportion"
    )
