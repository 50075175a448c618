#!/usr/bin/env bash
# MPICH 5.0.2 (PyPI wheel mpich 5.0.2), mpi4py 4.1.2, numpy 2.4.6, CPython 3.11, Debian 12, x86-64,
# 2 ranks.
# Behaviour: MPI_MAX over 37 floats, all NaN on a single rank, keeps the NaN in half of the vector
# and loses it in the rest. The half with NaN depends on the rank that had the NaN.
# Output seen:
#   NaN of rank 0 kept at 19..36
#   NaN of rank 1 kept at 0..18
# Exits 1 if the places change.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6
cat > "$here/largest.py" <<'PY'
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
kept = []
for rank in range(comm.size):
    mine = np.full(37, np.nan if comm.rank == rank else 0, np.float32)
    out = np.zeros(37, np.float32)
    comm.Allreduce(mine, out, MPI.MAX)
    kept.append(np.flatnonzero(np.isnan(out)).tolist())
if comm.rank == 0:
    for rank, places in enumerate(kept):
        print(f"NaN of rank {rank} kept at", f"{places[0]}..{places[-1]}" if places else "no index")
PY
found=$("$here/venv/bin/mpiexec" -n 2 "$here/venv/bin/python" "$here/largest.py" | tail -n 2)
echo "$found"
[ "$found" = $'NaN of rank 0 kept at 19..36\nNaN of rank 1 kept at 0..18' ]
