"""Tests what gloo (PyTorch, CPU) does to the bits of a sum: the rows of docs/same_bits.md."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="wanted torch (make test-torch), found none")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("wanted torch with torch.distributed, found it without", allow_module_level=True)

from torch_ranks import on_ranks  # noqa: E402


def excess_by_rank(rank, ranks):
    """Sums 2^24 of one rank and 1 of the others, for each rank; returns what exceeds 2^24."""
    found = []
    for large in range(ranks):
        mine = torch.full((37,), 2.0**24 if rank == large else 1.0)
        dist.all_reduce(mine)
        found.append((mine - 2.0**24).int().tolist())
    return found


def test_gloo_adds_an_element_in_an_order_of_its_place():
    told = on_ranks(excess_by_rank, 4, backend="gloo")
    assert all(one == told[0] for one in told)  # the same bits on all ranks
    orders = set(zip(*told[0], strict=True))  # an element's sums tell its order
    assert 1 < len(orders) <= 4


def test_plait_adds_every_element_in_rank_order():
    # From rank 2 on the small numbers come first: 2^24 + 2 + 1 and 2^24 + 3 round to 2^24 + 4.
    told = on_ranks(excess_by_rank, 4)
    assert told[0] == [[0] * 37, [0] * 37, [4] * 37, [4] * 37]
