"""Sum of sparse COO tensors, such as gradients of embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

import plait


def sum_of_sparse(calls: Any, backend: Any, tensor: Tensor, redop: Any) -> None:
    """Replaces `tensor` by the sum over all ranks; entries with equal indices are added."""
    if tensor.layout is not torch.sparse_coo or getattr(redop, "op", redop) != ReduceOp.SUM:
        calls._refuse(
            backend,
            plait.UnsupportedError(
                f"wanted the sum of sparse_coo tensors, found {redop!r} of {tensor.layout}"
            ),
        )
    mine = tensor.detach().coalesce()
    counts = torch.empty(calls._ranks, dtype=torch.int64, device=mine.device)
    count = torch.tensor([mine._nnz()], device=mine.device)
    calls._move(backend, "all_gather", count, counts)
    every_index, every_value = [], []
    for root, entries in enumerate(counts.tolist()):
        is_mine = root == calls._rank
        indices = (
            mine.indices().contiguous()
            if is_mine
            else mine.indices().new_empty((mine.sparse_dim(), entries))
        )
        values = (
            mine.values().contiguous()
            if is_mine
            else mine.values().new_empty((entries, *mine.values().shape[1:]))
        )
        for part in (indices, values):
            calls._move(backend, "broadcast", part if is_mine else None, part, root)
        every_index.append(indices)
        every_value.append(values)
    total = torch.sparse_coo_tensor(
        torch.cat(every_index, 1), torch.cat(every_value), mine.shape
    ).coalesce()
    with torch.no_grad():  # a detached tensor has indices of its own
        tensor.copy_(total)
