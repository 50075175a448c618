"""Sum of sparse COO tensors, such as gradients of embeddings.

Ranks agree on the indices that any rank has. Each rank spreads its values over these, with zeros
elsewhere, and an all_reduce sums the values: in the order of every other sum of the group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

import plait


def sum_of_sparse(calls: Any, backend: Any, tensor: Tensor, redop: Any) -> None:
    """Replaces `tensor` by the sum over all ranks; absent entries count as 0."""
    if tensor.layout is not torch.sparse_coo or getattr(redop, "op", redop) != ReduceOp.SUM:
        calls._refuse(
            backend,
            plait.UnsupportedError(
                f"wanted the sum of sparse_coo tensors, found {redop!r} of {tensor.layout}"
            ),
        )
    mine = tensor.detach().coalesce()
    sizes = mine.shape[: mine.sparse_dim()]
    places = _flat(mine.indices(), sizes)
    every = torch.unique(torch.cat(_gathered(calls, backend, places)))  # sorted
    values = mine.values().new_zeros((len(every), *mine.values().shape[1:]))
    values[torch.searchsorted(every, places)] = mine.values()
    if values.numel() != 0:
        calls._reduce(backend, "all_reduce", values, values, redop)
    indices = mine.indices().new_empty((len(sizes), len(every)))
    if len(sizes) != 0:
        indices = torch.stack(torch.unravel_index(every, sizes))
    total = torch.sparse_coo_tensor(indices, values, mine.shape, is_coalesced=True)
    with torch.no_grad():  # a detached tensor has indices of its own
        tensor.copy_(total)


def _flat(indices: Tensor, sizes: torch.Size) -> Tensor:
    """Returns one number for each column of indices."""
    flat = indices.new_zeros(indices.shape[1])
    for row, size in zip(indices, sizes, strict=True):
        flat = flat * size + row
    return flat


def _gathered(calls: Any, backend: Any, mine: Tensor) -> list[Tensor]:
    """Returns every rank's numbers."""
    counts = torch.empty(calls._ranks, dtype=torch.int64, device=mine.device)
    calls._move(backend, "all_gather", torch.tensor([len(mine)], device=mine.device), counts)
    every = []
    for root, count in enumerate(counts.tolist()):
        is_mine = root == calls._rank
        part = mine.contiguous() if is_mine else mine.new_empty(count)
        calls._move(backend, "broadcast", part if is_mine else None, part, root)
        every.append(part)
    return every
