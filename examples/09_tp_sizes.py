"""A linear layer with the same bits over 1, 2 and 4 ranks, by sums in tree order.

python examples/09_tp_sizes.py            CPU ranks
python examples/09_tp_sizes.py --gpu      torch on GPUs, with as many ranks as there are
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np

import plait
from plait.launch import Emit, start
from plait.same_bits import tree_sum

SHARDS, TOKENS, IN, OUT = 8, 16, 1024, 256
ORDERS = ("rank_order", "tree", "tree_rounded")


def product(x: np.ndarray, weight: np.ndarray, gpu: bool) -> Any:
    """Returns x @ weight of a shard."""
    x, weight = np.ascontiguousarray(x), np.ascontiguousarray(weight)
    if not gpu:
        return x @ weight
    import torch

    return torch.from_numpy(x).cuda() @ torch.from_numpy(weight).cuda()


def layer(comm: plait.Communicator, order: str, gpu: bool) -> str:
    """Runs the layer on this rank. Returns a digest of the output's bits.

    The inner dimension has 8 shards on any number of ranks, and a product for each shard: a product
    over two shards would add in the order of the BLAS. A rank sums its shards by tree_sum, and the
    ranks' sums are summed in tree order, in the type of tree_sum's result.
    """
    random = np.random.default_rng(0)
    x = random.standard_normal((TOKENS, IN)).astype(np.float32)
    weight = random.standard_normal((IN, OUT)).astype(np.float32)
    each, width = SHARDS // comm.ranks, IN // SHARDS
    products = []
    for shard in range(comm.rank * each, (comm.rank + 1) * each):
        rows = slice(shard * width, (shard + 1) * width)
        products.append(product(x[:, rows], weight[rows], gpu))
    if order == "rank_order":  # the shards in turn, then the ranks in turn
        mine = sum(products[1:], products[0])
    else:
        mine = tree_sum(products, rounded=order == "tree_rounded")
    total = comm.all_reduce(mine)
    bits = total.cpu().numpy() if gpu else total
    return hashlib.sha256(bits.tobytes()).hexdigest()[:8]


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """Runs a rank: the layer in each order."""
    for order in ORDERS:
        comm = plait.init(sum_order=order)
        emit({"rank": comm.rank, "order": order, "bits": layer(comm, order, task["gpu"])})


def main() -> int:
    """Returns 0 if both trees gave the same bits over all numbers of ranks."""
    gpu, sizes = "--gpu" in sys.argv, [1, 2, 4]
    if gpu:
        import torch

        sizes = [size for size in sizes if size <= torch.cuda.device_count()]
    found: dict[str, list[str]] = {order: [] for order in ORDERS}
    for ranks in sizes:
        job = start("09_tp_sizes:rank_main", ranks, {"gpu": gpu}, folder=sys.path[0])
        said = list(job.lines())
        if any(job.wait()):
            print(f"ranks ended with {job.wait()}: {said}", file=sys.stderr)
            return 1
        for order in ORDERS:
            (bits,) = {row["bits"] for row in said if row["order"] == order}
            found[order].append(bits)
    print(f"over {', '.join(map(str, sizes))} ranks:")
    for order, all_bits in found.items():
        same = "the same bits" if len(set(all_bits)) == 1 else "other bits"
        print(f"  {order:<12} {' '.join(all_bits)}  {same}")
    return 0 if all(len(set(found[order])) == 1 for order in ORDERS[1:]) else 1


if __name__ == "__main__":
    sys.exit(main())
