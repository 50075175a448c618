#!/usr/bin/env bash
# torch 2.13.0+cpu, CPython 3.11, Debian 12, x86-64.
# Behaviour: a communication hook of DDP returns a future, which may have failed. If a callback of then() raised,
# backward() raises an error with the callback's type, text and lines. If Future.set_exception() failed the future, as
# torch documents, backward() takes the exception for the hook's result: it raises an error about a cast, without the
# exception's type and lines. DDP waits in C++, where set_exception() completes a future with the exception as a value.
# Output seen:
#   then RuntimeError Got the following error when running the callback: ValueError: the step of rank 3 failed
#   set_exception RuntimeError Unable to cast the step of rank 3 failed to Tensor
#   set_exception wait() ValueError the step of rank 3 failed
# Exits 1 if any of these lines changes.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0+cpu numpy==2.4.6
found=$("$here/venv/bin/python" -W ignore - 2>/dev/null <<'PY'
import tempfile

import torch
import torch.distributed as dist


def by_then(_, bucket):
    def raises(_):
        raise ValueError("the step of rank 3 failed")

    begun = torch.futures.Future()
    failed = begun.then(raises)
    begun.set_result(None)
    return failed


def by_set_exception(_, bucket):
    failed = torch.futures.Future()
    failed.set_exception(ValueError("the step of rank 3 failed"))
    return failed


def first_line(error):
    return f"{type(error).__name__} {str(error).splitlines()[0]}"


folder = tempfile.mkdtemp()
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
for name, hook in (("then", by_then), ("set_exception", by_set_exception)):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model.register_comm_hook(None, hook)
    try:
        model(torch.ones(1, 2)).sum().backward()
        print(name, "no error")
    except Exception as error:
        print(name, first_line(error))
try:
    by_set_exception(None, None).wait()
except Exception as error:
    print("set_exception wait()", first_line(error))
PY
)
echo "$found"
[ "$found" = "then RuntimeError Got the following error when running the callback: ValueError: the step of rank 3 failed
set_exception RuntimeError Unable to cast the step of rank 3 failed to Tensor
set_exception wait() ValueError the step of rank 3 failed" ]
