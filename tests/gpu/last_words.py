"""A rank destroys its communicator while a peer's last flags are still in flight to it.

    python3 tests/gpu/last_words.py --drop-in libplait_nccl.so

One process, two GPUs, a thread each. `stores`: rank 0 sends a message, which completes before rank
1 receives it, destroys the communicator and fills all available memory. Rank 1's stores during the
receive must not appear in that memory. `waits`: while another stream of GPU 0 is busy for seconds,
destroying must not wait for that stream. This runs once with plait's own communicators and once
under NCCL. NCCL's own part may wait: there the limit is NCCL's time alone. Prints a JSON line for
each. Exit status 1 = a failure. Needs torch. Without --drop-in only plait's own communicators run.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

UINT8, FLOAT, SUM = 1, 7, 0  # numbers of nccl.h
BYTES = 128 << 10  # of the message, within the receiver's LL packets
BUSY_S = 4.0
DEADLINE_S = 300.0


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("bytes", ctypes.c_char * 128)]


class Nccl:
    """A rank of an NCCL communicator, through the functions that this process resolves."""

    library = ctypes.CDLL(None)

    def __init__(self, name: UniqueId, rank: int) -> None:
        self.comm = ctypes.c_void_p()
        self.call("ncclCommInitRank", ctypes.byref(self.comm), 2, name, rank)

    @classmethod
    def new_id(cls) -> UniqueId:
        """For all ranks of a communicator."""
        name = UniqueId()
        cls.call("ncclGetUniqueId", ctypes.byref(name))
        return name

    @classmethod
    def call(cls, function: str, *arguments: Any) -> None:
        """Raises on any status but success."""
        status = getattr(cls.library, function)(*arguments)
        if status != 0:
            raise RuntimeError(f"{function} returned {status}")

    def all_reduce(self, value: Any, stream: Any) -> None:
        """In place."""
        at = ctypes.c_void_p(value.data_ptr())
        count = ctypes.c_size_t(value.numel())
        on = ctypes.c_void_p(stream.cuda_stream)
        self.call("ncclAllReduce", at, at, count, FLOAT, SUM, self.comm, on)

    def message(self, function: str, value: Any, stream: Any) -> None:
        """ncclSend or ncclRecv with the peer."""
        at, count = ctypes.c_void_p(value.data_ptr()), ctypes.c_size_t(value.numel())
        peer = 1 if function == "ncclSend" else 0
        on = ctypes.c_void_p(stream.cuda_stream)
        self.call(function, at, count, UINT8, peer, self.comm, on)

    def close(self) -> None:
        """ncclCommDestroy."""
        self.call("ncclCommDestroy", self.comm)


class Own:
    """A rank of a plait communicator."""

    def __init__(self, place: str, rank: int) -> None:
        import plait

        self.comm = plait.init(rank=rank, ranks=2, device=rank, rendezvous=place)

    def all_reduce(self, value: Any, stream: Any) -> None:
        """In place."""
        self.comm.all_reduce(value, out=value, stream=stream)

    def close(self) -> None:
        """Destroys the communicator by dropping the only reference."""
        del self.comm


def on_both(body: Callable[[int], None]) -> None:
    """Runs a thread per rank; raises the first error."""
    import torch

    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            torch.cuda.set_device(rank)
            body(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    if errors:
        raise errors[0]


def sleep_on(stream: Any, seconds: float) -> None:
    """Keeps the stream busy for about this long."""
    import torch

    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(seconds * 1.7e9))


def stores(rounds: int) -> dict[str, Any]:
    """Bytes of rank 0's new memory that another rank has overwritten."""
    import torch

    written = 0
    received = True
    for _ in range(rounds):
        name, both, closed = Nccl.new_id(), threading.Barrier(2), threading.Event()

        def body(
            rank: int,
            name: UniqueId = name,
            both: threading.Barrier = both,
            closed: threading.Event = closed,
        ) -> None:
            nonlocal written, received
            stream = torch.cuda.Stream()
            comm = Nccl(name, rank)
            with torch.cuda.stream(stream):
                value = torch.full((BYTES,), 7 * (1 - rank), dtype=torch.uint8, device=rank)
                comm.all_reduce(torch.ones(1024, device=rank), stream)
            stream.synchronize()
            both.wait(DEADLINE_S)
            if rank == 1:
                closed.wait(DEADLINE_S)  # rank 0's memory may have new owners from here on
                comm.message("ncclRecv", value, stream)
                stream.synchronize()
                received = received and bool((value == 7).all())
                both.wait(DEADLINE_S)
                return comm.close()
            comm.message("ncclSend", value, stream)
            stream.synchronize()
            comm.close()
            free = torch.cuda.mem_get_info(0)[0]
            blocks = [
                torch.full((64 << 20,), 0x5A, dtype=torch.uint8, device=0)
                for _ in range(min(free - (1 << 30), 8 << 30) // (64 << 20))
            ]
            torch.cuda.synchronize(0)
            closed.set()
            both.wait(DEADLINE_S)
            written += sum(int((block != 0x5A).sum()) for block in blocks)
            del blocks
            torch.cuda.empty_cache()

        on_both(body)
    return {"written": written, "received": received, "good": written == 0 and received}


def waits(make: Callable[[int], Any], allowed_s: float = BUSY_S / 2) -> dict[str, Any]:
    """Seconds each rank took to destroy the communicator while another stream of GPU 0 was busy."""
    import torch

    took = [0.0, 0.0]
    other = torch.cuda.Stream(0)
    both = threading.Barrier(2)

    def body(rank: int) -> None:
        stream = torch.cuda.Stream()
        comm = make(rank)
        with torch.cuda.stream(stream):
            value = torch.ones(1 << 20, device=rank)
        for _ in range(10):
            comm.all_reduce(value, stream)
        stream.synchronize()
        both.wait(DEADLINE_S)
        if rank == 0:
            sleep_on(other, BUSY_S)
        both.wait(DEADLINE_S)
        began = time.monotonic()
        comm.close()
        took[rank] = round(time.monotonic() - began, 3)

    began = time.monotonic()
    on_both(body)
    other.synchronize()
    busy = time.monotonic() - began
    return {"took_s": took, "good": max(took) < allowed_s and busy > BUSY_S / 2}


def by_nccl() -> Callable[[int], Nccl]:
    """Makes a rank of a communicator."""
    name = Nccl.new_id()
    return lambda rank: Nccl(name, rank)


def nccl_alone_s() -> float:
    """Seconds that destroying takes without the drop-in, measured in a separate process."""
    maps = Path("/proc/self/maps").read_text().split()  # torch's NCCL is loaded by now
    library = next(word for word in maps if Path(word).name.startswith("libnccl.so"))
    env = dict(os.environ, LD_PRELOAD=library)
    command = [sys.executable, sys.argv[0], "--nccl-alone"]
    said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    if said.returncode != 0:
        raise RuntimeError(f"NCCL alone ended with {said.returncode}: {said.stderr[-300:]}")
    return float(max(json.loads(said.stdout)["took_s"]))


def main() -> int:
    """Runs all checks possible here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drop-in", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nccl-alone", action="store_true", help="`waits` by what is preloaded")
    args = parser.parse_args()
    if args.nccl_alone:
        print(json.dumps(waits(by_nccl())))
        return 0
    if args.drop_in and args.drop_in not in os.environ.get("LD_PRELOAD", ""):
        env = dict(os.environ, LD_PRELOAD=os.path.abspath(args.drop_in))
        # Makes plait serve the calls, whatever a tuning table says.
        env |= {"PLAIT_BITWISE": "1", "PLAIT_TUNING": "none", "NCCL_NVLS_ENABLE": "0"}
        preloaded = [*sys.argv[:1], "--drop-in", os.path.abspath(args.drop_in)]
        preloaded += ["--rounds", str(args.rounds)]
        os.execve(sys.executable, [sys.executable, *preloaded], env)
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    import torch

    if torch.cuda.device_count() < 2:
        print(json.dumps({"skipped": f"needs two GPUs, found {torch.cuda.device_count()}"}))
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        rows.append({"case": "waits", "door": "plait"})
        rows[-1] |= waits(lambda rank: Own(f"unix:{folder}/meet", rank))
    if args.drop_in:
        ctypes.CDLL(
            "libnccl.so.2", mode=ctypes.RTLD_GLOBAL
        )  # torch's library, with symbols that are not global
        alone = nccl_alone_s()
        rows.append({"case": "waits", "door": "nccl", "nccl_alone_s": alone})
        rows[-1] |= waits(by_nccl(), max(BUSY_S / 2, alone + 1))
        rows.append({"case": "stores", "door": "nccl"} | stores(args.rounds))
    for row in rows:
        print(json.dumps(row), flush=True)
    return 0 if all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
