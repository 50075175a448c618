"""plait as a backend of torch.distributed: `init_process_group("plait")`, with no import.

docs/pytorch.md lists the served calls. Importing this module registers the backend too, if the
entry points of torch.backends are switched off.
"""

from plait.torch.group import PlaitGroup, create
from plait.torch.rms_norm import all_reduce_rms_norm
from plait_torch import register

__all__ = ["PlaitGroup", "all_reduce_rms_norm", "create", "register"]

register()
