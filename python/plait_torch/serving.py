"""Plug-ins for vLLM and SGLang, found by entry points.

Both programs load every plug-in in every process, hence both are off by default: `plait run
--bitwise` sets PLAIT_VLLM=1 or PLAIT_SGLANG=1 (docs/same_bits.md).
"""

import os


def _is_on(name: str) -> bool:
    return os.environ.get(name) == "1" and os.environ.get("PLAIT_DISABLE") != "1"


def register_vllm() -> None:
    """Entry point of group vllm.general_plugins; vLLM may call the function repeatedly in a
    process."""
    if _is_on("PLAIT_VLLM"):
        from plait.torch import serving

        serving.into_vllm()


def register_sglang() -> None:
    """Entry point of group sglang.srt.plugins."""
    if _is_on("PLAIT_SGLANG"):
        from plait.torch import serving

        serving.into_sglang()
