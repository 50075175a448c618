"""Delivery of received messages, which arrive in host memory, into tensors on a GPU (group.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plait.torch.types import copy_back

_streams: dict[Any, Any] = {}  # stream of deliveries, by device


def _stream_of(device: Any) -> Any:
    """Returns the stream of deliveries to a GPU: none of the streams that calls of groups use,
    since those have a lower priority."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device, priority=-1)
    return _streams[device]


class GpuDelivery:
    """Copy of an arrived message from host memory into a tensor on a GPU.

    The copy comes after all work that the current stream had at the receive, and the host waits for
    the copy: every stream sees the data afterwards.
    """

    def __init__(self, tensor: Tensor, arrived: Tensor) -> None:
        self._tensor, self._arrived = tensor, arrived
        self._earlier_work = torch.cuda.Event()
        self._earlier_work.record(torch.cuda.current_stream(tensor.device))

    def is_ready(self) -> bool:
        """Returns whether the copy need not wait for earlier work on the GPU."""
        try:
            return bool(self._earlier_work.query())
        except RuntimeError:  # the GPU has failed, which copy() reports
            return True

    def copy(self) -> None:
        """Waits for earlier work, and copies. Any thread."""
        device = self._tensor.device
        with torch.cuda.device(device):
            stream = _stream_of(device)
            stream.wait_event(self._earlier_work)
            with torch.cuda.stream(stream):
                copy_back(self._tensor, self._arrived)
            stream.synchronize()
