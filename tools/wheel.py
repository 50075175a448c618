"""Builds a wheel of this checkout, checks it, and tags it for a package index.

    python tools/wheel.py FOLDER                  # writes the wheel there
    python tools/wheel.py FOLDER --archs 90-real  # with device code for one GPU alone

Patterns name all files that the wheel may hold. The libraries need no C or C++ library newer than
the tag, and the wheel stays under 12 MB. Then twine, check-wheel-contents and auditwheel check the
wheel.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import plait_backend  # noqa: E402

SPEC = importlib.util.spec_from_file_location("elf", ROOT / "python" / "plait" / "elf.py")
assert SPEC is not None and SPEC.loader is not None
elf = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(elf)

TAG = "manylinux_2_34_x86_64"
MOST_BYTES = 12_000_000
# The tag of PEP 600 names the C library; systems with it have the C++ library of GCC 11 or newer.
MOST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)}
MAY_NEED = {
    *("libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libgcc_s.so.1", "libstdc++.so.6"),
    *("libplait.so.0", "libplait_nccl.so"),
}
HOLDS = (
    "plait/*.py",
    "plait_torch/*.py",
    "plait_torch/py.typed",
    "plait/py.typed",
    "plait/_core.*.so",
    "plait/_core.pyi",
    "plait/libplait.so",
    "plait/libplait.so.0",
    "plait/share/cmake/plait/plaitConfig*.cmake",
    "plait/share/pkgconfig/plait.pc",
    "plait/libplait_kernels.so",
    "plait/libplait_nccl.so",
    "plait/libplait_audit.so",
    "plait/libplait_mpi.so",
    "plait/libplait_mark.so",
    "plait/nccl/libnccl.so.2",
    "plait/include/plait/*",
    "plait/machines/gpu_models.json",
    "plait/evidence/beside_nccl.csv",
    "plait-*.dist-info/*",
)


# A single wheel for every Python: nanobind's split mode, with a separate package for the other
# half.
FOR_ALL_PYTHONS = ("-Cwheel.py-api=cp310", "-Ccmake.define.PLAIT_ABI3=ON")
SMALL = ("-Ccmake.define.PLAIT_SMALL=ON",)


def needing_backend(wheel: Path) -> Path:
    """Adds the requirement of nanobind's backend, missing in other builds of plait."""
    tool = [sys.executable, "-m", "wheel"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*tool, "unpack", "-d", folder, str(wheel)], check=True)
        (unpacked,) = Path(folder).iterdir()
        (metadata,) = unpacked.glob("*.dist-info/METADATA")
        head, gap, text = metadata.read_text().partition("\n\n")
        metadata.write_text(f"{head}\nRequires-Dist: {plait_backend.SPLIT_MODULE}{gap}{text}")
        subprocess.run([*tool, "pack", "-d", str(wheel.parent), str(unpacked)], check=True)
    return wheel


def number_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def too_new(library: Path) -> list[str]:
    """Returns the symbol versions of a shared object that systems of the tag may lack."""
    found = []
    for name in elf.needed(library)[0]:
        if name not in MAY_NEED:
            found.append(f"{library.name} needs {name}")
    for version in elf.versions_needed(library):
        match = re.fullmatch(r"([A-Z]+)_([0-9.]+)", version)
        if match is None or number_of(match.group(2)) > MOST.get(match.group(1), ()):
            found.append(f"{library.name} asks for {version}")
    return found


def unexpected(names: list[str]) -> list[str]:
    """Returns files that no pattern allows, and patterns without a file."""
    strange = [name for name in names if not any(fnmatch(name, one) for one in HOLDS)]
    absent = [one for one in HOLDS if not any(fnmatch(name, one) for name in names)]
    return [f"{name}: not expected" for name in strange] + [f"{one}: none" for one in absent]


def wrong_with(folder: Path, names: list[str]) -> list[str]:
    """Returns the faults of an unpacked or installed wheel."""
    libraries = [folder / name for name in names if ".so" in Path(name).name]
    libraries = [one for one in libraries if elf.is_elf(one)]  # libplait.so is a linker script
    return unexpected(names) + [line for one in libraries for line in too_new(one)]


def wrong_with_wheel(wheel: Path) -> list[str]:
    found = []
    if wheel.stat().st_size > MOST_BYTES:
        found.append(f"{wheel.stat().st_size} bytes, at most {MOST_BYTES}")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
        return found + wrong_with(Path(folder), packed.namelist())


def newest(folder: Path) -> Path:
    return max(folder.glob("plait-*.whl"), key=lambda one: one.stat().st_mtime)


def built(folder: Path, archs: str) -> Path:
    """Builds a wheel in the folder, for all architectures if none is named."""
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    only = [f"-Ccmake.define.PLAIT_CUDA_ARCHS={archs}"] if archs else []
    subprocess.run([*pip, *FOR_ALL_PYTHONS, *SMALL, *only], check=True)
    return needing_backend(newest(folder))


def tagged(wheel: Path) -> Path:
    tag = [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", TAG, str(wheel)]
    subprocess.run(tag, check=True)
    return newest(wheel.parent)


def others_find(wheel: Path) -> list[str]:
    """Returns the faults that the tools of package indexes find."""
    bin_folder = Path(sys.executable).parent
    said = []
    for command in (
        ["twine", "check", "--strict"],
        ["check-wheel-contents", "--config", str(ROOT / "pyproject.toml")],
    ):
        tool = [str(bin_folder / command[0]), *command[1:], str(wheel)]
        done = subprocess.run(tool, capture_output=True, text=True)
        if done.returncode != 0:
            said.append(f"{command[0]}: {(done.stdout + done.stderr).strip()}")
    audit = [str(bin_folder / "auditwheel"), "show", str(wheel)]
    shown = subprocess.run(audit, capture_output=True, text=True)
    tags = [number_of(".".join(one)) for one in re.findall(r"manylinux_(\d+)_(\d+)", shown.stdout)]
    if shown.returncode != 0 or not tags or min(tags) > MOST["GLIBC"]:
        said.append(f"auditwheel: wanted {TAG} or older: {(shown.stdout + shown.stderr).strip()}")
    return said


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--archs", default="", help="as PLAIT_CUDA_ARCHS; default: all")
    given = parser.parse_args()
    wheel = built(given.folder, given.archs)
    found = wrong_with_wheel(wheel)
    if not found:
        wheel = tagged(wheel)
        found = others_find(wheel)
    for line in found:
        print(f"wheel: {line}", file=sys.stderr)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
