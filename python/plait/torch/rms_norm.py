"""all_reduce_rms_norm for torch: a function, and the operator plait::all_reduce_rms_norm.

torch.compile keeps the operator whole: a fake version gives shapes, and the residual is declared as
written.
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor

import plait
from plait.rms_norm import prepared

_named: WeakValueDictionary[str, plait.Communicator] = WeakValueDictionary()
_numbers = itertools.count()
_AT_ONCE = SimpleNamespace(timeout=timedelta(0), asyncOp=False)


def name_of(group: Any = None) -> str:
    """Returns the name by which the operator finds a group.

    group: a plait.Communicator, a process group whose backend is plait, its name, or None for the
    default group.
    """
    if isinstance(group, str):
        return group
    if isinstance(group, plait.Communicator):
        for name, known in _named.items():
            if known is group:
                return name
        name = f"plait.{next(_numbers)}"
        _named[name] = group
        return name
    return str((dist.group.WORLD if group is None else group).group_name)


def register(name: str, comm: plait.Communicator) -> None:
    """Gives a communicator a name of the program's choice, for the operator."""
    _named[name] = comm


def is_named(name: Any) -> bool:
    """Whether the operator finds a communicator by this name."""
    return isinstance(name, str) and name in _named


def all_reduce_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    epsilon: float = 1e-6,
    group: Any = None,
    scale: Tensor | None = None,
) -> Tensor:
    """Returns RMSNorm(all_reduce(x) + residual) * weight; the residual becomes residual + sum.

    x: rows of up to 16384 elements (its last dimension, a multiple of 8), bf16 or fp16. scale: one
    fp32 element; then the result is float8_e4m3fn, divided by the scale. group: as in name_of().
    The bits are those of all_reduce and the norm behind it (docs/rms_norm.md). Works in graphs and
    under torch.compile.
    """
    return torch.ops.plait.all_reduce_rms_norm(x, residual, weight, epsilon, name_of(group), scale)


def _empty_result(x: Tensor, scale: Tensor | None) -> Tensor:
    return torch.empty_like(x, dtype=x.dtype if scale is None else torch.float8_e4m3fn)


@torch.library.custom_op(
    "plait::all_reduce_rms_norm",
    mutates_args=("residual",),
    schema="(Tensor x, Tensor(a1!) residual, Tensor weight, float epsilon, str group, "
    "Tensor? scale=None) -> Tensor",
)
def _operator(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    epsilon: float,
    group: str,
    scale: Tensor | None = None,
) -> Tensor:
    comm = _named.get(group)
    if comm is None:
        return _in_group(_backend(group, x), x, residual, weight, epsilon, scale)
    x = x.contiguous()
    out = _empty_result(x, scale)
    return comm.all_reduce_rms_norm(x, residual, weight, epsilon, out, scale)


@_operator.register_fake
def _fake(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    epsilon: float,
    group: str,
    scale: Tensor | None = None,
) -> Tensor:
    return _empty_result(x.contiguous(), scale)


def _backend(name: str, x: Tensor) -> Any:
    found = dist.distributed_c10d._resolve_process_group(name)
    backend = found._get_backend(x.device)
    if not hasattr(backend, "run_rms_norm"):
        raise plait.UnsupportedError(
            "all_reduce_rms_norm: wanted a plait.Communicator or a process group with backend "
            f"plait, found group {name} with backend {type(backend).__name__}"
        )
    return backend


def _in_group(
    group: Any, x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, scale: Tensor | None
) -> Tensor:
    """Makes the call on the current stream, or in host memory at once. An error of this rank's
    arguments fails the call on all ranks."""
    results = []

    def call(backend: Any) -> None:
        try:
            whole = x.contiguous()
            out = _empty_result(whole, scale)
            norm, _, buffers = prepared(whole, residual, weight, epsilon, out, scale)
        except Exception as error:
            backend.refuse(error)
            raise
        places = [buffer.address for buffer in buffers.values()]
        backend.launch_rms_norm(norm, places)
        results.append(out)

    group.run_rms_norm(x, call, _AT_ONCE)
    return results[0]
