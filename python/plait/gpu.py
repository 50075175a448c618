"""The CUDA driver's few calls that benchmarks and tests need, where a framework is not wanted.

Gpu(ordinal) has memory, streams, events and graphs, all as integers. Nothing of it is needed to run
collectives on tensors.
"""

from plait._core import Gpu, dlpack_view
from plait._core import cuda_driver_version as driver_version
from plait._core import gpu_count as count
from plait._core import gpu_kind as kind
from plait._core import why_no_gpu as why_none

__all__ = ["Gpu", "count", "dlpack_view", "driver_version", "kind", "why_none"]
