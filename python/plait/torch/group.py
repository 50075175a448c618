"""Process group of torch.distributed for `init_process_group("plait")` and new_group().

PyTorch takes a Python subclass of ProcessGroup as the whole group, for every device. In releases
with BackendBase, plait is a backend inside PyTorch's own group. Both classes differ in the base
alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import plait
from plait.torch.bootstrap import ABORT_S, tell_abort
from plait.torch.callbacks import Callbacks
from plait.torch.calls import CollectiveCalls
from plait.torch.compiled import never_compiled
from plait.torch.delivery import GpuDelivery
from plait.torch.forks import FORKED, forks_so_far
from plait.torch.gpu import GpuBackend
from plait.torch.host import HostBackend
from plait.torch.memory import cause_of, with_memory
from plait.torch.messages import BARRIER, Mailbox
from plait.torch.overloads import listed, options_of
from plait.torch.types import as_contiguous, copy_back
from plait.torch.works import CombinedWork, CompletedWork, raise_as_c10d, seconds_of

_NO_RANGE = nullcontext()
_DESTROYED = "wanted an open process group: it was destroyed"


@never_compiled
class Group(CollectiveCalls):
    """The group without torch's base class."""

    def __init__(self, store: Any, rank: int, ranks: int, timeout: timedelta) -> None:
        # A second group in the same store must not find keys of the first.
        made = store.add(f"made/{rank}", 1)
        store = dist.PrefixStore(str(made), store)
        self._store, self._rank, self._ranks = store, rank, ranks
        self._forks = forks_so_far()
        self._timeout_s = seconds_of(timeout)
        self._requests = {}
        self._sequence = self._barriers = 0  # _barriers: monitored ones
        self._name, self._description = "", ""
        self._batch: list[Any] | None = None  # works of an open coalescing
        self._is_suspended = self._is_shut = False
        self._callbacks = Callbacks()
        self._teller: threading.Thread | None = None  # tells the store of an abort
        self._host_backend = HostBackend(store, rank, ranks, self._timeout_s, self._callbacks)
        self._gpu_backend: GpuBackend | None = None
        # Made first, so that any rank that sends finds the socket.
        self._mail = Mailbox(store, rank, ranks, self._callbacks) if ranks > 1 else None

    # Interface of torch.

    def getBackendName(self) -> str:
        return "plait"

    name = _get_backend_name = getBackendName

    def getRank(self) -> int:
        return self._rank

    rank = getRank

    def getSize(self) -> int:
        return self._ranks

    size = getSize

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def options(self) -> Any:
        """None: the timeout is the only option."""
        return None

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later calls. Each rank sets its own.

        Raises UnsupportedError once the group has made calls on a GPU: kernels keep their deadline.
        """
        seconds = seconds_of(timeout)
        if self._gpu_backend is not None:
            self._gpu_backend.set_timeout(seconds)
        self._timeout_s = self._host_backend.timeout_s = seconds

    def _set_sequence_number_for_group(self) -> None:
        pass  # counts from 0 on every rank

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    setSequenceNumberForGroup = _set_sequence_number_for_group
    getSequenceNumberForGroup = _get_sequence_number_for_group

    def suspend(self) -> None:
        """Frees plait's GPU memory until resume(). All ranks call it; waits for their calls."""
        if self._gpu_backend is not None:
            self._gpu_backend.suspend()
            self._is_suspended = self._gpu_backend.memory()[1] > 0

    def resume(self) -> None:
        """Takes the GPU memory again, at the same addresses. All ranks call it."""
        if self._gpu_backend is not None:
            self._gpu_backend.resume()
            self._is_suspended = False

    def memory_stats(self) -> dict[str, int]:
        """Returns bytes of plait's GPU memory under the names of PyTorch's NCCL backend.

        suspend: what suspend() frees; suspended: 1 while it is freed, else 0; persist: what stays;
        total: both.
        """
        backend = self._gpu_backend
        stays, goes = (0, 0) if backend is None else backend.memory()
        is_suspended = int(self._is_suspended)
        return {
            "suspend": goes,
            "suspended": is_suspended,
            "persist": stays,
            "total": stays + goes,
        }

    def abort(self) -> None:
        """Fails all calls of this rank at once. Peers' calls that wait for this rank fail soon,
        also during a group's first call. In a forked child, does nothing."""
        if self._is_of_parent():
            return
        if self._ranks > 1:  # first, since a failed call may end the program
            self._teller = tell_abort(self._store, self._rank)
        for backend in (self._host_backend, self._gpu_backend):
            if backend is not None:
                backend.abort()
        if (mail := self._mail) is not None:
            mail.close("it was aborted")
        self._await_teller()

    def _is_of_parent(self) -> bool:
        """Returns whether this process is a forked child of the group's process, which has the
        sockets and the threads."""
        return self._forks != forks_so_far()

    def _await_teller(self) -> None:
        if self._teller is not None:
            self._teller.join(ABORT_S)

    def shutdown(self) -> None:
        """Waits until all calls have ended and all sent messages are received, then closes. In a
        forked child, does nothing."""
        if self._is_of_parent():
            return
        self._await_teller()
        for backend in (self._host_backend, self._gpu_backend):
            if backend is not None:
                backend.close()
        try:
            if self._mail is not None:
                self._mail.shut_down("it was destroyed", self._timeout_s)
        finally:
            self._is_shut = True
            self._mail = None  # frees sockets and memory of a group that the program keeps
            self._callbacks.close(self._timeout_s)

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Makes the GPU's communicator at once, for init_process_group(device_id=)."""
        if self._ranks > 1:
            self._gpu(device).connect(device)

    def split_group(
        self,
        ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> Any:
        """Makes a group of `ranks`; returns None on other ranks. All ranks call it."""
        if self._rank not in ranks:
            return None
        name = group_name or f"{self._name}:split:{'-'.join(map(str, ranks))}"
        store = dist.PrefixStore(f"{name}/", self._store)
        timeout = timeout or timedelta(seconds=self._timeout_s)
        made = create(store, ranks.index(self._rank), len(ranks), timeout)
        made.setGroupName(name)
        made.setGroupDesc(group_desc or f"{self._description}:split")
        return made

    # Calls.

    def _host(self) -> HostBackend:
        return self._host_backend

    def _do(self, what: str, tensor: Tensor, call: Any, result: Any, opts: Any, keep: Any) -> Any:
        """Runs a collective on the tensor's device; returns its Work."""
        self._callbacks.await_turn(self._timeout_s)
        self._sequence += 1
        is_async, seconds = True, 0.0
        if opts is not None and hasattr(opts, "timeout"):
            is_async = getattr(opts, "asyncOp", True)
            seconds = seconds_of(opts.timeout)
        if self._batch is not None:
            is_async = True
        with _range(what) if torch.autograd._profiler_enabled() else _NO_RANGE:
            if self._ranks == 1:
                call(self._host_backend)
                work: Any = CompletedWork(result)
            elif tensor.is_cpu:
                work = self._host_backend.do(what, call, result, is_async, seconds)
            elif _is_foreign(tensor.device):
                work = self._host_backend.do(what, _refusal(tensor), result, is_async, seconds)
            else:
                where = tensor.device
                work = self._gpu(where).do(what, call, result, is_async, keep, where)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def run_rms_norm(self, tensor: Tensor, call: Any, opts: Any) -> None:
        """Runs a call of all_reduce_rms_norm (rms_norm.py). A single rank has a norm to compute."""
        if self._ranks > 1 or tensor.is_cpu:
            batch, self._batch = self._batch, None  # the result is used before a batch ends
            try:
                self._do("all_reduce_rms_norm", tensor, call, [], opts, [])
            finally:
                self._batch = batch
            return
        where = tensor.device
        self._gpu(where).do("all_reduce_rms_norm", call, [], False, [], where)

    def _gpu(self, device: torch.device) -> GpuBackend:
        if device.type != "cuda":
            raise _device_error(device)
        if self._gpu_backend is None:
            self._gpu_backend = GpuBackend(self._store, self._rank, self._ranks, self._timeout_s)
        return self._gpu_backend

    def barrier(self, opts: Any = None, *, timeout: Any = None) -> Any:
        """Waits for all ranks, and for calls on the group's GPU if any."""
        opts = options_of(opts, timeout)
        if self._gpu_backend is not None:
            self._gpu_backend.synchronize()
        return self._do("barrier", _NOWHERE, lambda backend: backend.barrier(), [], opts, None)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Barrier whose error on rank 0 names the ranks that did not come."""
        seconds = seconds_of(timeout) or self._timeout_s
        self._sequence += 1
        self._barriers += 1
        if self._ranks == 1:
            return
        with _range("monitored_barrier"):
            if self._rank == 0:
                self._monitor(seconds, wait_all_ranks)
            else:
                self._report(seconds)

    def _monitor(self, seconds: float, wait_all_ranks: bool) -> None:
        end = time.monotonic() + seconds
        messages = [self._barrier_message(rank, False, seconds) for rank in range(1, self._ranks)]
        missing = []
        for rank, message in enumerate(messages, 1):
            left = timedelta(seconds=max(end - time.monotonic(), 1e-3))
            try:
                message.wait(left)
            except RuntimeError:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if missing:
            many = (
                f"Ranks {', '.join(map(str, missing))}"
                if len(missing) > 1
                else (f"Rank {missing[0]}")
            )
            raise dist.DistBackendError(
                f"[plait] {many} failed to pass monitoredBarrier in {round(seconds * 1e3)} ms"
            )
        for rank in range(1, self._ranks):
            self._barrier_message(rank, True, seconds).wait()

    def _report(self, seconds: float) -> None:
        try:
            self._barrier_message(0, True, seconds).wait()
            self._barrier_message(0, False, seconds).wait()
        except RuntimeError as error:
            raise dist.DistBackendError(
                f"[plait] Rank {self._rank} successfully reached monitoredBarrier, but received "
                "errors while waiting for send/recv from rank 0. Please check rank 0 logs for "
                f"faulty rank: {error}"
            ) from error

    def _barrier_message(self, peer: int, is_send: bool, seconds: float) -> Any:
        """Posts a message of this barrier. The tag is the barrier's number: a rank that came too
        late to an earlier barrier has sent a message there that nobody has received."""
        mail = self._mail
        if mail is None:
            raise dist.DistBackendError(f"[plait] monitored_barrier: {_DESTROYED}")
        post = mail.send if is_send else mail.receive
        whole = torch.zeros(1, dtype=torch.uint8, device="cpu")
        return post(whole, peer, self._barriers, seconds, BARRIER)

    # Point-to-point messages. GPU tensors go through host memory.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        given = listed(tensors)[0]
        try:
            tensor = as_contiguous(given)
            whole = tensor if tensor.is_cpu else tensor.cpu()
        except Exception as error:
            raise cause_of(error, given) from None
        with _range("send") if torch.autograd._profiler_enabled() else _NO_RANGE:
            try:
                work = self._mailbox().send(whole, dst, tag, self._timeout_s)
            except plait.Error as error:
                raise_as_c10d(error, f"send to rank {dst}", self._timeout_s)
        return self._posted(work)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        return self._receive(listed(tensors)[0], src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._receive(listed(tensors)[0], None, tag)

    def _receive(self, tensor: Tensor, peer: int | None, tag: int) -> Any:
        delivery: GpuDelivery | None = None
        try:
            tensor = with_memory(tensor)
            if tensor.is_cpu:
                whole = as_contiguous(tensor)
            elif _is_foreign(tensor.device):
                raise _device_error(tensor.device)
            else:
                whole = torch.empty_like(tensor, device="cpu").contiguous()
                delivery = GpuDelivery(tensor, whole)
        except Exception as error:
            raise cause_of(error, tensor) from None
        with _range("recv") if torch.autograd._profiler_enabled() else _NO_RANGE:
            try:
                work = self._mailbox().receive(whole, peer, tag, self._timeout_s, result=tensor)
            except plait.Error as error:
                raise_as_c10d(error, "recv", self._timeout_s)
        if delivery is not None:
            work.before_completion(delivery.copy, delivery.is_ready)
        elif whole.data_ptr() != tensor.data_ptr():
            work.before_completion(lambda: copy_back(tensor, whole))
        return self._posted(work)

    def _mailbox(self) -> Mailbox:
        self._sequence += 1
        if self._mail is None:
            if self._is_of_parent():
                raise plait.AbortedError(FORKED)
            if self._is_shut:
                raise plait.AbortedError(_DESTROYED)
            self._mail = Mailbox(self._store, self._rank, self._ranks, self._callbacks)
        return self._mail

    def _posted(self, work: Any) -> Any:
        if self._batch is not None:
            self._batch.append(work)
        return work

    # Coalescing.

    def _start_coalescing(self, device: Any = None) -> None:
        self._batch = []

    def _end_coalescing(self, device: Any = None) -> Any:
        works, self._batch = self._batch or [], None
        return CombinedWork(works)

    startCoalescing = _start_coalescing
    endCoalescing = _end_coalescing


# Selects the host backend for calls without a tensor. All tensors of this package name their
# device, since torch.set_default_device() holds for factories without a device.
_NOWHERE = torch.empty(0, device="cpu")


def _is_foreign(device: torch.device) -> bool:
    """Returns whether plait has no calls on the device, such as `meta`."""
    return device.type not in ("cpu", "cuda")


def _device_error(device: torch.device) -> dist.DistBackendError:
    return dist.DistBackendError(
        f"[plait] wanted a tensor in host memory or on a CUDA GPU, found one on {device}"
    )


def _refusal(tensor: Tensor) -> Callable[[HostBackend], None]:
    """Returns a call that fails on all ranks, for a tensor on another device."""

    def call(backend: HostBackend) -> None:
        error = cause_of(_device_error(tensor.device), tensor)
        backend.refuse(error)
        raise error

    return call


def _range(what: str) -> Any:
    """Returns a profiler range, or a null context if no profiler is on."""
    if not torch.autograd._profiler_enabled():
        return _NO_RANGE
    return torch.profiler.record_function(f"plait::{what}")


@never_compiled
class PlaitGroup(Group, dist.ProcessGroup):
    """The whole process group, in PyTorch up to 2.15."""

    def __init__(self, store: Any, rank: int, ranks: int, timeout: timedelta) -> None:
        dist.ProcessGroup.__init__(self, rank, ranks)
        Group.__init__(self, store, rank, ranks, timeout)

    def _get_backend(self, device: Any = None) -> Any:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(kind) for kind in kinds]


@never_compiled
def create(store: Any, rank: int, ranks: int, timeout: timedelta) -> Any:
    """Makes a group; called by torch.distributed."""
    base = getattr(dist, "BackendBase", None)
    if base is None:
        return PlaitGroup(store, rank, ranks, timeout)
    return _backend_class(base)(store, rank, ranks, timeout)


def _backend_class(base: Any) -> Any:
    """Returns the class of a backend inside PyTorch's own group."""

    @never_compiled
    class PlaitBackend(Group, base):
        def __init__(self, store: Any, rank: int, ranks: int, timeout: timedelta) -> None:
            base.__init__(self, rank, ranks)
            Group.__init__(self, store, rank, ranks, timeout)

    return PlaitBackend
