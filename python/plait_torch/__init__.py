"""Registers the backend of `init_process_group("plait")`; an entry point that `import torch` loads.

Runs in every process that imports torch, and hence imports plait only when a group is made.
"""

from typing import Any


def _create(store: Any, rank: int, ranks: int, timeout: Any) -> Any:
    from plait.torch import create

    return create(store, rank, ranks, timeout)


def register() -> None:
    """Registers the backend with torch.distributed; later calls do nothing."""
    import torch.distributed as dist

    if dist.is_available():
        dist.Backend.register_backend("plait", _create, devices=["cpu", "cuda"])
