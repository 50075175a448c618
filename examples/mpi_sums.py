"""Averages a model's gradients over ranks with unmodified mpi4py; plait serves the MPI calls:

PLAIT_MPI_HOST=1 plait run -- mpirun -n 2 python examples/mpi_sums.py
"""

import time

import numpy as np
from mpi4py import MPI

ranks = MPI.COMM_WORLD
gradients = np.full(4 << 20, ranks.rank + 1, np.float32)  # 16 MiB
average = np.empty_like(gradients)

begin = time.perf_counter()
for _ in range(20):
    request = ranks.Iallreduce(gradients, average, MPI.SUM)
    request.Wait()  # a program computes the next layer before this
average /= ranks.size
took_ms = (time.perf_counter() - begin) / 20 * 1e3

wanted = (ranks.size + 1) / 2
assert np.all(average == np.float32(wanted)), "wrong average"
if ranks.rank == 0:
    print(f"{ranks.size} ranks, 16 MiB: {took_ms:.2f} ms a sum, average {average[0]}")
