"""CUDA driver calls for benchmarks and tests without a framework.

Gpu(ordinal) has memory, streams, events and graphs, all as integers. Collectives on tensors do not
need this module.
"""

from plait._core import Gpu, dlpack_view, why_no_direct_access
from plait._core import cuda_driver_version as driver_version
from plait._core import gpu_count as count
from plait._core import gpu_kind as kind
from plait._core import why_no_gpu as why_none

__all__ = [
    "Gpu",
    "count",
    "dlpack_view",
    "driver_version",
    "kind",
    "why_no_direct_access",
    "why_none",
]
