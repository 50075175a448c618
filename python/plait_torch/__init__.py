"""Makes `init_process_group("plait")` known to PyTorch: the entry point that `import torch` loads.

It runs in every process that imports torch, so it imports nothing before a group is asked for.
"""

from typing import Any


def _create(store: Any, rank: int, ranks: int, timeout: Any) -> Any:
    from plait.torch import create

    return create(store, rank, ranks, timeout)


def register() -> None:
    """Tells torch.distributed of the backend; a second time does nothing new."""
    import torch.distributed as dist

    if dist.is_available():
        dist.Backend.register_backend("plait", _create, devices=["cpu", "cuda"])
