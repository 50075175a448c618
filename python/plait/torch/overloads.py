"""Arguments of ProcessGroup's overloads. PyTorch lets programs call methods of groups with a tensor
in place of a list, and with a root, an operation and a timeout in place of options."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.distributed import ReduceOp


def listed(tensors: Any) -> list[Tensor]:
    """Returns a list of tensors; a tensor alone is a list of one, not of its rows."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def options_of(opts: Any = None, timeout: Any = None, root: int = 0, op: Any = None) -> Any:
    """Returns the options of a call. opts: options, or the first value in their place: a timeout, a
    root or a ReduceOp."""
    if hasattr(opts, "timeout"):
        return opts
    if isinstance(opts, timedelta):
        timeout = opts
    elif isinstance(opts, int):
        root = opts
    elif opts is not None:
        op = opts
    redop, limit = ReduceOp.SUM if op is None else op, timeout or timedelta(0)
    return SimpleNamespace(rootRank=root, reduceOp=redop, timeout=limit, asyncOp=True)
