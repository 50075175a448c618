"""Heat equation in a distributed cube with unmodified mpi4py. Each rank has a block of the cube and
a halo of the neighbours' cells, exchanged by persistent requests before each step. With --gpu the
blocks are in GPU memory, also if the MPI is not CUDA-aware:

    plait run -- mpirun -n 8 python examples/mpi_stencil.py --gpu --edge 256
    plait run -- mpirun -n 2 python examples/mpi_stencil.py

--by-hand copies the halo to pinned memory and back, as needed without plait.
"""

import argparse
import time

import numpy as np
from mpi4py import MPI

parser = argparse.ArgumentParser(description="heat in a cube over ranks")
parser.add_argument("--edge", type=int, default=24, help="of one rank's block")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--gpu", action="store_true", help="in GPUs' memory, by torch")
parser.add_argument("--by-hand", action="store_true", help="with --gpu: stage the layers here")
options = parser.parse_args()
if options.steps < 2:
    parser.error(f"--steps: wanted 2 or more, found {options.steps}")

shape = MPI.Compute_dims(MPI.COMM_WORLD.size, 3)
grid = MPI.COMM_WORLD.Create_cart(shape, periods=[True] * 3)
edge, place = options.edge, grid.Get_coords(grid.rank)
whole = np.random.default_rng(2).standard_normal([edge * ranks for ranks in shape])
inside = (slice(1, -1),) * 3
cells = np.zeros((edge + 2,) * 3)
cells[inside] = whole[tuple(slice(edge * at, edge * (at + 1)) for at in place)]
if options.gpu:
    import torch

    torch.cuda.set_device(grid.rank % torch.cuda.device_count())
    cells = torch.from_numpy(cells).cuda()


def layer(axis, at):
    """Returns the index of a layer of the block along `axis`."""
    return tuple(slice(at, at + 1) if one == axis else slice(1, -1) for one in range(3))


def new_buffer():
    if not options.gpu:
        return np.empty(edge * edge)
    if options.by_hand:
        return torch.empty(edge * edge, dtype=torch.float64).pin_memory()
    return torch.empty(edge * edge, dtype=torch.float64, device="cuda")


def for_mpi(buffer):
    return buffer.numpy() if options.gpu and options.by_hand else buffer


# (layer to send, its buffer, layer to receive, its buffer), and a request for each buffer.
layers, requests = [], []
for axis in range(3):
    low, high = grid.Shift(axis, 1)
    for way, (source, dest) in enumerate(((low, high), (high, low))):
        out, into = (layer(axis, edge), layer(axis, 0)), (layer(axis, 1), layer(axis, edge + 1))
        going, coming = (out, into)[way]
        tag, sent, received = 2 * axis + way, new_buffer(), new_buffer()
        requests.append(grid.Recv_init(for_mpi(received), source, tag))
        requests.append(grid.Send_init(for_mpi(sent), dest, tag))
        layers.append((going, sent, coming, received))


def step(cells):
    for going, sent, _, _ in layers:
        sent[:] = cells[going].reshape(-1)
    if options.gpu:
        torch.cuda.synchronize()  # MPI requires complete send buffers
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    for _, _, coming, received in layers:
        cells[coming] = received.reshape(cells[coming].shape)
    around = sum(cells[layer_of(axis, way)] for axis in range(3) for way in (-1, 1))
    cells[inside] += 0.1 * (around - 6 * cells[inside])


def layer_of(axis, way):
    """Returns the block's cells shifted to the neighbours along `axis`."""
    moved = slice(1 + way, edge + 1 + way)
    return tuple(moved if one == axis else slice(1, -1) for one in range(3))


for turn in range(options.steps):
    if turn == 1:  # the first step is warm-up
        grid.Barrier()
        begin = time.perf_counter()
    step(cells)
    if options.gpu:
        torch.cuda.synchronize()
took_ms = grid.allreduce(time.perf_counter() - begin, MPI.MAX) / (options.steps - 1) * 1e3
for request in requests:
    request.Free()

for _ in range(options.steps):  # a single process, the same steps
    neighbours = sum(np.roll(whole, way, axis) for axis in range(3) for way in (-1, 1))
    whole += 0.1 * (neighbours - 6 * whole)
wanted = whole[tuple(slice(edge * at, edge * (at + 1)) for at in place)]
found = cells[inside].cpu().numpy() if options.gpu else cells[inside]
assert grid.allreduce(bool(np.allclose(found, wanted, rtol=1e-12, atol=1e-12)), MPI.LAND), "wrong"
if grid.rank == 0:
    where = ("GPUs, by hand" if options.by_hand else "GPUs") if options.gpu else "host memory"
    print(f"{grid.size} ranks of {edge}^3 in {where}: {took_ms:.3f} ms a step, right")
