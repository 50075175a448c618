"""Predicts all_reduces of pinned NCCL and of PyTorch's symmetric memory for predictions.py.

NCCL is pinned as serving engines pin it. Its times follow the figures of its own model
(src/graph/tuning.cc, Hopper, one node): a base latency, a latency of each hop, GB/s of a channel.
Symmetric memory follows a line through its times on 2 and 4 GPUs
(bench/results/gpu_symmetric_h200x2.csv, gpu_symmetric_h200x4.csv).
"""

from __future__ import annotations

from dataclasses import dataclass

LINK_GB_PER_S = 367.0  # all of NCCL's channels together, as measured of its ring on 8 GPUs
US_PER_BYTE = 1e-3  # divided by GB/s


@dataclass(frozen=True)
class PinnedProtocol:
    """A protocol of NCCL: us of the base and of each hop over NVLink, for tree and ring; GB/s of a
    channel, and of all channels at most."""

    tree_us: tuple[float, float]
    ring_us: tuple[float, float]
    channel_gb_per_s: float
    most_gb_per_s: float = LINK_GB_PER_S


PROTOCOLS = (
    PinnedProtocol((6.8, 0.6), (6.6, 0.6), 36.7 / 2, 141.0),  # LL: half of the bytes are flags
    PinnedProtocol((14.0, 1.25), (14.0, 1.9), 36.7, 0.92 * LINK_GB_PER_S),  # LL128
    PinnedProtocol((8.4, 4.0), (8.4, 3.4), 38.7),  # Simple
)
TREE_SHARE = 0.92  # a tree's speed over a ring's


def pinned_us(section: str, ranks: int, size: int) -> float:
    """Returns the us of the fastest protocol of a tree with 8 channels, or of a ring with one."""
    tree, hops = section == "pinned_tree", 2 * (ranks - 1)
    channels = 8 if tree else 1
    found = []
    for one in PROTOCOLS:
        base, hop = one.tree_us if tree else one.ring_us
        speed = min(channels * one.channel_gb_per_s, one.most_gb_per_s)
        # A tree of one node is a chain: all bytes go up and down.
        sent = 2 * size if tree else hops * size / ranks
        speed *= TREE_SHARE if tree and speed >= one.most_gb_per_s else 1.0
        found.append(base + hops * hop + sent / speed * US_PER_BYTE)
    return min(found)


# By ranks: least us, us before the bytes, GB/s. one_shot reads every peer's whole message, two_shot
# reads a share and then the results. Source on 8 GPUs: two_shot from one run of four sizes (1 to 64
# MiB of bf16: 17.7, 34.3, 118, 418 us); one_shot, not measured, is assumed as fast as on 4.
ONE_SHOT = {2: (6.9, 7.1, 174.0), 4: (8.2, 7.6, 312.0), 8: (9.4, 8.4, 312.0)}
TWO_SHOT = {2: (7.2, 6.0, 325.0), 4: (9.0, 6.8, 303.0), 8: (11.5, 9.5, 287.0)}


def symmetric_us(variant: str, ranks: int, size: int) -> float:
    """Returns the us of symmetric memory. variant: one_shot or two_shot."""
    least, begins, speed = (ONE_SHOT if variant == "one_shot" else TWO_SHOT)[ranks]
    read = (ranks - 1) * size if variant == "one_shot" else 2 * (ranks - 1) / ranks * size
    return max(least, begins + read / speed * US_PER_BYTE)
