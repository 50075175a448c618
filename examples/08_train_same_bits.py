"""Deterministic training: the same weights, bit for bit, with any strategy that sums in rank order.

    python examples/08_train_same_bits.py

Four ranks train the network of train_digits.py in fp32, twice by each strategy: plait's choice, two
strategies that sum in rank order, and a ring, which does not. With bitwise=True plait refuses the
ring.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np
import train_digits

import plait
from plait.launch import Emit, start

RANKS, STEPS, BATCH = 4, 40, 128
WAYS = ("", "direct", "one_shot", "ring")  # "" = plait chooses


def weights_after(comm: plait.Communicator, strategy: str) -> str:
    """Returns a digest of the weights after some steps of gradient descent in fp32."""
    images, labels, *_ = train_digits.digits()
    weights = [weight.astype(np.float32) for weight in train_digits.initial_weights()]
    speed = [np.zeros_like(weight) for weight in weights]
    for step in range(STEPS):
        batch = np.random.default_rng(step).integers(0, len(labels), BATCH)
        mine = batch[comm.rank :: comm.ranks]
        own = train_digits.loss_and_gradients(weights, images[mine], labels[mine])
        sums = comm.all_reduce(own.astype(np.float32), strategy=strategy)
        train_digits.step(weights, speed, sums[1:] / np.float32(BATCH))
    return hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()[:12]


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """Runs a rank: two digests by each strategy, and the error of the ring with bitwise=True."""
    comm = plait.init()
    for strategy in WAYS:
        for _ in range(2):
            emit({"rank": comm.rank, "way": strategy, "bits": weights_after(comm, strategy)})
    strict = plait.init(bitwise=True)
    try:
        strict.all_reduce(np.ones(1000, np.float32), strategy="ring")
    except plait.UnsupportedError as error:
        emit({"rank": comm.rank, "refused": str(error)})


def main() -> int:
    """Returns 0 if all strategies except the ring gave the same weights on all ranks."""
    job = start("08_train_same_bits:rank_main", RANKS, {}, folder=sys.path[0])
    said = list(job.lines())
    if any(job.wait()):
        print(f"ranks ended with {job.wait()}: {said}", file=sys.stderr)
        return 1
    bits = {way: {row["bits"] for row in said if row.get("way") == way} for way in WAYS}
    for way, found in bits.items():
        print(f"{way or 'as plait chooses':<18} {', '.join(sorted(found))}")
    refusals = {row["refused"] for row in said if "refused" in row}
    print(f"with bitwise=True: {'; '.join(refusals)}")
    in_rank_order = set().union(*(found for way, found in bits.items() if way != "ring"))
    print("the same weights" if len(in_rank_order) == 1 else "other weights")
    return 0 if len(in_rank_order) == 1 and len(refusals) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
