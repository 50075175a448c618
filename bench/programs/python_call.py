"""Times an all_reduce of 8 bytes on one rank: the host's part of a call from Python.

Prints JSON: microseconds of this thread's CPU time a call, in the fastest batch and in the median
one. CPU time hides most of the machine's other work. The limit is 6.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from types import SimpleNamespace

import numpy as np

import plait

CALLS = 200  # a batch


def call_us(batches: int) -> list[float]:
    """Returns microseconds a call for each batch; the first calls are left out."""
    with tempfile.TemporaryDirectory() as folder:
        comm = plait.Communicator(0, 1, rendezvous=f"unix:{folder}/meet")
    source = np.ones(2, np.float32)
    out = np.zeros_like(source)
    took = []
    for batch in range(batches + 1):
        began = time.thread_time_ns()
        for _ in range(CALLS):
            comm.all_reduce(source, out=out)
        took.append((time.thread_time_ns() - began) / CALLS / 1e3)
        if batch == 0:
            assert np.array_equal(out, source)
    return took[1:]


def run(given: SimpleNamespace) -> None:
    """Prints one line."""
    took = call_us(given.batches)
    row = {"least_us": min(took), "median_us": statistics.median(took)}
    print(json.dumps({name: round(us, 2) for name, us in row.items()}))
