"""Template of `plait topo --new`: PCIe GPUs on some sockets, for users to edit.

Every figure is a guess, marked as a guess in its source.
"""

from __future__ import annotations

from typing import Any

import plait
from plait.machines import facts

GUESS = "a guess: replace it by a measured figure and its source"
NIC_GB_PER_S = 25.0  # nominal
PARAMETERS = {"copy_launch_ns": 9000, "kernel_launch_ns": 4000, "gpu_memory_gb_per_s": 2000}


def template(
    name: str,
    gpus: int = 4,
    sockets: int = 2,
    pcie: int = 4,
    nvlink_pairs: int = 0,
    switches: int = 0,
    model: str = "",
) -> dict[str, Any]:
    """Returns a topology as JSON: `gpus` GPUs in equal parts on `sockets` sockets, each with 16
    lanes of that PCIe generation, behind `switches` PCIe switches (0 = at the CPU), and with
    `nvlink_pairs` NVLinks between GPUs 0 and 1, 2 and 3, and so on.

    Raises InvalidArgumentError if the numbers do not describe a machine.
    """
    if not 1 <= gpus <= facts.MOST_GPUS:
        _refuse("--gpus", f"1 to {facts.MOST_GPUS}", gpus)
    if not 1 <= sockets <= gpus or gpus % sockets:
        _refuse("--sockets", f"1 to the number of GPUs ({gpus}), as many GPUs on each", sockets)
    if pcie not in facts.LANE_GB_PER_S:
        _refuse("--pcie", "a generation from 1 to 6", pcie)
    if not 0 <= nvlink_pairs <= 18 or (nvlink_pairs and gpus % 2):
        _refuse(
            "--nvlink-pairs", "0 to 18 NVLinks a pair, and an even number of GPUs", nvlink_pairs
        )
    if not 0 <= switches <= gpus or (switches and switches % sockets):
        _refuse("--switches", f"0, or as many on each of {sockets} sockets", switches)
    machine = facts.Machine(GUESS)
    speed = facts.pcie_gb_per_s(pcie, 16)
    for gpu in range(gpus):
        behind = (f"switch{gpu * switches // gpus}",) if switches else ()
        one = facts.Gpu(gpu * sockets // gpus, model, "", speed, 16, behind)
        machine.gpus.append(one)
    if nvlink_pairs:
        machine.nvlinks = {(gpu, gpu + 1): nvlink_pairs for gpu in range(0, gpus, 2)}
    machine.nics.append(facts.Nic("nic0", NIC_GB_PER_S, tuple(range(gpus))))
    machine.share_switches()
    made = facts.as_json(machine, name)
    guessed = {key: {"value": value, "source": GUESS} for key, value in PARAMETERS.items()}
    made["source"], made["parameters"] = GUESS, guessed | made["parameters"]
    return made


def _refuse(option: str, wanted: str, found: int) -> None:
    raise plait.InvalidArgumentError(f"{option}: wanted {wanted}, found {found}")
