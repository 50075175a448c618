#!/usr/bin/env bash
# MPICH 5.0.2 (PyPI wheel mpich 5.0.2), mpi4py 4.1.2, numpy 2.4.6, CPython 3.11, Debian 12, x86-64,
# 2 ranks.
# Behaviour: MPI_Request_get_status leaves a request as it is, so a program may ask again, or wait
# behind it. For a persistent receive that has ended, the first call gives source, tag and count. The
# second call, and an MPI_Wait, give the empty status of an inactive request: no sender, 0 elements.
# The received data are right, and the request can be started again.
# Output seen (-2 is MPI_ANY_SOURCE):
#   first 1 5 1
#   second -2 -1 0
#   wait -2 -1 0
# Exits 1 if one of the statuses changes.
set -euo pipefail
here=$(mktemp -d); trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q mpich==5.0.2 mpi4py==4.1.2 numpy==2.4.6
cat > "$here/status.py" <<'PY'
import numpy as np
from mpi4py import MPI

comm, status = MPI.COMM_WORLD, MPI.Status()
got = np.zeros(1, np.int32)


def show(what):
    print(what, status.source, status.tag, status.Get_count(MPI.INT))


if comm.rank == 0:
    request = comm.Recv_init(got, source=1, tag=5)
    request.Start()
    while not request.Get_status(status):
        pass
    show("first")
    assert request.Get_status(status) and got[0] == 7
    show("second")
    request.Wait(status)
    show("wait")
    request.Free()
else:
    comm.Send(np.array([7], np.int32), dest=0, tag=5)
PY
found=$("$here/venv/bin/mpiexec" -n 2 "$here/venv/bin/python" "$here/status.py" | tail -n 3)
echo "$found"
[ "$found" = "first 1 5 1
second -2 -1 0
wait -2 -1 0" ]
