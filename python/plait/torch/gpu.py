"""Calls on a GPU's memory, in stream order.

A blocking call goes to the current stream. One with async_op goes to a stream of the group, which
waits for the current one first; wait() then makes the current stream wait for it. Both may be
captured into a graph, once a first call has made the communicator.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

import plait
from plait.torch.bootstrap import bootstrap
from plait.torch.works import StreamWork, await_event, c10d_errors


class GpuBackend:
    """What runs calls on the GPU of the first tensor. `store`, `timeout_s`: the group's."""

    def __init__(self, store: Any, rank: int, ranks: int, timeout_s: float) -> None:
        self.rank, self.ranks, self.timeout_s = rank, ranks, timeout_s
        self._store = store
        self._core: Any = None
        self._device: Any = None
        self._stream: Any = None
        self._closed = ""
        self._guard = threading.RLock()  # one call at a time is put on streams

    def launch(self, request: plait.Request, source: int, out: int, scalar: float = 1.0) -> None:
        """One collective of the core on the current stream; inside a call alone."""
        core = self._core if self._core is not None else self._bootstrap()
        stream = torch.cuda.current_stream(self._device).cuda_stream
        scalars = [] if scalar == 1.0 else [scalar] * self.ranks
        core.enqueue(request, source, out, stream, "", {}, scalars)

    @property
    def index(self) -> int:
        """Of tensors' devices."""
        return int(self._device.index)

    def refuse(self, error: Exception) -> None:
        """Nobody hears: ranks do not meet on the host. The others' call ends at its deadline."""

    def connect(self, device: Any) -> None:
        """Makes the communicator now, on all ranks at once."""
        with self._guard, torch.cuda.device(device), c10d_errors("connecting", self.timeout_s):
            self._check_device(device)
            if self._core is None:
                self._bootstrap()

    def _bootstrap(self) -> Any:
        if torch.cuda.is_current_stream_capturing():
            raise plait.UnsupportedError(
                "wanted a first call of the group before a graph is captured, which makes its "
                "communicator; call any collective on this GPU once"
            )
        index = self._device.index
        try:
            made = bootstrap(self._store, self.rank, self.ranks, index, self.timeout_s)
        except Exception as error:
            self._closed = f"its communicator could not be made: {error}"
            raise
        self._core = made._core
        return self._core

    def do(
        self,
        what: str,
        call: Callable[[GpuBackend], None],
        result: Any,
        is_async: bool,
        keep: Any,
        device: Any,
    ) -> StreamWork:
        """Puts call(self) on a stream; the Work of it. keep: the tensors that it uses."""
        with self._guard, torch.cuda.device(device), c10d_errors(what, self.timeout_s):
            if self._closed:
                raise plait.AbortedError(self._closed)
            self._check_device(device)
            current = torch.cuda.current_stream(device)
            if not is_async:
                call(self)
                return StreamWork(what, result, None, current, False, self.check)
            if self._stream is None:
                self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                call(self)
            return StreamWork(what, result, keep, self._stream, True, self.check)

    def _check_device(self, device: Any) -> None:
        if self._device is None:
            self._device = device
        if device != self._device:
            raise plait.InvalidArgumentError(
                f"wanted tensors on {self._device}, which this group's first call was on, found "
                f"one on {device}"
            )

    def check(self) -> None:
        """What calls met on the GPU so far, in c10d's words."""
        if self._core is not None:
            with c10d_errors("a call on a GPU", self.timeout_s):
                self._core.check()

    def synchronize(self) -> None:
        """The host waits for all calls, as long as the group's timeout."""
        if self._device is None:
            return
        streams = [torch.cuda.current_stream(self._device)]
        if self._stream is not None:
            streams.append(self._stream)
        try:
            for stream in streams:
                event = torch.cuda.Event()
                event.record(stream)
                await_event(event, "the calls before", self.timeout_s, self.check)
        except RuntimeError:
            self.check()  # knows why a stream has failed
            raise

    def abort(self, why: str = "it was aborted") -> None:
        """From any thread."""
        self._closed = self._closed or f"wanted an open process group: {why}"
        if self._core is not None:
            self._core.abort()

    def close(self) -> None:
        """After what was called, where it ends in the group's time.

        Where a stream has failed there is nothing to wait for: its calls have said so, and a
        program that ends must get to its end.
        """
        try:
            if self._core is not None and not self._closed:
                self.synchronize()
        except RuntimeError as error:
            warnings.warn(
                f"plait: a group was closed after its calls had failed: {error}", stacklevel=2
            )
        finally:
            self._closed = self._closed or "wanted an open process group: it was destroyed"
            self._core = None
