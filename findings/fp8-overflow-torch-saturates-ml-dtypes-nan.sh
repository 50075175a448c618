#!/usr/bin/env bash
# torch 2.13.0+cpu, ml_dtypes 0.6.0, numpy 2.4.6, CPython 3.11, Debian 12, x86-64.
# Behaviour: a float above the range of float8_e4m3fn (448) becomes 448 by torch's cast and NaN by
# the cast of ml_dtypes (used by JAX). Infinity behaves the same. Below 464, the midpoint, both
# casts round to 448.
# Output seen:
#   torch 448.0 448.0 448.0
#   ml_dtypes 448.0 nan nan
# Exits 1 if either changes.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0+cpu ml_dtypes==0.6.0 numpy==2.4.6
found=$("$here/venv/bin/python" - <<'PY'
import ml_dtypes
import numpy as np
import torch

values = [460.0, 1000.0, float("inf")]
by_torch = torch.tensor(values).to(torch.float8_e4m3fn).float().tolist()
with np.errstate(all="ignore"):
    by_numpy = np.array(values, np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32).tolist()
print("torch", *by_torch)
print("ml_dtypes", *by_numpy)
PY
)
echo "$found"
[ "$found" = $'torch 448.0 448.0 448.0\nml_dtypes 448.0 nan nan' ]
