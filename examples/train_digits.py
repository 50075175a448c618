"""Data-parallel training with plait, compared with a single process that sees the whole batch.

    python examples/train_digits.py            # starts 4 ranks, trains, compares, prints
    torchrun --no-python ... / mpirun ...      # or as a rank of a launcher

Trains a network of two layers on scikit-learn's handwritten digits, by gradient descent with
momentum in float64. Each rank takes every ranks-th sample of a batch; gradients are summed by
all_reduce and divided by the batch size, hence both runs compute the same step up to rounding.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import plait
from plait.launch import Emit, start

HIDDEN, BATCH, RATE, MOMENTUM, EPOCHS = 64, 128, 0.3, 0.9, 30
TOLERANCE = 1e-6
WANTED_ACCURACY = 0.95

Array = np.ndarray[Any, Any]
Sum = Callable[[Array], Array]


def digits() -> tuple[Array, Array, Array, Array]:
    """Returns images and labels for training and test; a fixed shuffle, a fifth for the test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order] / 16.0, labels[order]
    cut = len(labels) * 4 // 5
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def initial_weights() -> list[Array]:
    """Returns two layers, the same on every rank."""
    generator = np.random.default_rng(1)
    return [
        generator.normal(0, 64**-0.5, (64, HIDDEN)),
        np.zeros(HIDDEN),
        generator.normal(0, HIDDEN**-0.5, (HIDDEN, 10)),
        np.zeros(10),
    ]


def forward(weights: list[Array], images: Array) -> tuple[Array, Array]:
    """Returns hidden activations and class probabilities."""
    hidden = np.tanh(images @ weights[0] + weights[1])
    scores = hidden @ weights[2] + weights[3]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def loss_and_gradients(weights: list[Array], images: Array, labels: Array) -> Array:
    """Returns a flat vector: the summed loss of the samples, then every summed gradient."""
    hidden, chances = forward(weights, images)
    picked = chances[np.arange(len(labels)), labels]
    error = chances.copy()
    error[np.arange(len(labels)), labels] -= 1.0
    back = (error @ weights[2].T) * (1.0 - hidden**2)
    parts = [images.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
    loss = -np.log(picked).sum()
    return np.concatenate([[loss], *[part.ravel() for part in parts]])


def train(rank: int, ranks: int, summed: Sum) -> tuple[list[float], float]:
    """Trains; returns the mean loss of each epoch and the accuracy on test digits."""
    images, labels, held_images, held_labels = digits()
    weights = initial_weights()
    speed = [np.zeros_like(weight) for weight in weights]
    losses = []
    for epoch in range(EPOCHS):
        order = np.random.default_rng(100 + epoch).permutation(len(labels))
        total = 0.0
        for at in range(0, len(order), BATCH):
            batch = order[at : at + BATCH]
            mine = batch[rank::ranks]
            sums = summed(loss_and_gradients(weights, images[mine], labels[mine]))
            total += sums[0]
            step(weights, speed, sums[1:] / len(batch))
        losses.append(float(total / len(order)))
    chances = forward(weights, held_images)[1]
    return losses, float((chances.argmax(axis=1) == held_labels).mean())


def step(weights: list[Array], speed: list[Array], gradient: Array) -> None:
    """Makes a step of gradient descent with momentum, in place."""
    at = 0
    for weight, velocity in zip(weights, speed, strict=True):
        part = gradient[at : at + weight.size].reshape(weight.shape)
        velocity *= MOMENTUM
        velocity -= RATE * part
        weight += velocity
        at += weight.size


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """Runs a rank of data-parallel training; rank 0 emits the result."""
    del task
    comm = plait.init()
    losses, accuracy = train(comm.rank, comm.ranks, lambda sums: comm.all_reduce(sums, "sum"))
    if comm.rank == 0:
        emit({"losses": losses, "accuracy": accuracy})


def main() -> int:
    """Trains both ways and compares the losses. Returns 0 if both agree."""
    parser = argparse.ArgumentParser(description="data-parallel training over plait")
    parser.add_argument("--ranks", type=int, default=4)
    ranks = parser.parse_args().ranks
    job = start("train_digits:rank_main", ranks, {}, folder=sys.path[0])
    said = list(job.lines())
    statuses = job.wait()
    if any(statuses) or len(said) != 1 or "losses" not in said[0]:
        print(f"ranks ended with {statuses}: {said}", file=sys.stderr)
        return 1
    alone, alone_accuracy = train(0, 1, lambda sums: sums)
    together, accuracy = said[0]["losses"], said[0]["accuracy"]
    print(f"{'epoch':>5} {'one process':>20} {f'{ranks} ranks':>20} {'difference':>12}")
    for epoch, (one, many) in enumerate(zip(alone, together, strict=True), 1):
        print(f"{epoch:>5} {one:>20.12f} {many:>20.12f} {abs(one - many):>12.1e}")
    worst = max(abs(one - many) for one, many in zip(alone, together, strict=True))
    print(f"largest difference {worst:.1e}, wanted <= {TOLERANCE:.0e}")
    print(
        f"accuracy on held-out digits: {alone_accuracy:.4f} and {accuracy:.4f}, "
        f"wanted >= {WANTED_ACCURACY}"
    )
    return 0 if worst <= TOLERANCE and min(accuracy, alone_accuracy) >= WANTED_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
