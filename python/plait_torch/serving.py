"""Plug-ins of serving programs: what vLLM and SGLang find by their entry points.

Both load every plug-in there is, in every process, so these do nothing unless they are told to:
`plait run --bitwise` sets PLAIT_VLLM=1 or PLAIT_SGLANG=1 (docs/same_bits.md).
"""

import os


def _is_on(name: str) -> bool:
    return os.environ.get(name) == "1" and os.environ.get("PLAIT_DISABLE") != "1"


def register_vllm() -> None:
    """Of the group vllm.general_plugins; vLLM may call it more than once in a process."""
    if _is_on("PLAIT_VLLM"):
        from plait.torch import serving

        serving.into_vllm()


def register_sglang() -> None:
    """Of the group sglang.srt.plugins."""
    if _is_on("PLAIT_SGLANG"):
        from plait.torch import serving

        serving.into_sglang()
