"""Calls by which a communicator gives up its GPU memory for a while."""

from __future__ import annotations

from typing import Any, NamedTuple


class GpuMemory(NamedTuple):
    """Bytes of GPU memory of a communicator on this rank.

    suspendable: the part that suspend() frees, counted also while the communicator is suspended.
    """

    staying: int
    suspendable: int


class GpuMemoryCalls:
    """The calls of Communicator. _core: the core's communicator."""

    _core: Any

    def suspend(self) -> None:
        """Frees this communicator's GPU memory until resume().

        For programs that need the memory for a while, as an inference engine that sleeps while a
        trainer runs on its GPU. All ranks call this together; it waits for all work on this rank's
        GPU, then for the peers up to arrive_s s. Addresses stay reserved: captured graphs are right
        again after resume(), and must not run before. Calls on arrays of the GPU raise
        InvalidArgumentError meanwhile; calls on host memory go on. Memory of pairs of ranks stays,
        and all memory stays where ranks are threads of a process or their GPUs have no direct
        access to each other: gpu_memory() tells. Raises NoDeviceError without a GPU,
        UnsupportedError over several nodes, and errors of earlier calls.
        """
        self._core.suspend()

    def resume(self) -> None:
        """Takes the GPU memory of suspend() again, at the same addresses.

        All ranks call this together. Without an earlier suspend() it has no effect. Raises
        MemoryExhaustedError on all ranks if a GPU has too little memory; the communicator is over
        then.
        """
        self._core.resume()

    def gpu_memory(self) -> GpuMemory:
        """Returns this communicator's GPU memory on this rank in bytes, without its pairs'."""
        return GpuMemory(*self._core.gpu_memory())
