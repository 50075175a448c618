"""Times calls that the drop-in forwards to NCCL, in turns with NCCL's own functions.

    LD_PRELOAD=libplait_nccl.so PLAIT_NCCL_LIB=/.../libnccl.so.2 PLAIT_OPS=broadcast \\
        torchrun --nproc-per-node 2 -m bench forwarding --csv rows.csv

Each rank has one communicator, made through the drop-in. Blocks of calls go through the drop-in's
functions and through the native library's in turn, in one process and on one stream: separate runs
of nccl-tests with and without the drop-in differ ten times more by chance. Prints the median us a
call on the host (until the call returns) and in total (until the GPU has finished the block). With
PLAIT_OPS=send_recv the program compares plait's sends and receives with NCCL's.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist

from bench.lib import rows, variants
from plait.bench.sizes import parse_bytes

BLOCK = 50  # calls
UINT8, FP32, SUM = 1, 7, 0


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("internal", ctypes.c_byte * 128),)


class NcclLibrary:
    """NCCL's functions, as exported by one library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self.group_start = library.ncclGroupStart
        self.group_end = library.ncclGroupEnd
        self.send, self.receive = library.ncclSend, library.ncclRecv
        self.all_reduce = library.ncclAllReduce
        for function in (self.send, self.receive):
            function.argtypes = [pointer, size, number, number, pointer, pointer]
        self.all_reduce.argtypes = [pointer, pointer, size, number, number, pointer, pointer]

    @staticmethod
    def must(result: int) -> None:
        """Raises if NCCL refused a call."""
        if result != 0:
            raise RuntimeError(f"NCCL refused a call: {result}")

    def address(self) -> int | None:
        """Returns the address of a function; two libraries differ in it."""
        return ctypes.cast(self.send, ctypes.c_void_p).value


def make_communicator(
    shim: ctypes.CDLL, real: ctypes.CDLL, rank: int, ranks: int
) -> ctypes.c_void_p:
    """Makes a communicator through the drop-in, which attaches to it."""
    made = UniqueId()
    if rank == 0:
        real.ncclGetUniqueId(ctypes.byref(made))
    word = torch.tensor(list(made.internal), dtype=torch.int8)
    dist.broadcast(word, 0)
    made = UniqueId((ctypes.c_byte * 128)(*word.tolist()))
    comm = ctypes.c_void_p()
    shim.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    if shim.ncclCommInitRank(ctypes.byref(comm), ranks, made, rank) != 0:
        raise RuntimeError("ncclCommInitRank failed")
    return comm


class SizedCalls:
    """Calls of one size: a message to each neighbour, or a sum."""

    def __init__(self, size: int, comm: ctypes.c_void_p, rank: int, ranks: int) -> None:
        self.data = torch.zeros(2 * size, dtype=torch.uint8, device="cuda")
        self.stream = torch.cuda.Stream()
        self.at, self.on = self.data.data_ptr(), self.stream.cuda_stream
        self.into = self.at + size
        self.size, self.comm = size, comm
        self.to, self.source = (rank + 1) % ranks, (rank - 1) % ranks

    def exchange(self, nccl: NcclLibrary) -> None:
        """Enqueues a group of one send and one receive."""
        nccl.must(nccl.group_start())
        nccl.must(nccl.send(self.at, self.size, UINT8, self.to, self.comm, self.on))
        nccl.must(nccl.receive(self.into, self.size, UINT8, self.source, self.comm, self.on))
        nccl.must(nccl.group_end())

    def reduce(self, nccl: NcclLibrary) -> None:
        """Enqueues one all_reduce."""
        nccl.must(
            nccl.all_reduce(self.at, self.into, self.size // 4, FP32, SUM, self.comm, self.on)
        )


def block_us(call: Callable[[], None]) -> tuple[float, float]:
    """Returns us a call: on the host, and in total."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(BLOCK):
        call()
    host = time.perf_counter()
    torch.cuda.synchronize()
    return 1e6 * (host - start) / BLOCK, 1e6 * (time.perf_counter() - start) / BLOCK


def medians(
    libraries: dict[str, NcclLibrary], call: Callable[[NcclLibrary], None], rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns us a call by library: on the host, and in total."""
    blocks = {key: partial(block_us, partial(call, libraries[key])) for key in sorted(libraries)}
    took = variants.taken(blocks, rounds, 5)
    host, total = (
        variants.medians({key: [times[i] for times in took[key]] for key in took}) for i in (0, 1)
    )
    return host, total


def run(given: SimpleNamespace) -> None:
    """Prints a row for each kind of call and size."""
    if "all_reduce" in os.environ.get("PLAIT_OPS", "all_reduce"):
        raise SystemExit("wanted all_reduces forwarded: set PLAIT_OPS=broadcast")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo")
    shim, real = ctypes.CDLL(None), ctypes.CDLL(os.environ["PLAIT_NCCL_LIB"])
    libraries = {"drop_in": NcclLibrary(shim), "nccl": NcclLibrary(real)}
    if libraries["drop_in"].address() == libraries["nccl"].address():
        raise SystemExit("wanted the drop-in before NCCL (LD_PRELOAD), found NCCL alone")
    comm = make_communicator(shim, real, rank, ranks)
    found = []
    for size in (parse_bytes(word) for word in given.sizes.split(",")):
        work = SizedCalls(size, comm, rank, ranks)
        for name, call in (("sendrecv", work.exchange), ("all_reduce", work.reduce)):
            host, total = medians(libraries, call, given.rounds)
            found.append(
                {"call": name, "bytes": size, "rank": rank}
                | {f"{key}_host_us": round(host[key], 3) for key in libraries}
                | {f"{key}_us": round(total[key], 3) for key in libraries}
                | {"ratio": round(total["nccl"] / total["drop_in"], 4)}
            )
    for one in range(ranks):
        dist.barrier()
        if one == rank:
            rows.show(found)
    if rank == 0:
        rows.keep(given.csv, found)
    torch.cuda.synchronize()
    shim.ncclCommDestroy.argtypes = [ctypes.c_void_p]
    shim.ncclCommDestroy(comm)
    dist.destroy_process_group()
