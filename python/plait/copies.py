"""plait.copy: copies an array to another GPU of this process, over every path at once.

The direct link, host memory and relay GPUs carry a share each. Small arrays use the link alone.
Copies are in stream order, like copies of torch and cupy.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from plait import _core
from plait._core import InvalidArgumentError
from plait.arguments import masks_of
from plait.arrays import DTYPE_OF_TYPE, HOST, Buffer, buffer_of, stream_handle

_copies_of: dict[tuple[str, tuple[str, ...]], _core.Copies] = {}
_guard = threading.Lock()


def copies(topology: str = "", without: Sequence[str] | None = None) -> _core.Copies:
    """Returns this process's copies on a topology ("" = the machine as found), made once."""
    key = (topology, tuple(masks_of(without or (), "without")))
    with _guard:
        if key not in _copies_of:
            _copies_of[key] = _core.Copies(topology, list(key[1]))
        return _copies_of[key]


def copy(
    dst: Any,
    src: Any,
    *,
    dst_stream: Any = None,
    src_stream: Any = None,
    params: Mapping[str, int] | None = None,
    topology: str = "",
    without: Sequence[str] | None = None,
) -> Any:
    """Copies src to dst, both in GPU memory (torch, cupy, DLPack), and returns dst at once.

    Both are contiguous, of the same element type and count, at any alignment. dst_stream,
    src_stream: a number, torch.cuda.Stream or cupy.cuda.Stream on the array's GPU; None = the
    library's current stream on that GPU. The copy runs after earlier work of both streams and
    before later work of either. params: host_permille, relay_permille, relay, chunk_kib, batch
    (`plait bench copy --shares`); None = shares by the links' speeds, with less through host memory
    if earlier copies waited for it (another job on PCIe). without: excluded links ("nvlink:0-1").
    Raises InvalidArgumentError for arrays in host memory or of different types or counts.
    """
    source, target = buffer_of(src, "src"), buffer_of(dst, "dst", writable=True)
    for role, buffer in (("dst", target), ("src", source)):
        if buffer.device == HOST:
            raise InvalidArgumentError(
                f"wanted {role} in memory of a GPU, found host memory: copy it there first"
            )
    if (source.type, source.count) != (target.type, target.count):
        raise InvalidArgumentError(
            f"wanted dst of {source.count} {source.type} elements as in src, found "
            f"{target.count} {target.type}"
        )
    bytes_wanted = source.count * DTYPE_OF_TYPE[source.type].itemsize
    if bytes_wanted > 0:
        copies(topology, without).copy(
            target.address,
            source.address,
            bytes_wanted,
            _stream(dst_stream, target),
            _stream(src_stream, source),
            dict(params or {}),
        )
    return dst


def _stream(stream: Any, buffer: Buffer) -> int:
    """Returns a stream's handle; None = the current stream. cupy has a current stream per GPU: the
    array's counts."""
    if stream is None and type(buffer.owner).__module__.split(".")[0] == "cupy":
        with buffer.owner.device:
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return stream_handle(stream, [buffer])
