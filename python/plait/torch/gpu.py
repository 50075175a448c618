"""Collectives in GPU memory, in stream order.

A blocking call goes on the current stream. A call with async_op goes on a stream of the group. That
stream first waits for the current stream; wait() makes the current stream wait for the call. Both
can be captured into a graph once a first call has made the communicator.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

import plait
from plait.torch.bootstrap import bootstrap
from plait.torch.forks import FORKED, track
from plait.torch.works import StreamWork, await_event, c10d_errors


class GpuBackend:
    """Runs calls on a single GPU, that of the first tensor. store, timeout_s: the group's."""

    takes_factors = False  # the core wants all ranks' factors, and ranks exchange none on GPUs

    def __init__(self, store: Any, rank: int, ranks: int, timeout_s: float) -> None:
        self.rank, self.ranks, self.timeout_s = rank, ranks, timeout_s
        self._store = store
        self._core: Any = None
        self._device: Any = None
        self._stream: Any = None
        self._closed = ""
        self._guard = threading.RLock()  # one call at a time is enqueued
        track(self)

    def forked(self) -> None:
        """Fails all calls of a forked child."""
        self._closed, self._guard = FORKED, threading.RLock()

    def set_timeout(self, seconds: float) -> None:
        """Sets the timeout before the communicator is made; kernels keep their deadline."""
        if self._core is not None and seconds != self.timeout_s:
            raise plait.UnsupportedError(
                f"set_timeout: wanted {self.timeout_s} s, the deadline of kernels since this "
                f"group's first call on its GPU, found {seconds} s; set the timeout before that "
                "call, or make a group with new_group(timeout=)"
            )
        self.timeout_s = seconds

    def launch(self, request: plait.Request, source: int, out: int) -> None:
        """Enqueues a collective of the core on the current stream. Only inside do()."""
        core = self._core if self._core is not None else self._bootstrap()
        stream = torch.cuda.current_stream(self._device).cuda_stream
        core.enqueue(request, source, out, stream)

    def launch_rms_norm(self, norm: Any, places: list[int]) -> None:
        """Enqueues all_reduce_rms_norm on the current stream. Only inside do()."""
        core = self._core if self._core is not None else self._bootstrap()
        stream = torch.cuda.current_stream(self._device).cuda_stream
        scale = places[4] if len(places) > 4 else 0
        core.enqueue_all_reduce_rms_norm(norm, *places[:4], scale, stream)

    @property
    def index(self) -> int:
        """Device index of the tensors."""
        return int(self._device.index)

    def refuse(self, error: Exception) -> None:
        """Does nothing: GPU calls have no barrier on the host. The peers' call hits the
        deadline."""

    def connect(self, device: Any) -> None:
        """Makes the communicator. Collective."""
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
            made = bootstrap(
                self._store, self.rank, self.ranks, index, self.timeout_s, lambda: self._closed
            )
        except Exception as error:
            self._closed = self._closed or f"its communicator could not be made: {error}"
            raise
        self._core = made._core
        if self._closed:  # an abort that found no communicator yet
            self._core.abort()
            raise plait.AbortedError(self._closed)
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
        """Enqueues call(self) on a stream; returns its Work. keep: the tensors of the call."""
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
        """Raises the errors of calls on the GPU so far, as c10d's."""
        if self._core is not None:
            with c10d_errors("a call on a GPU", self.timeout_s):
                self._core.check()

    def synchronize(self) -> None:
        """Waits on the host for all calls, at most the group's timeout."""
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
            self.check()  # raises the reason, if plait failed the stream
            raise

    def suspend(self) -> None:
        """Frees the communicator's GPU memory until resume(). Collective."""
        self._on_core("suspend", lambda core: core.suspend())

    def resume(self) -> None:
        """Takes the memory again. Collective."""
        self._on_core("resume", lambda core: core.resume())

    def _on_core(self, what: str, call: Callable[[Any], None]) -> None:
        """Runs a call on the communicator, if a first call has made one."""
        with self._guard, c10d_errors(what, self.timeout_s):
            if self._closed:
                raise plait.AbortedError(self._closed)
            if self._core is not None:
                call(self._core)

    def memory(self) -> tuple[int, int]:
        """Returns the GPU memory in bytes that stays, and that suspend() frees."""
        return (0, 0) if self._core is None else self._core.gpu_memory()

    def abort(self, why: str = "it was aborted") -> None:
        """Fails this rank's running calls and all later calls. Thread-safe."""
        self._closed = self._closed or f"wanted an open process group: {why}"
        if self._core is not None:
            self._core.abort()

    def close(self) -> None:
        """Waits for earlier calls, at most the group's timeout, and closes the communicator.

        A failed stream only gives a warning: the calls have reported the error already.
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
