"""Runs a subcommand of bench in a rank with CUDA's functions of torch on the host, to try programs
of several GPUs without one: streams do nothing, events read the clock, graphs repeat their calls.

    python cuda_stand_in.py decode --hidden 64 ...
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

ROOT = Path(__file__).resolve().parents[2]


class OnHost(TorchFunctionMode):
    """Makes tensors of the device `cuda` on the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*args, **kwargs)


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


class Stream:
    cuda_stream = 0

    def wait_stream(self, other: Any) -> None:
        pass

    synchronize = Event.synchronize


class Graph:
    """Repeats the collectives that ran while it was captured."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


CAPTURING: list[Graph] = []


@contextlib.contextmanager
def captured(graph: Graph, stream: Any = None) -> Any:
    CAPTURING.append(graph)
    yield
    CAPTURING.pop()


def recorded(function: Any) -> Any:
    """Returns a collective that a graph under capture repeats."""

    def call(*args: Any, **how: Any) -> Any:
        if CAPTURING:
            CAPTURING[-1].calls.append(lambda: function(*args, **how))
        return function(*args, **how)

    return call


def stand_in() -> None:
    cuda: Any = torch.cuda
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(cuda, name, lambda *a: None)
    cuda.current_device = lambda: 0
    cuda.mem_get_info = lambda: (1 << 30, 2 << 30)
    cuda.is_current_stream_capturing = lambda: bool(CAPTURING)
    cuda.Event, cuda.Stream, cuda.CUDAGraph, cuda.graph = Event, Stream, Graph, captured
    cuda.current_stream = lambda: Stream()
    cuda.stream = lambda one: contextlib.nullcontext()
    torch.Generator = lambda device="cpu": torch._C.Generator("cpu")
    init, barrier = dist.init_process_group, dist.barrier
    dist.init_process_group = lambda backend="", device_id=None, **how: init("gloo", **how)
    dist.barrier = lambda group=None, device_ids=None: barrier(group)
    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
        setattr(dist, name, recorded(getattr(dist, name)))


if __name__ == "__main__":
    stand_in()
    sys.argv[0] = str(ROOT / "bench")
    with OnHost():
        runpy.run_path(sys.argv[0], run_name="__main__")
