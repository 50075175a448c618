"""`plait doctor`: what this machine has, what is missing, what to do about it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

import plait


@dataclass(frozen=True)
class Check:
    """One finding. state: ok, missing (works without) or broken (must be mended)."""

    what: str
    state: str
    found: str
    advice: str = ""


def _library(name: str, what: str, advice: str) -> Check:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        reason = str(error).split(":")[-1].strip()
        return Check(what, "missing", f"{name}: {reason}", advice)
    return Check(what, "ok", name)


def _processor() -> Check:
    cores = len(os.sched_getaffinity(0))
    return Check("processor", "ok", f"{platform.machine()}, {cores} cores usable")


def _topology() -> Check:
    try:
        topology = plait.discover()
    except plait.Error as error:
        return Check("topology", "broken", str(error), "report this; pass --topology meanwhile")
    devices = len(topology.rank_devices())
    return Check("topology", "ok", f"{topology.name}: {devices} rank devices")


def _memory() -> Check:
    try:
        fd = os.memfd_create("plait-doctor")
        os.posix_fallocate(fd, 0, 64 << 20)
        os.close(fd)
    except OSError as error:
        return Check(
            "shared memory", "broken", str(error), "raise the memory limit of this process"
        )
    return Check("shared memory", "ok", "64 MiB of memfd allocated and given back")


def _runtime_folder() -> Check:
    home = os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/plait-{os.getuid()}"
    folder = Path(home)
    if not folder.exists():
        return Check("rendezvous folder", "ok", f"{folder} (made when needed)")
    facts = folder.lstat()
    private = facts.st_uid == os.getuid() and stat.S_IMODE(facts.st_mode) & 0o077 == 0
    if stat.S_ISDIR(facts.st_mode) and private:
        return Check("rendezvous folder", "ok", str(folder))
    advice = f"make {folder} a folder of yours with mode 0700, or set XDG_RUNTIME_DIR to one"
    return Check("rendezvous folder", "broken", f"{folder} is not private to this user", advice)


def _python_package(name: str, why: str) -> Check:
    if importlib.util.find_spec(name) is None:
        return Check(name, "missing", "not installed", f"pip install {name}  ({why})")
    return Check(name, "ok", "installed")


def _launcher(name: str) -> Check:
    path = shutil.which(name)
    if path is None:
        return Check(name, "missing", "not on PATH", "only needed to start jobs with it")
    return Check(name, "ok", path)


def _gpus() -> Check:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return Check("GPUs", "missing", "no nvidia-smi", "CPU ranks work; GPU ranks need a driver")
    done = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=30)
    lines = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    state = "ok" if lines else "missing"
    return Check("GPUs", state, f"{len(lines)} found" if lines else done.stderr.strip())


def why_no_gpu() -> str:
    """Why this machine has no usable GPU; empty where it has one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver here"
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return "the CUDA driver finds no GPU"
    return "" if count.value > 0 else "the CUDA driver finds no GPU"


def examine() -> list[Check]:
    """Every check, in the order in which a newcomer should read them."""
    return [
        _processor(),
        _memory(),
        _runtime_folder(),
        _topology(),
        _gpus(),
        _library("libcuda.so.1", "CUDA driver", "install the NVIDIA driver for GPU ranks"),
        _library("libnvidia-ml.so.1", "NVML", "comes with the NVIDIA driver"),
        _library("libnccl.so.2", "NCCL", "only needed for `plait run` and --against nccl"),
        _launcher("torchrun"),
        _launcher("mpirun"),
        _python_package("matplotlib", "for --plot"),
    ]
