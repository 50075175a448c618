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
from plait.torch.rms_norm import all_reduce_rms_norm, register
from plait.torch.vllm_fusion import into_pass_manager

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MOST_HIDDEN = plait._core.MOST_HIDDEN


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
    """Replaces vLLM's CudaCommunicator by a subclass; vLLM's groups look the class up by name.

    Where vLLM fuses sums and norms, its graphs get plait's operator.
    """
    from vllm.distributed.device_communicators import cuda_communicator as module

    if not hasattr(module.CudaCommunicator, "plait"):
        module.CudaCommunicator = over_vllm(module.CudaCommunicator)
    try:
        from vllm.compilation.passes import inductor_pass, pass_manager
    except ImportError:  # a vLLM without this pass manager
        return
    into_pass_manager(pass_manager, inductor_pass.InductorPass)


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
            if self.plait is not None:
                register(str(name), self.plait)

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
    """Wraps, by SGLang's hooks, the all_reduce of its groups and the step of its norms that
    FlashInfer's fused kernel would make."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = {
        "distributed.parallel_state.GroupCoordinator.all_reduce": around_sglang,
        "layers.layernorm.RMSNorm.forward_with_allreduce_fusion": around_sglangs_norm,
    }
    for path, hook in hooks.items():
        HookRegistry.register(f"sglang.srt.{path}", hook, HookType.AROUND)


def _joined(group: Any, device: torch.device) -> plait.Communicator | None:
    """Returns the communicator of a group of SGLang. A group's first call, before any graph, makes
    the communicator."""
    if group not in _of_group:
        _of_group[group] = join(group.cpu_group, device)
    return _of_group[group]


def around_sglang(original: Any, self: Any, input_: Any, *rest: Any, **named: Any) -> Any:
    """Sums in place, as SGLang does."""
    if self.world_size == 1 or not is_ours(input_) or not input_.is_contiguous():
        return original(self, input_, *rest, **named)
    comm = _joined(self, input_.device)
    if comm is None:
        return original(self, input_, *rest, **named)
    comm.all_reduce(input_, out=input_)
    return input_


def around_sglangs_norm(
    original: Any, self: Any, x: Any, residual: Any = None, *rest: Any, **named: Any
) -> Any:
    """Sums the layer's rows, adds the residual and normalises by one kernel. SGLang asks for the
    step where its all-reduce fusion is on, and has left out the sum before."""
    addition = rest[0] if rest else named.get("post_residual_addition")
    of_attention = rest[1] if len(rest) > 1 else named.get("use_attn_tp_group", True)
    comm = None
    if residual is not None and addition is None and _is_usual(self, x, residual):
        from sglang.srt import distributed

        if _sums_all_ranks(distributed, of_attention):
            comm = _joined(distributed.get_tp_group(), x.device)
    if comm is None:
        return original(self, x, residual, *rest, **named)
    out = all_reduce_rms_norm(x, residual, self.weight.data, self.variance_epsilon, comm)
    return out, residual


def _is_usual(norm: Any, x: Any, residual: Any) -> bool:
    """Whether all_reduce_rms_norm serves a norm of SGLang and its rows."""
    weight = norm.weight
    one_type = x.dtype == residual.dtype == weight.dtype
    return (
        x.dtype in (torch.bfloat16, torch.float16)
        and one_type
        and x.is_contiguous()
        and residual.is_contiguous()
        and x.shape == residual.shape
        and x.shape[-1] == weight.numel()
        and x.shape[-1] % 8 == 0
        and x.shape[-1] <= MOST_HIDDEN
        and x.numel() > 0
        and not any(
            getattr(norm, name, None)
            for name in ("cast_x_before_out_mul", "fp32_residual", "variance_size_override")
        )
    )


def _sums_all_ranks(distributed: Any, use_attn_tp_group: bool) -> bool:
    """Whether the sum of the step is over all tensor-parallel ranks, not over a part of them."""
    ranks = distributed.get_tensor_model_parallel_world_size()
    if use_attn_tp_group:
        return ranks > 1 and distributed.get_attn_tensor_model_parallel_world_size() == ranks
    experts = distributed.get_moe_expert_parallel_world_size()
    tensors = distributed.get_moe_tensor_parallel_world_size()
    return ranks > 1 and sorted((experts, tensors)) == [1, ranks]
