"""NCCL calls by ctypes, for comparisons with plait in the same process.

The library is PLAIT_NCCL_LIB, else that of the nvidia.nccl wheel, else the system's. Multicast
(NVLS) follows NCCL_NVLS_ENABLE.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any

import plait
from plait.arrays import DTYPE_OF_TYPE
from plait.bench.oracle import pieces
from plait.bench.reductions import REDUCING

# plait's type and op -> ncclDataType_t and ncclRedOp_t.
_NUMBERED = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("fp16", "fp32", "fp64", "bf16", "fp8e4m3", "fp8e5m2"),
)
TYPES = {name: number for number, name in enumerate(_NUMBERED)}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
# Collectives that call() has; takes() refuses the rest.
COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    *("all_to_all", "gather", "scatter", "send_recv", "copy"),
)
_ID_BYTES = 128


def library_path() -> str:
    """Returns the path of NCCL; raises FileError if PLAIT_NCCL_LIB names no file."""
    named = os.environ.get("PLAIT_NCCL_LIB", "")
    if named:
        if not Path(named).is_file():
            raise plait.FileError(f"PLAIT_NCCL_LIB: wanted NCCL's library, found no file {named}")
        return named
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        candidate = Path(folder) / "lib" / "libnccl.so.2"
        if candidate.is_file():
            return str(candidate)
    return "libnccl.so.2"


def version_text(number: int) -> str:
    """Returns a version as text: 22809 -> '2.28.9'. Numbers before 2.9 have 4 digits."""
    major, rest = divmod(number, 10000 if number >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


class _UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * _ID_BYTES),)


class _Library:
    """The loaded library; checks the result of every call."""

    def __init__(self) -> None:
        path = library_path()
        try:
            self._library: Any = ctypes.CDLL(path)
        except OSError as error:
            raise plait.FileError(
                f"wanted NCCL to compare with, found none ({error}); set PLAIT_NCCL_LIB"
            ) from None
        self.path = path
        self._library.ncclGetErrorString.restype = ctypes.c_char_p

    @property
    def version(self) -> str:
        """Such as 2.28.9."""
        number = ctypes.c_int()
        self._do("ncclGetVersion", ctypes.byref(number))
        return version_text(number.value)

    def _do(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            said = self._library.ncclGetErrorString(result).decode()
            raise plait.DriverError(f"{name} of {self.path} returned {result}: {said}")


class NcclPair(_Library):
    """Two GPUs of this process, numbered 0 and 1, that send bytes to each other."""

    def __init__(self, ordinals: tuple[int, int]) -> None:
        super().__init__()
        self._comms = (ctypes.c_void_p * 2)()
        self._do("ncclCommInitAll", self._comms, ctypes.c_int(2), (ctypes.c_int * 2)(*ordinals))

    def copy(self, moves: list[tuple[int, int, int]], size: int, streams: tuple[int, int]) -> None:
        """Enqueues moves as a group. moves: (sending GPU, source, destination on the receiving
        GPU)."""
        count, kind = ctypes.c_size_t(size), ctypes.c_int(TYPES["uint8"])

        def call(name: str, address: int, here: int) -> None:
            comm, stream = ctypes.c_void_p(self._comms[here]), ctypes.c_void_p(streams[here])
            at, peer = ctypes.c_void_p(address), ctypes.c_int(1 - here)
            self._do(name, at, count, kind, peer, comm, stream)

        self._do("ncclGroupStart")
        for sender, source, output in moves:
            call("ncclSend", source, sender)
            call("ncclRecv", output, 1 - sender)
        self._do("ncclGroupEnd")

    def leave(self) -> None:
        """Destroys the communicators. No call may be pending."""
        for comm in self._comms:
            self._do("ncclCommDestroy", ctypes.c_void_p(comm))


class Nccl(_Library):
    """NCCL communicator of a rank. Calls are enqueued on a stream."""

    def __init__(self) -> None:
        super().__init__()
        self._comm = ctypes.c_void_p()
        self.rank = self.ranks = 0

    def new_id(self) -> bytes:
        """Returns a unique id, made on rank 0 for all ranks."""
        unique = _UniqueId()
        self._do("ncclGetUniqueId", ctypes.byref(unique))
        return ctypes.string_at(ctypes.byref(unique), _ID_BYTES)

    def join(self, unique: bytes, rank: int, ranks: int) -> None:
        """Makes the communicator. Collective; the GPU's context must be current."""
        given = _UniqueId()
        ctypes.memmove(ctypes.byref(given), unique, _ID_BYTES)
        self._do(
            "ncclCommInitRank",
            ctypes.byref(self._comm),
            ctypes.c_int(ranks),
            given,
            ctypes.c_int(rank),
        )
        self.rank, self.ranks = rank, ranks

    def leave(self) -> None:
        """Destroys the communicator. Collective; no call may be pending."""
        if self._comm:
            self._do("ncclCommDestroy", self._comm)
            self._comm = ctypes.c_void_p()

    @staticmethod
    def takes(request: plait.Request) -> bool:
        """Returns whether NCCL has this type, op and collective."""
        reduces = request.collective in REDUCING
        known = request.collective in COLLECTIVES and request.type in TYPES
        return known and (not reduces or request.op in OPS)

    def call(self, request: plait.Request, source: int, output: int, stream: int) -> None:
        """Enqueues a request by NCCL's collective, or by sends and receives."""
        src, dst, count = ctypes.c_void_p(source), ctypes.c_void_p(output), request.count
        size, kind = ctypes.c_size_t(count), ctypes.c_int(TYPES[request.type])
        op, root = ctypes.c_int(OPS.get(request.op, 0)), ctypes.c_int(request.root)
        comm, on = self._comm, ctypes.c_void_p(stream)
        name = request.collective
        if name == "all_reduce":
            self._do("ncclAllReduce", src, dst, size, kind, op, comm, on)
        elif request.counts:
            self._do("ncclGroupStart")
            if name == "reduce_scatter":
                self._reduce_blocks(request, source, output, on)
            else:
                self._send_and_receive(request, source, output, on)
            self._do("ncclGroupEnd")
        elif name == "reduce_scatter":
            self._do("ncclReduceScatter", src, dst, size, kind, op, comm, on)
        elif name == "all_gather":
            self._do("ncclAllGather", src, dst, size, kind, comm, on)
        elif name == "broadcast":
            self._do("ncclBroadcast", src, dst, size, kind, root, comm, on)
        elif name == "reduce":
            self._do("ncclReduce", src, dst, size, kind, op, root, comm, on)
        else:
            self._do("ncclGroupStart")
            self._send_and_receive(request, source, output, on)
            self._do("ncclGroupEnd")

    def _send_and_receive(self, request: plait.Request, source: int, output: int, on: Any) -> None:
        """Enqueues collectives that some NCCL versions lack, in the form of NCCL's manual."""
        size = DTYPE_OF_TYPE[request.type].itemsize
        kind = ctypes.c_int(TYPES[request.type])

        def move(call: str, address: int, count: int, peer: int) -> None:
            at, end = ctypes.c_void_p(address), ctypes.c_int(peer)
            self._do(call, at, ctypes.c_size_t(count), kind, end, self._comm, on)

        for peer in range(self.ranks):
            place = output
            for sender, at, count in self._arriving(request, peer):
                if sender == self.rank:
                    move("ncclSend", source + at * size, count, peer)
                if peer == self.rank:
                    move("ncclRecv", place, count, sender)
                place += count * size

    def _reduce_blocks(self, request: plait.Request, source: int, output: int, on: Any) -> None:
        """Enqueues a reduce per rank, since ncclReduceScatter has equal blocks only."""
        size = DTYPE_OF_TYPE[request.type].itemsize
        for peer in range(self.ranks):
            _, at, count = pieces(request, peer)[0]
            self._do(
                "ncclReduce",
                *(ctypes.c_void_p(source + at * size), ctypes.c_void_p(output)),
                *(ctypes.c_size_t(count), ctypes.c_int(TYPES[request.type])),
                *(ctypes.c_int(OPS[request.op]), ctypes.c_int(peer), self._comm, on),
            )

    @staticmethod
    def _arriving(request: plait.Request, rank: int) -> list[tuple[int, int, int]]:
        """Returns the pieces of a rank's output (oracle.pieces); empty without an output."""
        return pieces(request, rank) if request.output_bytes(rank) else []
