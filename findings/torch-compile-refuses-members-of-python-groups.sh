#!/usr/bin/env bash
# torch 2.13.0+cpu, CPython 3.11, Debian 12, x86-64.
# Behaviour: a ProcessGroup written in Python, registered with Backend.register_backend, serves dist.barrier() in eager
# code. In a function under torch.compile the same call raises instead of breaking the graph: Dynamo compiles the group's
# own method, and since 2.13 it refuses members of a ProcessGroup that it does not know.
# Output seen:
#   eager [3.0, 3.0]
#   compiled InternalTorchDynamoError UnsafeScriptObjectError: Attempted to access unregistered member on an OpaqueObject
# Exits 1 if the compiled call works, or raises another error.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0+cpu numpy==2.4.6
found=$("$here/venv/bin/python" -W ignore - 2>/dev/null <<'PY'
import os
import tempfile

import torch
import torch.distributed as dist


class Counting(dist.ProcessGroup):
    """A group of one rank in Python, as an out-of-tree backend may have it."""

    def __init__(self, rank, size):
        super().__init__(rank, size)
        self.calls = 0

    @property
    def group_name(self):
        return self.name

    def _set_group_name(self, name):
        self.name = name

    def getBackendName(self):
        return "counting"

    def barrier(self, opts=None):
        self.calls += 1
        future = torch.futures.Future()
        future.set_result([])
        return torch._C._distributed_c10d._create_work_from_future(future)


def make(store, rank, size, timeout):
    return Counting(rank, size)


dist.Backend.register_backend("counting", make, devices=["cpu"])
folder = tempfile.mkdtemp()
dist.init_process_group("counting", init_method=f"file://{folder}/store", rank=0, world_size=1)


def step(x):
    x = x * 2
    dist.barrier()
    return x + 1


print("eager", step(torch.ones(2)).tolist())
try:
    print("compiled", torch.compile(step, backend="eager")(torch.ones(2)).tolist())
except Exception as error:
    first = str(error).splitlines()[0]
    print("compiled", type(error).__name__, first)
PY
)
echo "$found"
[ "$found" = "eager [3.0, 3.0]
compiled InternalTorchDynamoError UnsafeScriptObjectError: Attempted to access unregistered member on an OpaqueObject" ]
