"""Sums of 16-bit floats over 4 and 8 ranks are no further from float64 than sums of a ring, which
rounds at every rank. The ring models NCCL's: its errors on 4 GPUs equal the measured errors."""

from __future__ import annotations

import numpy as np
import pytest
import recorded

import plait
from plait.arrays import DTYPE_OF_TYPE

COUNT = 1 << 17


def errors(ranks: int, kind: str) -> dict[str, tuple[float, float]]:
    """Returns the largest and the RMS error of plait's plans and of a ring, on normal data."""
    dtype, random = DTYPE_OF_TYPE[kind], np.random.default_rng(ranks)
    parts = [random.standard_normal(COUNT).astype(np.float32).astype(dtype) for _ in range(ranks)]
    exact = np.sum([part.astype(np.float64) for part in parts], axis=0)
    ring = parts[0]
    for part in parts[1:]:
        ring = (ring.astype(np.float32) + part.astype(np.float32)).astype(dtype)
    request = plait.Request("all_reduce", COUNT, kind, "sum", ranks)
    topology = plait.load_topology("hgx-h200")
    sums = {"ring": ring}
    for strategy in ("one_shot", "two_shot", "direct"):
        outputs = [np.zeros(COUNT, dtype) for _ in range(ranks)]
        plait.run_reference(plait.propose_one(topology, request, strategy), parts, outputs)
        assert all(output.tobytes() == outputs[0].tobytes() for output in outputs)
        sums[strategy] = outputs[0]
    off = {name: found.astype(np.float64) - exact for name, found in sums.items()}
    return {
        name: (float(np.abs(one).max()), float(np.sqrt((one**2).mean())))
        for name, one in off.items()
    }


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_errors_are_below_a_rings(ranks, kind):
    found = errors(ranks, kind)
    most, rms = found.pop("ring")
    for name, (plaits_most, plaits_rms) in found.items():
        assert plaits_most <= most and plaits_rms < 0.7 * rms, (name, found, most, rms)


def test_the_ring_is_nccls():
    found = errors(4, "bf16")
    for row in recorded.rows("gpu_accuracy_h200x4.csv"):
        if row["type"] == "bf16" and int(row["bytes"]) >= 1 << 20:
            assert float(row["nccl_rms_error"]) == pytest.approx(found["ring"][1], rel=0.03)
            assert float(row["plait_rms_error"]) == pytest.approx(found["direct"][1], rel=0.03)
