"""Collects in one folder the files that a run needs on a machine with GPUs: the package, its
libraries, the drop-ins of `plait run` and the programs, stripped, and the commit.

BUILD: configured with PLAIT_PYTHON=ON for the machine's own Python and
CMAKE_BUILD_RPATH_USE_ORIGIN=ON, after `ninja _core plait_nccl plait_audit plait_mpi plait_forward
test_gpu test_gpu_c_api bench_links bench_gpu_nodes bench_gpu_first_start`. --site: a folder of
packages that the machine lacks (pip install --target); bench needs typer there.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

from bench.lib.rows import ROOT, checkout_commit

DROP_INS = tuple(f"shims/libplait_{name}.so" for name in ("nccl", "audit", "mpi", "mark"))
STAND_IN = "shims/nccl/libnccl.so.2"
LIBRARIES = ("libplait.so.0", "libplait_kernels.so")
PROGRAMS = ("bench_links", "bench_gpu_nodes", "bench_gpu_first_start", "test_gpu", "test_gpu_c_api")
AFTERWARDS = """there, in a checkout:
  PYTHONPATH={run} python3 -m bench run --gpus 8 --build {run} --out OUT
  PYTHONPATH={run} python3 -m bench evidence all --gpus 8 --build {run} --out OUT
  PYTHONPATH={run} python3 -m bench drop-in STEP... --gpus 8 --drop-in \
{run}/plait/libplait_nccl.so --out OUT"""


def run(given: SimpleNamespace) -> None:
    build, there = given.build, given.run
    modules = sorted(build.glob("_core*.so"))
    wanted = (*LIBRARIES, *DROP_INS, STAND_IN, *PROGRAMS)
    missing = [name for name in wanted if not (build / name).exists()] + ["_core"] * (not modules)
    if missing:
        raise SystemExit(
            f"wanted in {build} what a run carries, found no {' '.join(missing)}: build it first "
            "(see python -m bench stage --help)"
        )
    said = subprocess.run(["readelf", "-d", *modules], capture_output=True, text=True, check=True)
    if not any("PATH" in line and "$ORIGIN" in line for line in said.stdout.splitlines()):
        raise SystemExit(
            "wanted a module that finds its library in its own folder: configure with "
            "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON"
        )
    shutil.rmtree(there, ignore_errors=True)
    there.mkdir(parents=True)
    leave = shutil.ignore_patterns("__pycache__")
    if given.site:
        shutil.copytree(given.site, there, ignore=leave, dirs_exist_ok=True)
    package = there / "plait"  # `plait run` looks for drop-ins there
    shutil.copytree(ROOT / "python" / "plait", package, ignore=leave)
    shutil.copy(ROOT / "gpus" / "models.json", package / "machines" / "gpu_models.json")
    (package / "nccl").mkdir()
    copied = [(one, package) for one in modules]
    copied += [(build / name, package) for name in (*LIBRARIES, *DROP_INS)]
    # Programs without device code, as test_gpu_c_api, load the kernels from their own folder.
    copied += [(build / name, there) for name in (*PROGRAMS, LIBRARIES[1])]
    for source, folder in (*copied, (build / STAND_IN, package / "nccl")):
        made = Path(shutil.copy(source, folder))
        subprocess.run(["strip", "--strip-unneeded", made], check=True)
    (there / "commit").write_text(checkout_commit() + "\n")
    size = sum(file.stat().st_size for file in there.rglob("*") if file.is_file())
    print(f"{there}: {size >> 20} MB of 64 at most; {AFTERWARDS.format(run=there)}")
