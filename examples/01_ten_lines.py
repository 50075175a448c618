"""Ten lines: plait launch -n 4 python examples/01_ten_lines.py"""

import numpy as np

import plait

comm = plait.init()  # under plait launch, torchrun, mpirun or Slurm
gradient = np.full(1 << 20, comm.rank, np.float32)
total = comm.all_reduce(gradient, "sum")  # the same bits on every rank, every time
parts = comm.reduce_scatter(gradient, "avg")
whole = comm.all_gather(parts)
if comm.rank == 0:
    print(f"{comm.ranks} ranks: {total[0]:g} in all, {whole[0, 0]:g} on average")
    print(comm.explain(plait.Request("all_reduce", gradient.size, "fp32", ranks=comm.ranks)))
