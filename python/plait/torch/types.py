"""Maps torch's reductions and types to plait's, and makes tensors contiguous for the core."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ReduceOp

import plait
from plait.arrays import TYPE_OF_DTYPE
from plait.torch.memory import place_of, with_memory

_OP_NAMES = {
    "SUM": "sum",
    "AVG": "avg",
    "PRODUCT": "prod",
    "MIN": "min",
    "MAX": "max",
    "BAND": "bit_and",
    "BOR": "bit_or",
    "BXOR": "bit_xor",
    "PREMUL_SUM": "premul_sum",
}
_OPS = {
    getattr(ReduceOp.RedOpType, name): ours
    for name, ours in _OP_NAMES.items()
    if hasattr(ReduceOp.RedOpType, name)
}
_TYPES = {
    getattr(torch, name): ours for name, ours in TYPE_OF_DTYPE.items() if hasattr(torch, name)
}
# A complex number is two floats, except in a product.
_COMPLEX = {torch.complex32: "fp16", torch.complex64: "fp32", torch.complex128: "fp64"}
# A bool is a byte of 0 or 1; sum and product follow ProcessGroupNCCL.
_OPS_OF_BOOL = {
    "sum": "max",
    "max": "max",
    "bit_or": "max",
    "prod": "min",
    "min": "min",
    "bit_and": "min",
    "bit_xor": "bit_xor",
}


class Reduction(NamedTuple):
    """A reduction in the core's terms."""

    op: str
    type: str
    per_element: int  # elements of plait in one of torch
    scalar: Any  # this rank's factor, a float or a tensor on a GPU


_reductions: dict[Any, Reduction] = {}


def reduction_of(redop: Any, dtype: Any) -> Reduction:
    """Returns the reduction of torch's `redop`; raises UnsupportedError if plait has none."""
    kind = getattr(redop, "op", redop)
    reduction = _reductions.get((kind, dtype))
    if reduction is not None and reduction.op != "premul_sum":
        return reduction
    op = _OPS.get(kind)
    if op is None:
        raise plait.UnsupportedError(f"wanted one of {', '.join(_OP_NAMES)}, found {redop!r}")
    return (
        _reductions.setdefault((kind, dtype), _made(op, redop, dtype))
        if op != "premul_sum"
        else (_made(op, redop, dtype))
    )


def _made(op: str, redop: Any, dtype: Any) -> Reduction:
    scalar: Any = 1.0
    if op == "premul_sum":
        factor = redop.factor if hasattr(redop, "factor") else redop.__getstate__()[1]
        is_on_gpu = isinstance(factor, Tensor) and not factor.is_cpu
        scalar = factor if is_on_gpu else float(factor)  # a capture reads no factor on the GPU
    if dtype is torch.bool and op in _OPS_OF_BOOL:
        return Reduction(_OPS_OF_BOOL[op], "uint8", 1, scalar)
    if dtype in _COMPLEX and op in ("sum", "avg", "premul_sum"):
        return Reduction(op, _COMPLEX[dtype], 2, scalar)
    has_bits = not (op.startswith("bit_") and dtype.is_floating_point)
    if dtype not in _TYPES or not has_bits:
        raise plait.UnsupportedError(f"wanted a type that has {op}, found {dtype}")
    return Reduction(op, _TYPES[dtype], 1, scalar)


def scaled(tensor: Tensor, factor: Any, in_place: bool) -> Tensor:
    """Returns the tensor times `factor`, a number or a tensor with one element; each product is
    rounded once.

    in_place: the products replace the elements, and the version counter stays. Raises
    UnsupportedError for integers.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise plait.UnsupportedError(
            f"premul_sum: wanted a type with fractions, found {tensor.dtype}"
        )
    if isinstance(factor, Tensor):
        factor = factor.detach().reshape(())
    found = torch.view_as_real(tensor.data) if tensor.is_complex() else tensor.data
    if found.element_size() == 1:  # torch does not multiply fp8
        products = found.float().mul_(factor)
        if in_place:
            found.copy_(products)
            return tensor
        return products.to(found.dtype)
    if in_place:
        found.mul_(factor)
        return tensor
    products = found.mul(factor)
    return torch.view_as_complex(products) if tensor.is_complex() else products


def as_contiguous(tensor: Tensor) -> Tensor:
    """Returns the tensor if contiguous, else a contiguous copy; awaited and detached."""
    if type(tensor) is not Tensor:
        tensor = with_memory(tensor)
    if tensor.requires_grad or tensor.grad_fn is not None:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg().contiguous()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def check_no_overlap(tensor: Tensor) -> None:
    """Raises InvalidArgumentError if two elements of an output share memory."""
    if tensor.numel() == 0:  # the strides of a channels-last one are 0
        return
    for length, step in zip(tensor.shape, tensor.stride(), strict=True):
        if length > 1 and step == 0:
            raise plait.InvalidArgumentError(
                "wanted an output whose elements have memory of their own, found one that was "
                f"expanded (shape {tuple(tensor.shape)}, strides {tensor.stride()})"
            )


def output_buffer(tensor: Tensor) -> Tensor:
    """Returns the tensor if contiguous, else new memory, copied into the tensor by copy_back()."""
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    place_of(tensor)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def copy_back(tensor: Tensor, found: Tensor) -> None:
    """Copies a result from output_buffer() back, unless the memory is the tensor's own."""
    if found.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(found.view(tensor.shape))


def _are_adjacent(tensors: list[Tensor]) -> bool:
    """Returns whether each tensor begins where the former ends, in one storage."""
    storage, end = tensors[0].untyped_storage().data_ptr(), tensors[0].data_ptr()
    for one in tensors:
        if (
            one.data_ptr() != end
            or not one.is_contiguous()
            or one.is_conj()
            or one.is_neg()
            or one.untyped_storage().data_ptr() != storage
        ):
            return False
        end += one.nbytes
    return True


def adjacent_bytes(tensors: list[Tensor]) -> Tensor | None:
    """Returns the bytes of parts of any sizes that are adjacent in a storage of host memory, empty
    parts aside; None if not adjacent."""
    parts = [one for one in tensors if one.nbytes > 0]
    if parts and not _are_adjacent(parts):
        return None
    found = torch.empty(0, dtype=torch.uint8, device="cpu")
    if not parts:
        return found
    storage = parts[0].untyped_storage()
    begin = parts[0].data_ptr() - storage.data_ptr()
    return found.set_(storage, begin, (sum(one.nbytes for one in parts),))


def share_memory(one: Tensor, other: Tensor) -> bool:
    """Returns whether two contiguous tensors overlap."""
    first, second = sorted((each.data_ptr(), each.nbytes) for each in (one, other))
    return 0 not in (first[1], second[1]) and first[0] + first[1] > second[0]


def adjacent_whole(tensors: list[Tensor]) -> Tensor | None:
    """Returns a tensor over equal, adjacent parts of a storage; None if not adjacent."""
    first = tensors[0]
    if not _are_adjacent(tensors):
        return None
    if any(one.numel() != first.numel() or one.dtype != first.dtype for one in tensors):
        return None
    return first.as_strided((len(tensors), first.numel()), (first.numel(), 1))
