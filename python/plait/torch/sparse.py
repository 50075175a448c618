"""Sum of sparse COO tensors, such as gradients of embeddings.

Ranks agree on the indices that any rank has. Each rank spreads its values over these, with zeros
elsewhere, and an all_reduce sums the values: in the order of every other sum of the group.

A sum takes several collectives, and a rank may fail between two of them: by a wrong tensor, or for
lack of memory. Hence ranks exchange a word on the host before each collective that a failure would
leave without this rank. A failed rank fails that exchange on all ranks, on GPUs too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

import plait


def sum_of_sparse(calls: Any, backend: Any, tensor: Tensor, redop: Any) -> None:
    """Replaces `tensor` by the sum over all ranks; absent entries count as 0."""
    with torch.inference_mode(tensor.is_inference()):  # of a thread of the group too
        _sum(calls, backend, tensor, redop)


def _sum(calls: Any, backend: Any, tensor: Tensor, redop: Any) -> None:
    with _failing_all(calls, backend):
        if tensor.layout is not torch.sparse_coo or getattr(redop, "op", redop) != ReduceOp.SUM:
            raise plait.UnsupportedError(
                f"wanted the sum of sparse_coo tensors, found {redop!r} of {tensor.layout}"
            )
        mine = tensor.detach().coalesce()
        sizes = mine.shape[: mine.sparse_dim()]
        places = _flat(mine.indices(), sizes)
    counts = _agreed_counts(calls, backend, mine)
    with _failing_all(calls, backend):
        every_place = places.new_empty(sum(counts))
    _exchange(calls, backend, "has memory for indices")
    for root, part in enumerate(every_place.split(counts)):
        if root == calls._rank:
            part.copy_(places)
        calls._move(backend, "broadcast", part if root == calls._rank else None, part, root)
    with _failing_all(calls, backend):
        every = torch.unique(every_place)  # sorted
        values = mine.values().new_zeros((len(every), *mine.values().shape[1:]))
        values[torch.searchsorted(every, places)] = mine.values()
    _exchange(calls, backend, "has values")
    if values.numel() != 0:
        calls._reduce(backend, "all_reduce", values, values, redop)
    indices = mine.indices().new_empty((len(sizes), len(every)))
    if len(sizes) != 0:
        indices = torch.stack(torch.unravel_index(every, sizes))
    total = torch.sparse_coo_tensor(
        indices, values, mine.shape, device=values.device, is_coalesced=True
    )
    with torch.no_grad():  # a detached tensor has indices of its own
        tensor.copy_(total)


@contextmanager
def _failing_all(calls: Any, backend: Any) -> Iterator[None]:
    """Fails the peers' next exchange on the host if this rank's step fails."""
    try:
        yield
    except Exception as error:
        calls._host().refuse(error, backend)
        raise


def _exchange(calls: Any, backend: Any, mine: str) -> list[str]:
    """Returns every rank's words. Raises the error of a rank that has failed instead."""
    if calls._ranks == 1:
        return [mine]
    return [one.decode() for one in calls._host().exchange(mine.encode(), backend)]


def _agreed_counts(calls: Any, backend: Any, mine: Tensor) -> list[int]:
    """Returns every rank's number of indices. Raises MismatchError on all ranks if types or shapes
    differ, since an index has another meaning in another shape."""
    shape = f"{mine.dtype} of shape {tuple(mine.shape)} with {mine.sparse_dim()} sparse dimensions"
    words = _exchange(calls, backend, f"{mine.values().shape[0]};{shape}")
    counts, shapes = zip(*(one.split(";") for one in words), strict=True)
    for rank, other in enumerate(shapes):
        if other != shapes[0]:
            raise plait.MismatchError(
                "all_reduce of sparse tensors: wanted one type and shape on all ranks, found "
                f"{shapes[0]} on rank 0 and {other} on rank {rank}"
            )
    return [int(count) for count in counts]


def _flat(indices: Tensor, sizes: torch.Size) -> Tensor:
    """Returns one number for each column of indices."""
    flat = indices.new_zeros(indices.shape[1])
    for row, size in zip(indices, sizes, strict=True):
        flat = flat * size + row
    return flat
