#!/usr/bin/env bash
# MPICH 5.0.2 (PyPI wheel mpich 5.0.2, mpi4py 4.1.2, numpy 2.4.6, CPython 3.11, Debian 12, x86-64),
# 4 ranks of a single host.
# Behaviour: below MPI_THREAD_MULTIPLE, the first four Allreduces on a communicator add the ranks'
# values in a first order, and all later Allreduces in a second order. The same fp32 data give
# different bits from the fifth call on.
# Output seen (2^24 + 1 + 1 + 1 in fp32, the excess over 2^24 by call):
#   2 2 2 2 0 0 0 0
# Exits 1 if the excess no longer changes after the fourth call.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6
cat > "$here/sums.py" <<'PY'
import mpi4py

mpi4py.rc.thread_level = "single"
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
mine = np.array([2.0**24 if comm.rank == 0 else 1.0], np.float32)
found = []
for _ in range(8):
    total = np.zeros(1, np.float32)
    comm.Allreduce(mine, total)
    found.append(int(total[0] - 2**24))
if comm.rank == 0:
    print(*found)
PY
out=$("$here/venv/bin/mpiexec" -n 4 "$here/venv/bin/python" "$here/sums.py" | tail -n 1)
echo "$out"
read -r -a excess <<< "$out"
[ "${excess[0]} ${excess[1]} ${excess[2]}" = "${excess[3]} ${excess[3]} ${excess[3]}" ] && [ "${excess[3]}" != "${excess[4]}" ]
