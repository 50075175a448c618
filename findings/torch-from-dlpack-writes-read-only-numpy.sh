#!/usr/bin/env bash
# torch 2.13.0+cpu, numpy 2.4.6, CPython 3.11, Debian 12, x86-64.
# Behaviour: torch.from_dlpack of a numpy array that is read-only makes a tensor that may be written, with no warning (numpy
# sets the read-only flag of DLPack 1.0, and torch.from_numpy warns). Writing the tensor changes the array.
# Output seen:
#   warnings 0 array [7.0, 0.0]
# Exits 1 if torch warns, refuses, or leaves the array as it was.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q torch==2.13.0+cpu numpy==2.4.6
found=$("$here/venv/bin/python" - <<'PY'
import warnings

import numpy as np
import torch

array = np.zeros(2)
array.flags.writeable = False
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    torch.from_dlpack(array)[0] = 7
print("warnings", len(seen), "array", array.tolist())
PY
)
echo "$found"
[ "$found" = "warnings 0 array [7.0, 0.0]" ]
