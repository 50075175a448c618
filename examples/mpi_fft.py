"""A distributed 3-D Fourier transform with unmodified mpi4py. Each rank has some planes of the
cube; between the two halves of the transform all ranks exchange blocks (MPI_Alltoall). With --gpu
the cube is in GPU memory, also if the MPI is not CUDA-aware:

    plait run -- mpirun -n 4 python examples/mpi_fft.py --gpu --edge 512
    PLAIT_MPI_HOST=1 PLAIT_OPS=all_to_all plait run -- mpirun -n 2 python examples/mpi_fft.py

--by-hand copies to pinned memory and back around the exchange, as needed without plait.
"""

import argparse
import time

import numpy as np
from mpi4py import MPI

parser = argparse.ArgumentParser(description="a 3-D Fourier transform over ranks")
parser.add_argument("--edge", type=int, default=64, help="of the cube; a multiple of the ranks")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--gpu", action="store_true", help="in GPUs' memory, by torch")
parser.add_argument("--by-hand", action="store_true", help="with --gpu: stage the exchange here")
options = parser.parse_args()

comm = MPI.COMM_WORLD
edge, planes = options.edge, options.edge // comm.size
if edge % comm.size:
    parser.error(f"wanted an edge that {comm.size} ranks divide, found {edge}")
cube = np.random.default_rng(1).standard_normal((edge, edge, edge)).astype(np.complex64)
mine = cube[comm.rank * planes : (comm.rank + 1) * planes]  # this rank's planes

if options.gpu:
    import torch

    torch.cuda.set_device(comm.rank % torch.cuda.device_count())
    mine = torch.from_numpy(mine).cuda()
    on_host = [torch.empty(mine.shape, dtype=mine.dtype).pin_memory() for _ in range(2)]


def transform(array, axes):
    return torch.fft.fftn(array, dim=axes) if options.gpu else np.fft.fftn(array, axes=axes)


def exchange(blocks):
    """Sends block i to rank i, where it becomes block `rank`."""
    if not options.gpu:
        blocks = np.ascontiguousarray(blocks, np.complex64)
        out = np.empty_like(blocks)
        comm.Alltoall(blocks, out)
        return out
    blocks = blocks.contiguous()
    out = torch.empty_like(blocks)
    if options.by_hand:
        on_host[0].view(blocks.shape).copy_(blocks)
        comm.Alltoall(on_host[0].numpy(), on_host[1].numpy())
        return out.copy_(on_host[1].view(blocks.shape))
    torch.cuda.synchronize()  # MPI requires complete send buffers
    comm.Alltoall(blocks, out)
    return out


def fft(array):
    """Transforms this rank's planes of x; returns [y of this rank, all x, z]."""
    flat = transform(array, (1, 2)).reshape(planes, comm.size, planes, edge)
    blocks = exchange(flat.swapaxes(0, 1))  # [rank of y, x here, y there, z]
    return transform(blocks.reshape(edge, planes, edge).swapaxes(0, 1), (1,))


for turn in range(options.rounds + 1):
    if turn == 1:
        comm.Barrier()
        begin = time.perf_counter()
    result = fft(mine)
    if options.gpu:
        torch.cuda.synchronize()
took_ms = comm.allreduce(time.perf_counter() - begin, MPI.MAX) / options.rounds * 1e3

rows = slice(comm.rank * planes, (comm.rank + 1) * planes)
wanted = np.fft.fftn(cube)[:, rows].swapaxes(0, 1)
found = result.cpu().numpy() if options.gpu else result
error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
assert comm.allreduce(error, MPI.MAX) < 1e-5, f"rank {comm.rank}: wrong by {error}"
if comm.rank == 0:
    where = ("GPUs, by hand" if options.by_hand else "GPUs") if options.gpu else "host memory"
    print(f"{comm.size} ranks, {edge}^3 in {where}: {took_ms:.2f} ms a transform, right")
