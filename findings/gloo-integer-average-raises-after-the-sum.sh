#!/usr/bin/env bash
# torch 2.13.0+cpu with the gloo backend, CPython 3.11, Debian 12, x86-64, 2 ranks.
# Behaviour: dist.all_reduce(tensor, op=ReduceOp.AVG) of int64 raises, since gloo has no integer
# average. By then the tensor already holds the sum of both ranks: a caller that catches the error
# goes on with a changed tensor.
# Output seen (rank 0; each rank passed 1):
#   raised RuntimeError, tensor 2
# Exits 1 if nothing is raised or the tensor is as it was.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0+cpu numpy==2.4.6
cat > "$here/average.py" <<'PY'
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(1, dtype=torch.int64)
said = "raised nothing"
try:
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
except Exception as error:
    said = f"raised {type(error).__name__}"
if dist.get_rank() == 0:
    print(f"{said}, tensor {tensor.item()}")
dist.destroy_process_group()
PY
found=$("$here/venv/bin/torchrun" --standalone --nproc-per-node 2 "$here/average.py" 2> "$here/log" | tail -n 1) || cat "$here/log"
echo "$found"
[[ "$found" == raised\ RuntimeError,\ tensor\ 2 ]]
