"""Build backend: scikit-build-core, plus NVIDIA's compiler wheels if nvcc is missing.

Every build that can reach a package registry compiles the kernels (not with PLAIT_CUDA=0). Machines
with a toolkit, or without a network, need nothing else.
"""

import os
import shutil
from pathlib import Path

from scikit_build_core.build import *  # noqa: F403
from scikit_build_core.build import (
    get_requires_for_build_editable as _requires_for_editable,
)
from scikit_build_core.build import (
    get_requires_for_build_wheel as _requires_for_wheel,
)

# A single pin for all parts: mixed versions make CCCL refuse to compile.
CUDA_COMPILER = "cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]==13.0.2"
# The other half of a module for every Python.
SPLIT_MODULE = "nanobind-backend>=1,<2"


def _has_nvcc() -> bool:
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    found = (Path(home) / "bin" / "nvcc" for home in homes if home)
    return bool(os.environ.get("CUDACXX") or shutil.which("nvcc")) or any(p.exists() for p in found)


def _with_compiler(requires: list[str]) -> list[str]:
    wanted = os.environ.get("PLAIT_CUDA", "auto") != "0"
    return [*requires, CUDA_COMPILER] if wanted and not _has_nvcc() else requires


def get_requires_for_build_wheel(config_settings=None):
    requires = _with_compiler(_requires_for_wheel(config_settings))
    for_all_pythons = (config_settings or {}).get("cmake.define.PLAIT_ABI3") == "ON"
    # The build imports the new module to write _core.pyi.
    return [*requires, SPLIT_MODULE] if for_all_pythons else requires


def get_requires_for_build_editable(config_settings=None):
    return _with_compiler(_requires_for_editable(config_settings))
