"""Memory of tensors: waits for pending results, addresses for the core, errors without memory.

Wrapper subclasses, tensors of transforms, and meta, fake and sparse tensors have no address. The
core would read or write at address 0.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

import plait
from plait.torch.works import tensors_in


def with_memory(tensor: Any) -> Any:
    """Returns the tensor that has the memory: for a result of a functional collective
    (AsyncCollectiveTensor) the tensor inside, after a wait. In a list, each tensor is replaced.

    Raises InvalidArgumentError for other subclasses without memory, before any operation on the
    tensor: operations on a DTensor may make calls of the group.
    """
    if isinstance(tensor, list):
        return [with_memory(one) for one in tensor]
    if tensor is None or type(tensor) in (Tensor, Parameter):
        return tensor
    if _is_pending(tensor):
        return tensor.trigger_wait()
    place_of(tensor)
    return tensor


def _is_pending(tensor: Any) -> bool:
    """Returns whether a tensor is an AsyncCollectiveTensor, or a class like it."""
    return hasattr(type(tensor), "trigger_wait")


def place_of(tensor: Tensor) -> tuple[int, int]:
    """Returns address and bytes of a contiguous tensor. Raises InvalidArgumentError if the tensor
    has elements and no memory."""
    try:
        address, size = tensor.data_ptr(), tensor.nbytes
    except RuntimeError as error:
        raise cause_of(error, tensor) from None
    if address == 0 and size != 0:
        raise cause_of(null_error(), tensor)
    return address, size


def null_error() -> plait.InvalidArgumentError:
    return plait.InvalidArgumentError("wanted a tensor with memory, found a null address")


def cause_of(error: Exception, *given: Any) -> Exception:
    """Returns the error of the first given tensor without memory; `error` if all have memory.

    given: tensors and lists of tensors that a failed step had; None has no part in the step.
    """
    for tensor in tensors_in(given):
        if not (_is_pending(tensor) or _has_memory(tensor)):
            found, advice = _found(tensor)
            return plait.InvalidArgumentError(
                f"wanted a tensor with memory, found {found}; {advice}"
            )
    return error


def _has_memory(tensor: Tensor) -> bool:
    with suppress(RuntimeError):
        return tensor.layout is torch.strided and (tensor.numel() == 0 or tensor.data_ptr() != 0)
    return False  # data_ptr() raises for a tensor without a storage


def _found(tensor: Tensor) -> tuple[str, str]:
    """Returns the kind of a tensor without memory, and what to do."""
    kind = type(tensor)
    if hasattr(kind, "to_local"):
        return f"a {kind.__name__}", "pass this rank's part, tensor.to_local()"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "one inside a transform of torch.func", "make the call outside of the transform"
    if tensor.is_meta or kind.__name__ == "FakeTensor":
        return "a meta or fake tensor", "make the tensor on a device, outside of a fake mode"
    if tensor.layout is not torch.strided:
        return f"layout {tensor.layout}", "pass a dense tensor, such as tensor.to_dense()"
    if kind not in (Tensor, Parameter):
        return f"a {kind.__name__}", "pass the plain tensors inside this subclass"
    return (
        "one whose storage is empty",
        "allocate the storage, or pass tensor.clone() of lazy zeros",
    )
