"""plait.copy: one array to another GPU of this process, over every path at once.

The direct link, host memory and GPUs that lend themselves as routes carry a share each; small
arrays go over the link alone. In stream order, like the copies of torch and cupy.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from plait import _core
from plait._core import InvalidArgumentError
from plait.arrays import DTYPE_OF_TYPE, HOST, Buffer, buffer_of, stream_handle

_doors: dict[tuple[str, tuple[str, ...]], _core.Copies] = {}
_guard = threading.Lock()


def copies(topology: str = "", without: Sequence[str] | None = None) -> _core.Copies:
    """This process's copies on that topology ("" = the machine as found), made once."""
    key = (topology, tuple(without or ()))
    with _guard:
        if key not in _doors:
            _doors[key] = _core.Copies(topology, list(key[1]))
        return _doors[key]


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
    """dst[...] = src between arrays in memory of GPUs (torch, cupy, DLPack); returns dst at once.

    Both must be contiguous, of one element type and as many elements; any alignment. dst_stream,
    src_stream: a number, torch.cuda.Stream or cupy.cuda.Stream on the GPU of each; None = the
    library's current stream there. The copy begins after what both streams hold, and what either
    gets later comes after it. params: host_permille, relay_permille, relay, chunk_kib, batch
    (`plait bench copy --shares`); None = as the links ask for, with less through host memory where
    earlier copies waited for it (another job on PCIe). without: links left out ("nvlink:0-1").
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
    """cupy's current stream is one a GPU, and that of the array's GPU is meant."""
    if stream is None and type(buffer.owner).__module__.split(".")[0] == "cupy":
        with buffer.owner.device:
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return stream_handle(stream, [buffer])
