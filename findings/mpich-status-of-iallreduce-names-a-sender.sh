#!/usr/bin/env bash
# MPICH 5.0.2 (PyPI wheel mpich 5.0.2), mpi4py 4.1.2, numpy 2.4.6, CPython 3.11, Debian 12, x86-64,
# 2 ranks.
# Behaviour: the status of a finished MPI_Iallreduce is the status of an internal message: on rank 0
# source 1, tag 14, 4 bytes. The status of a collective has no sender to name.
# Output seen:
#   source 1 tag 14 count 4
# Exits 1 if the status changes.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6
cat > "$here/status.py" <<'PY'
import numpy as np
from mpi4py import MPI

comm, status = MPI.COMM_WORLD, MPI.Status()
out = np.zeros(1, np.float32)
comm.Iallreduce(np.ones(1, np.float32), out).Wait(status)
if comm.rank == 0:
    print("source", status.source, "tag", status.tag, "count", status.Get_count(MPI.BYTE))
PY
found=$("$here/venv/bin/mpiexec" -n 2 "$here/venv/bin/python" "$here/status.py" | tail -n 1)
echo "$found"
[ "$found" = "source 1 tag 14 count 4" ]
