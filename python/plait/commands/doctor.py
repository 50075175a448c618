"""`plait doctor`: checks what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib.util
import json
import os
import platform
import re
import resource
import shutil
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import plait
from plait import elf, gpu, mpi_programs, run, same_bits, settings
from plait.bench import nccl
from plait.commands import between
from plait.commands.console import JsonOption, machine, out, table
from plait.commands.run import program

DRIVER = "libcuda.so.1"
NCCL_CONF = Path("/etc/nccl.conf")
SMI_S = 30.0  # nvidia-smi blocks for ever on a hanging driver
VARIABLES = "PLAIT_* variables"  # name of the check


@dataclass(frozen=True)
class Check:
    """One finding. state: ok, missing (plait works without) or broken (must be fixed)."""

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
        topology = machine()
    except plait.Error as error:
        advice = "see PLAIT_TOPOLOGY and PLAIT_WITHOUT; else report this, and pass --topology"
        return Check("topology", "broken", str(error), advice)
    devices = len(topology.rank_devices())
    return Check("topology", "ok", f"{topology.name}: {devices} rank devices")


def _variables() -> Check:
    """Reads the variables as a communicator of a single rank does, and again without each variable
    that is wrong, to find all. Topology and masks are checked by _topology()."""
    what, wrong, hidden = VARIABLES, list[str](), dict[str, str]()
    try:
        while text := _first_wrong():
            wrong.append(text)
            named = re.search(r"PLAIT_\w+", text)
            if not named or named[0] not in os.environ:
                break
            hidden[named[0]] = os.environ.pop(named[0])
    finally:
        os.environ.update(hidden)
    if wrong:
        them = "it" if len(wrong) == 1 else "them"
        advice = f"unset {them} or correct {them}, then run this again"
        return Check(what, "broken", "; ".join(wrong), advice)
    given = [f"{name}={value}" for name, value in sorted(os.environ.items()) if value]
    return Check(what, "ok", ", ".join(one for one in given if one.startswith("PLAIT_")) or "none")


def _first_wrong() -> str:
    """Returns the error of the first variable that is wrong; empty if none is."""
    try:
        settings.check()
        settings.check_algo()
        plait.Communicator(0, 1, topology="local-cpu", masks=["relay:cpu0"])
    except plait.Error as error:
        return str(error)
    return ""


def _memory() -> Check:
    what, call = "shared memory", "memfd_create"
    try:
        fd = os.memfd_create("plait-doctor")
        try:
            call = "fallocate"
            os.posix_fallocate(fd, 0, _ARENA)
        finally:
            os.close(fd)
    except OSError as error:
        denied = error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS)
        advice = _PROFILE.format(call) if denied else "raise the memory limit of this process"
        if error.errno == errno.EFBIG:
            advice = "raise the limit of the size of files: ulimit -f unlimited"
        return Check(what, "broken", f"{call}: {error.strerror}", advice)
    return Check(what, "ok", "64 MiB of memfd allocated and freed")


def _runtime_folder() -> Check:
    """Checks the rendezvous folder of new communicators."""
    what = "rendezvous folder"
    chosen, why_not_runtime = plait._core.chosen_rendezvous_folder()
    folder = Path(chosen)
    found = f"{folder}, since {why_not_runtime}" if why_not_runtime else str(folder)
    advice = (
        "XDG_RUNTIME_DIR=/run/user/UID is usual; all ranks need the same" if why_not_runtime else ""
    )
    if not folder.exists():
        made_in = next(parent for parent in folder.parents if parent.exists())
        if os.access(made_in, os.W_OK | os.X_OK):
            return Check(what, "ok", f"{found} (made when needed)", advice)
        advice = f"let this user write {made_in}, or set XDG_RUNTIME_DIR to a folder of its own"
        return Check(what, "broken", f"{found}: {made_in} cannot be written", advice)
    facts = folder.lstat()
    private = facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) & 0o077 == 0
    if stat.S_ISDIR(facts.st_mode) and private:
        return Check(what, "ok", found, advice)
    advice = f"make {folder} a folder of yours with mode 0700, or set XDG_RUNTIME_DIR to one"
    return Check(what, "broken", f"{folder} is not private to this user", advice)


_PROFILE = "let the container's seccomp profile allow {} (docs/containers.md)"


def _pidfd() -> Check:
    """Checks pidfd_open, by which a rank notices at once that a peer has ended."""
    what = "pidfd_open"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        advice = f"{_PROFILE.format(what)}; it wants Linux 5.4 or later"
        return Check(what, "broken", f"{error.strerror}: no communicator can be made", advice)
    return Check(what, "ok", "allowed")


def _vm_read() -> Check:
    """Checks process_vm_readv, for rendezvous of the torch backend and checks of outputs."""
    what = "process_vm_readv"
    byte = ctypes.create_string_buffer(b"p")
    piece = (ctypes.c_void_p * 2)(ctypes.addressof(byte), 1)  # struct iovec
    libc = ctypes.CDLL(None, use_errno=True)
    got = libc.process_vm_readv(os.getpid(), piece, 1, piece, 1, ctypes.c_ulong(0))
    if got == 1:
        return Check(what, "ok", "allowed")
    found = f"{os.strerror(ctypes.get_errno())}: large messages under torch go through sockets"
    return Check(what, "missing", found, _PROFILE.format(what))


_ARENA = 64 << 20  # bytes


def _limits() -> Check:
    """Checks the resource limits that a job on one host reaches first."""
    what = "limits"
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if size != resource.RLIM_INFINITY and size < _ARENA:
        found = f"files of at most {size} bytes (RLIMIT_FSIZE), and shared memory is a file"
        return Check(what, "broken", found, "ulimit -f unlimited")
    if files != resource.RLIM_INFINITY and files < 256:
        return Check(what, "broken", f"{files} open files (RLIMIT_NOFILE)", "ulimit -n 1024")
    return Check(what, "ok", f"files of any size needed here, {files} open ones")


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
    """Compares the driver's GPUs with the GPUs that nvidia-smi lists."""
    count, (listed, said) = gpu.count(), _listed_by_smi()
    if count == 0:
        advice = "CPU ranks work; GPU ranks need a driver and GPUs it may use"
        return Check("GPUs", "missing", f"{gpu.why_none()}; {said}", advice)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    advice = f"CUDA_VISIBLE_DEVICES={hidden} hides some" if hidden and listed > count else ""
    return Check("GPUs", "ok", f"{count} seen by the driver; {said}", advice)


def _direct_access() -> Check:
    """Says which way calls between this machine's GPUs go."""
    what, setting = "direct access", os.environ.get("PLAIT_THROUGH_HOST", "auto") or "auto"
    if gpu.count() < 2:
        return Check(what, "ok", "not needed: fewer than two GPUs")
    advice = "docs/pcie.md says what is served there"
    if setting == "1":
        found = "not used: PLAIT_THROUGH_HOST=1 sends calls through host memory"
        return Check(what, "ok", found, "unset it: it is for tests and measurements")
    why = gpu.why_no_direct_access()
    if not why:
        return Check(what, "ok", "granted between all GPUs; communicators check the paths")
    if setting == "0":
        found = f"{why}: ranks on them get an error, or stay on NCCL"
        return Check(what, "missing", found, "unset PLAIT_THROUGH_HOST")
    return Check(what, "missing", f"{why}: calls go through host memory", advice)


def _listed_by_smi() -> tuple[int, str]:
    """Returns the number of GPUs that nvidia-smi lists, and a sentence."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return 0, "no nvidia-smi"
    try:
        done = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=SMI_S)
    except subprocess.TimeoutExpired:
        return 0, f"nvidia-smi did not answer in {SMI_S:g} s: the driver may hang"
    except OSError as error:
        return 0, f"nvidia-smi: {error.strerror}"
    count = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    failed = f"nvidia-smi: {(done.stderr or done.stdout).strip()}"
    return count, f"nvidia-smi lists {count}" if count else failed


def _device_code() -> Check:
    """Checks for device code in the drop-in (the same code as in the library)."""
    if run.has_kernels(run.drop_in_folder() / "libplait_nccl.so"):
        return Check("device code", "ok", "built in")
    advice = "for GPU ranks install plait again with nvcc on PATH (docs/nccl.md)"
    return Check("device code", "missing", "built without nvcc: no kernels for GPUs", advice)


def _nccl() -> Check:
    """Finds NCCL as --against does, and as `plait run` does if that differs."""
    try:
        path = nccl.library_path()
    except plait.FileError as error:
        return Check("NCCL", "broken", str(error), "correct PLAIT_NCCL_LIB or unset it")
    version, for_run = run.nccl_version(Path(path)), run.find_nccl()
    apart = for_run is not None and for_run.name != path and str(for_run) != path
    other = f"; `plait run` finds {for_run}" if apart else ""
    if version == 0:
        advice = "only needed for `plait run` and --against nccl; PLAIT_NCCL_LIB names one"
        return Check("NCCL", "missing", f"{path} cannot be loaded{other}", advice)
    said = f"{nccl.version_text(version)} at {path}{other}"
    if _library(DRIVER, "", "").state != "ok":
        advice = f"without {DRIVER} each call of NCCL fails with ncclUnhandledCudaError"
        return Check("NCCL", "missing", said, advice)
    return Check("NCCL", "ok", said)


def _nccl_files() -> list[Path]:
    """Returns NCCL's configuration files, highest precedence first."""
    own = os.environ.get("NCCL_CONF_FILE")
    return [Path(own) if own else Path.home() / ".nccl.conf", NCCL_CONF]


def _nccl_settings() -> Check:
    """Lists NCCL_* of the environment and of files, and the value in effect."""
    given = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    named = given.pop("NCCL_CONF_FILE", "")
    from_where = dict.fromkeys(given, "environment")
    lost = []
    for file in _nccl_files():
        try:
            lines = file.read_text().splitlines()
        except OSError as error:
            if named == str(file):
                advice = "correct NCCL_CONF_FILE or unset it: NCCL reads none of it"
                return Check("NCCL settings", "broken", f"{file}: {error.strerror}", advice)
            continue
        for line in lines:
            name, equals, value = line.partition("=")
            if not equals or line.startswith("#"):
                continue
            if name in given:
                lost.append(f"{name} of {file} (that of {from_where[name]} counts)")
            else:
                given[name], from_where[name] = value, str(file)
    found = [f"{name}={value} ({from_where[name]})" for name, value in sorted(given.items())]
    advice = f"no effect: {', '.join(lost)}" if lost else ""
    return Check("NCCL settings", "ok", ", ".join(found) or "none", advice)


def _tuning() -> Check:
    """Checks the tuning tables that new communicators and the drop-in read."""
    what, named = "tuning table", os.environ.get("PLAIT_TUNING", "")
    if named == "none":
        return Check(what, "ok", "none, as PLAIT_TUNING says")
    try:
        files = [named] if named else _existing(machine().fingerprint(), ".json")
        marks = [] if named else _failed(_existing(machine().fingerprint(), ".json.measuring"))
    except plait.Error:
        return Check(what, "missing", "the machine is not known", "see topology")
    if marks:
        advice = f"remove {marks[0][0]} to measure at the next start, or run plait tune"
        return Check(what, "broken", f"measuring did not end well: {marks[0][1]}", advice)
    read, unread = (files, []) if named else _read_and_unread(files)
    if not read:
        wanted = gpu.count() > 1
        by_itself = "the first start measures one, plait tune measures more"
        by_hand = "plait tune measures one, as does a first start without PLAIT_AUTOTUNE=0"
        advice = by_itself if plait._core.autotunes() else by_hand
        advice = advice if wanted else ""
        found = "; ".join(["none: built-in choices", *unread])
        return Check(what, "missing" if wanted or unread else "ok", found, advice)
    try:
        for file in read:
            plait._core.read_tuning(file)
    except (OSError, ValueError, plait.Error) as error:
        return Check(what, "broken", f"{file}: {error}", "correct or remove it; plait tune")
    advice = "remove what is not read, or run plait tune" if unread else ""
    return Check(what, "ok", "; ".join([", ".join(read), *unread]), advice)


def _read_and_unread(files: list[str]) -> tuple[list[str], list[str]]:
    """Returns the files that some communicator reads, and text on each of the others: tables of
    other drivers, and names that no version of today gives."""
    (driver,) = re.findall(r"-cuda(\d+)-2\.json$", plait._core.tuning_file("any", 2))
    read, unread = [], []
    for file in files:
        named = re.search(r"-cuda(\d+)(-nccl[\d.]+)?-\d+\.json$", file)
        if named is None:
            unread.append(f"not read: {file}, whose name has no CUDA driver, as before 0.2")
        elif named[1] != driver:
            unread.append(f"not read: {file} of CUDA driver {named[1]}, here it is {driver}")
        else:
            read.append(file)
    return read, unread


def _existing(fingerprint: str, suffix: str) -> list[str]:
    """Returns this machine's files of tables, of any number of ranks and version of NCCL."""
    one = plait._core.tuning_file(fingerprint, 2)
    if not one:  # no home folder
        return []
    return sorted(str(file) for file in Path(one).parent.glob(f"tuning-{fingerprint}*{suffix}"))


def _failed(marks: list[str]) -> list[tuple[str, str]]:
    """Returns marks of measurements that did not end, with their text: no process holds them."""
    found = []
    for mark in marks:
        with suppress(OSError), open(mark) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append((mark, file.read().strip()))
    return [(mark, text) for mark, text in found if text]


def _nics() -> Check:
    found = between.nics()
    advice = "messages between nodes go by TCP; in a container show it /sys and /dev/infiniband"
    if not found:
        return Check("NICs", "missing", "no InfiniBand or RoCE seen", advice)
    return Check("NICs", "ok", "; ".join(found))


def examine_nodes() -> list[Check]:
    """Checks the transport between the launcher's ranks. Collective."""
    try:
        comm = between.join()
        nodes = between.nodes_of(comm)
        if not comm.transport:
            return [Check("nodes", "ok", f"{comm.ranks} ranks on one node")]
        said = between.measured(comm, nodes)
    except ImportError as error:
        advice = "pip install mpi4py and an MPI, or torch (docs/nodes.md)"
        return [Check("between nodes", "missing", f"{error}", advice)]
    except plait.Error as error:
        return [Check("between nodes", "broken", str(error), "docs/nodes.md")]
    return [
        Check("nodes", "ok", between.shape_of(nodes)),
        Check("between nodes", "ok", f"{comm.transport}: {said}"),
    ]


def examine() -> list[Check]:
    """Returns all checks, in reading order."""
    return [
        _processor(),
        _memory(),
        _pidfd(),
        _vm_read(),
        _limits(),
        _runtime_folder(),
        _variables(),
        _topology(),
        _gpus(),
        _direct_access(),
        _library(DRIVER, "CUDA driver", "install the NVIDIA driver for GPU ranks"),
        _library("libnvidia-ml.so.1", "NVML", "comes with the NVIDIA driver"),
        _device_code(),
        _tuning(),
        _nccl(),
        _nccl_settings(),
        _launcher("torchrun"),
        _launcher("mpirun"),
        _nics(),
        _python_package("matplotlib", "for --plot"),
    ]


def examine_command(command: Sequence[str]) -> list[Check]:
    """Checks whether plait can serve a command's NCCL or MPI calls (`plait doctor -- cmd`)."""
    program = shutil.which(command[0]) if command else None
    if program is None:
        return [Check("program", "broken", f"no {command[0]} on PATH", "check the spelling")]
    via, why = run.entry_point_for(command)
    checks = [
        Check("program", "ok", program),
        Check("entry point", "ok", f"{via}: {why}", f"plait run --via {via} -- ..."),
    ]
    checks += _modules(command)
    if via == "mpi":
        return [*checks, *_under_mpi()]
    program_known = same_bits.program_of(command)
    for said in program_known.said:
        state = "missing" if program_known.advice else "ok"
        checks.append(Check("plait run --bitwise", state, said, program_known.advice))
    library = run.drop_in_folder() / "libplait_nccl.so"
    state, advice = "ok", ""
    if not library.exists():
        state, advice = "missing", "install plait with its drop-ins: pip install ."
    elif not run.has_kernels(library):
        state, advice = "missing", "built without device code: install again with nvcc on PATH"
    checks.append(Check("drop-in", state, str(library), advice))
    if reason := gpu.why_none():
        advice = "the program would run without plait"
        checks.append(Check("GPUs", "missing", reason, advice))
    nccl = run.find_nccl(command)
    if nccl is None:
        advice = "programs with an NCCL of their own are served too"
        return [*checks, Check("NCCL", "missing", f"no {run.NAME} found", advice)]
    version = run.nccl_version(nccl)
    major = version // 10000 if version >= 10000 else version // 1000
    advice = "" if major == 2 else "plait knows NCCL 2: all calls would stay on NCCL"
    checks.append(Check("NCCL", "ok" if major == 2 else "missing", f"{version} at {nccl}", advice))
    forwarded = run.drop_in_folder() / "nccl" / run.NAME
    if forwarded.exists():
        absent = sorted(_public(nccl) - _public(forwarded))
        said = f"all {len(_public(nccl))} functions" if not absent else f"lacks {', '.join(absent)}"
        state = "ok" if not absent else "missing"
        checks.append(Check("entry point library", state, said, "" if not absent else "use audit"))
    return checks


# Exits with 1 if Python finds no module of the name. Further arguments are folders of scripts.
_FINDS = """import importlib.util, sys
sys.path += sys.argv[2:]
sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"""


def _modules(command: Sequence[str]) -> list[Check]:
    """Checks that the command's Python finds the modules by which the entry point is chosen."""
    python = run.interpreter_of(command)
    if python is None:
        return []
    folders = [str(Path(word).absolute().parent) for word in command if word.endswith(".py")]
    checks = []
    for name in sorted(run.imported(command) & {*run.LINKS, *run.OPENS_BY_HANDLE}):
        asked = [str(python), "-c", _FINDS, name, *folders]
        try:
            status = subprocess.run(asked, capture_output=True, timeout=SMI_S).returncode
        except (OSError, subprocess.TimeoutExpired):
            continue
        if status == 1:
            found = f"the program imports {name}, and {python} cannot import it"
            checks.append(Check(name, "missing", found, f"{python} -m pip install {name}"))
    return checks


def _under_mpi() -> list[Check]:
    """Checks the drop-in under MPI and PLAIT_MPI_HOST."""
    library = run.drop_in_folder() / mpi_programs.LIBRARY
    there = library.exists()
    advice = "" if there else "install plait with its drop-ins: pip install ."
    is_on = os.environ.get("PLAIT_MPI_HOST") == "1"
    # Looks for device nodes, as the drop-in does, without loading a driver.
    has_gpus = any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg"))
    alone = (
        "collectives on device memory alone are served" if has_gpus else "all calls are forwarded"
    )
    return [
        Check("drop-in", "ok" if there else "missing", str(library), advice),
        Check(
            "host memory",
            "ok" if is_on else "missing",
            f"PLAIT_MPI_HOST is {'1' if is_on else 'not 1'}",
            "" if is_on else f"{alone}; PLAIT_MPI_HOST=1 serves those on host memory (docs/mpi.md)",
        ),
    ]


def _public(library: Path) -> set[str]:
    return {name for name in elf.exported(library) if re.match(r"p?nccl[A-Z]", name)}


def doctor(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="A program: check how `plait run` would run it.", callback=program),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is there, what is missing, and what to do."""
    checks = examine_command(command) if command else examine()
    try:
        is_launched = not command and between.is_launched()
        is_first = between.is_first()
    except plait.Error as error:
        is_launched, is_first = False, True
        if not any(check.what == VARIABLES and check.state == "broken" for check in checks):
            checks.append(Check("launcher", "broken", str(error), "docs/start.md"))
    if is_launched:
        checks += examine_nodes()
        if not is_first:
            return
    if as_json:
        out.print(json.dumps([vars(check) for check in checks], indent=1), markup=False)
    else:
        shown = table("what", "state", "found", "what to do")
        for check in checks:
            shown.add_row(check.what, check.state, check.found, check.advice)
        out.print(shown)
    if any(check.state == "broken" for check in checks):
        raise typer.Exit(1)
