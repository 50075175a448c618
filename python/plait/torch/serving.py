"""Tensor-parallel sums of vLLM and SGLang by plait, at every size, eager and in graphs.

The program's group class gets a plait communicator of the same ranks. plait runs sums of floats;
all other calls stay with the program. If plait cannot join the ranks, all ranks keep the program's
sums; under PLAIT_BITWISE_STRICT=1 that is an error.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

import plait

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def is_ours(tensor: Any) -> bool:
    """Returns whether a sum of the tensor depends on the order of terms."""
    return tensor.dtype in FLOATS


def join(cpu_group: Any, device: torch.device) -> plait.Communicator | None:
    """Makes a communicator of a gloo group's ranks. Returns None on all ranks if that fails."""
    rank, ranks = dist.get_rank(cpu_group), dist.get_world_size(cpu_group)
    where: list[str | None] = [None]
    if rank == 0:  # a socket's path must be short; TMPDIR may be long
        where[0] = tempfile.mkdtemp(prefix="group-", dir=plait._core.rendezvous_folder())
    dist.broadcast_object_list(where, src=dist.get_global_rank(cpu_group, 0), group=cpu_group)
    sees: list[Any] = [None] * ranks
    dist.all_gather_object(sees, os.path.isdir(str(where[0])), group=cpu_group)
    ordinal = device.index if device.type == "cuda" else -1
    if device.type == "cuda" and ordinal is None:
        ordinal = torch.cuda.current_device()
    try:
        if not all(sees):
            raise plait.UnsupportedError(
                f"ranks {[one for one in range(ranks) if not sees[one]]} of this group do not see "
                f"{where[0]}, where rank 0 waits: all ranks must be on one host and share /tmp"
            )
        return plait.Communicator(
            rank, ranks, rendezvous=f"unix:{where[0]}/meet", device=ordinal, bitwise=True
        )
    except plait.Error as error:
        if os.environ.get("PLAIT_BITWISE_STRICT") == "1":
            raise
        print(f"plait: the program's own sums stay: {error}", file=sys.stderr)
        return None
    finally:
        if rank == 0:
            shutil.rmtree(str(where[0]), ignore_errors=True)


def into_vllm() -> None:
    """Replaces vLLM's CudaCommunicator by a subclass; vLLM's groups look the class up by name."""
    from vllm.distributed.device_communicators import cuda_communicator as module

    if not hasattr(module.CudaCommunicator, "plait"):
        module.CudaCommunicator = over_vllm(module.CudaCommunicator)


def over_vllm(base: Any) -> Any:
    """Returns the subclass, whose tensor-parallel groups sum by plait at every size."""

    class CudaCommunicator(base):
        plait: Any = None

        def __init__(
            self,
            cpu_group: Any,
            device: Any = None,
            device_group: Any = None,
            *rest: Any,
            **named: Any,
        ) -> None:
            super().__init__(cpu_group, device, device_group, *rest, **named)
            name = rest[0] if rest else named.get("unique_name", "")
            if self.world_size > 1 and str(name).split(":")[0] == "tp":
                self.plait = join(cpu_group, torch.device(self.device))

        def all_reduce(self, input_: Any) -> Any:
            if self.plait is None or not is_ours(input_):
                return super().all_reduce(input_)
            source = input_.contiguous()
            out = torch.empty_like(source)  # vLLM's custom op must not write into the input
            return self.plait.all_reduce(source, out=out)

        def reduce_scatter(self, input_: Any, dim: int = -1) -> Any:
            if self.plait is None or not is_ours(input_):
                return super().reduce_scatter(input_, dim)
            source = input_.movedim(dim, 0).contiguous()
            shape = (source.shape[0] // self.world_size, *source.shape[1:])
            out = self.plait.reduce_scatter(source, out=source.new_empty(shape))
            return out.movedim(0, dim).contiguous()

        def destroy(self) -> None:
            self.plait = None
            super().destroy()

    return CudaCommunicator


_of_group: WeakKeyDictionary[Any, plait.Communicator | None] = WeakKeyDictionary()


def into_sglang() -> None:
    """Wraps the all_reduce of SGLang's groups by SGLang's hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.distributed.parallel_state.GroupCoordinator.all_reduce",
        around_sglang,
        HookType.AROUND,
    )


def around_sglang(original: Any, self: Any, input_: Any, *rest: Any, **named: Any) -> Any:
    """Sums in place, as SGLang does. A group's first call, before any graph, makes the
    communicator."""
    if self.world_size == 1 or not is_ours(input_) or not input_.is_contiguous():
        return original(self, input_, *rest, **named)
    if self not in _of_group:
        _of_group[self] = join(self.cpu_group, input_.device)
    comm = _of_group[self]
    if comm is None:
        return original(self, input_, *rest, **named)
    comm.all_reduce(input_, out=input_)
    return input_
