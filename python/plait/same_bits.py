"""`plait run --bitwise -- cmd`: environment, messages and final report.

plait runs every sum of an NCCL call in rank order, or the call fails (PLAIT_BITWISE_STRICT). Sums
by kernels of the program itself never reach NCCL. For vLLM, SGLang and TensorRT-LLM this module
turns sum kernels off by the programs' switches or by plait's plug-ins (docs/same_bits.md).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import plait
from plait import gpu, profile, run
from plait.launch import Keeper
from plait.outputs import human_bytes
from plait.tree_order import tree_sum as tree_sum

STRICT = {"PLAIT_BITWISE": "1", "PLAIT_BITWISE_STRICT": "1"}
ORDERS = {
    "rank_order": "rank order",
    "tree": "tree order",
    "tree_rounded": "tree order, each sum rounded",
}
REDUCING = ("all_reduce", "reduce_scatter", "reduce")


@dataclass
class KnownProgram:
    """A program that has sum kernels of its own: variables that turn the kernels off, and
    messages."""

    name: str = ""
    env: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    advice: str = ""  # for the user, if plait does not get the sums


def order_of(what: str, name: str) -> str:
    """Returns the name of an order, or "" for "". Raises InvalidArgumentError that names `what`."""
    name = "rank_order" if name == "rank" else name
    if name and name not in ORDERS:
        wanted = ", ".join(ORDERS)
        raise plait.InvalidArgumentError(f"{what}: wanted one of {wanted}, found {name!r}")
    return name


def program_of(command: Sequence[str], environ: Mapping[str, str] = os.environ) -> KnownProgram:
    """Returns the known facts of the command's program; empty for most programs."""
    names = run.imported(command) | {Path(word).name for word in command[:1]}
    known = {"vllm": _vllm, "sglang": _sglang, "trtllm-serve": _tensorrt_llm}
    known |= {"tensorrt_llm": _tensorrt_llm}
    for name, about in known.items():
        if name in names:
            return about(command, environ)
    return KnownProgram()


def version_of(package: str, command: Sequence[str]) -> str:
    """Returns the version of a package in the command's Python; empty if not installed."""
    for folder in run.package_folders(command):
        for found in folder.glob(f"{package}-*.dist-info"):
            if match := re.fullmatch(rf"{package}-(.+)\.dist-info", found.name):
                return match.group(1)
    return ""


def _vllm(command: Sequence[str], environ: Mapping[str, str]) -> KnownProgram:
    name = f"vLLM {version_of('vllm', command)}".strip()
    env = {"VLLM_BATCH_INVARIANT": "1", "PLAIT_VLLM": "1"}
    if "--disable-custom-all-reduce" in command:
        said = (
            f"{name}: --disable-custom-all-reduce leaves tensor-parallel sums to NCCL, so plait's"
        )
        return KnownProgram(name, env, [said])
    filtered = environ.get("VLLM_PLUGINS")
    if filtered is not None and "plait" not in filtered.split(","):
        why = f"VLLM_PLUGINS={filtered} leaves plait's plug-in out"
        return _own_kernel(name, env, why, "add plait to VLLM_PLUGINS, or unset it")
    if not version_of("plait", command):
        why = "plait is not installed beside vLLM, so its plug-in is not found"
        advice = "install plait's wheel there, or add --disable-custom-all-reduce"
        return _own_kernel(name, env, why, advice)
    said = f"{name}: tensor-parallel sums are plait's, by its plug-in (PLAIT_VLLM=1)"
    return KnownProgram(name, env, [said])


def _own_kernel(name: str, env: dict[str, str], why: str, advice: str) -> KnownProgram:
    said = (
        f"{name}: {why}; with VLLM_BATCH_INVARIANT=1 it then sums by a one-stage kernel of its "
        f"own, which NCCL and plait do not see: {advice}"
    )
    return KnownProgram(name, env, [said], advice)


def _sglang(command: Sequence[str], environ: Mapping[str, str]) -> KnownProgram:
    name = f"SGLang {version_of('sglang', command)}".strip()
    if "--enable-deterministic-inference" in command:
        said = f"{name}: its deterministic mode leaves tensor-parallel sums to NCCL, so plait's"
        return KnownProgram(name, {}, [said])
    if version_of("plait", command):
        said = f"{name}: tensor-parallel sums are plait's, by its hook (PLAIT_SGLANG=1)"
        advice = "--enable-deterministic-inference also fixes attention and sampling"
        return KnownProgram(name, {"PLAIT_SGLANG": "1"}, [said, advice])
    advice = "add --enable-deterministic-inference"
    said = f"{name}: it sums by kernels of its own, which NCCL and plait do not see: {advice}"
    return KnownProgram(name, {}, [said], advice)


def _tensorrt_llm(command: Sequence[str], environ: Mapping[str, str]) -> KnownProgram:
    advice = "set allreduce_strategy: NCCL in its LLM arguments"
    said = (
        "TensorRT-LLM: FORCE_DETERMINISTIC=1 does not fix its all-reduce, which it chooses by "
        f"size; {advice} (not tested with plait)"
    )
    return KnownProgram("TensorRT-LLM", {"FORCE_DETERMINISTIC": "1"}, [said], advice)


def plan(
    command: Sequence[str],
    via: str = "",
    drop_in: str = "",
    environ: Mapping[str, str] = os.environ,
    order: str = "rank_order",
) -> tuple[run.RunPlan, list[str]]:
    """Returns (how to run the command, messages). Raises UnsupportedError if NCCL could get
    sums."""
    is_said = order != "rank_order" or "PLAIT_SUM_ORDER" in environ
    demand = {**STRICT, "PLAIT_SUM_ORDER": order} if is_said else STRICT
    if environ.get("PLAIT_DISABLE") == "1":
        raise plait.UnsupportedError("--bitwise: PLAIT_DISABLE=1 turns plait off; unset it")
    program = program_of(command, environ)
    chosen = run.plan(command, via, drop_in, {**environ, **program.env, **demand})
    if chosen.via == "mpi":
        raise plait.UnsupportedError(
            "--bitwise: wanted a program that calls NCCL or plait, found an MPI program, some of "
            "whose reductions stay with the MPI; PLAIT_MPI_HOST=1 PLAIT_BITWISE=1 serves those "
            "that docs/mpi.md lists"
        )
    if not chosen.via and not (reason := gpu.why_none()):
        raise plait.UnsupportedError(
            f"--bitwise: wanted the drop-in under NCCL, found {chosen.said}"
        )
    if not chosen.via:
        # Without a drop-in, strict is the program's choice.
        more = {name: value for name, value in demand.items() if name != "PLAIT_BITWISE_STRICT"}
        env = {**environ, **more}
        said = (
            f"{reason}: plait's own communicators and its backend of PyTorch sum in "
            f"{ORDERS[order]}; gloo and MPI sum as they do"
        )
        return run.RunPlan("", env, said), []
    claims = f"sums over ranks are plait's in {ORDERS[order]}, or errors; kernels are the program's"
    return chosen, [*program.said, claims]


def execute(
    command: Sequence[str], via: str = "", drop_in: str = "", order: str = "rank_order"
) -> int:
    """Runs the command; says first who sums, and last what was served. Returns the exit status."""
    chosen, said = plan(command, via, drop_in, order=order)
    for line in (chosen.said, *said):
        print(f"plait: {line}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="plait-counts-") as folder:
        env = {**chosen.env, "PLAIT_COUNTS": folder} if chosen.via else chosen.env
        program = subprocess.Popen(list(command), env=env)
        keeper = Keeper()
        keeper.add(program)
        status = _wait_for(program)
        keeper.close()
        if chosen.via:
            for line in served(folder, order):
                print(f"plait: {line}", file=sys.stderr, flush=True)
    return status


def _wait_for(child: subprocess.Popen[bytes]) -> int:
    """Returns the child's status as a shell does. Ctrl-C reaches the child from the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: child.send_signal(received))
    # A handler runs between two waits only: another thread may get the signal, or the signal comes
    # just before the wait.
    while (status := _status_within(child, 1.0)) is None:
        pass
    return status if status >= 0 else 128 - status


def _status_within(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Returns the child's status; None if the child still runs after that time."""
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def served(folder: str | Path, order: str = "rank_order") -> list[str]:
    """Returns lines on the calls that plait and NCCL served, from the processes' counters."""
    pages = profile.load(folder)
    if not pages:
        return ["no process made a call of NCCL, or all were killed before writing their counters"]
    calls: dict[tuple[bool, bool], int] = defaultdict(int)
    sizes: dict[tuple[bool, bool], int] = defaultdict(int)
    for page in pages:
        for row in page["rows"]:
            kind = row["name"] in REDUCING, row["served"] > 0
            calls[kind] += row["calls"]
            sizes[kind] += row["bytes"]

    def figure(reduces: bool, by_plait: bool) -> str:
        kind = reduces, by_plait
        return f"{calls[kind]} calls ({human_bytes(sizes[kind])})"

    lines = [
        f"served in {len(pages)} processes: sums in {ORDERS[order]} {figure(True, True)}; "
        f"moves {figure(False, True)}"
    ]
    left = [figure(True, False), figure(False, False)]
    lines.append(
        f"left to NCCL: reductions that no order changes {left[0]}; moves {left[1]}"
        if calls[True, False] or calls[False, False]
        else "nothing was left to NCCL"
    )
    return lines
