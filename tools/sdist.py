"""Makes the source distribution, compares it with the files of git, and unpacks it into a folder.

    python tools/sdist.py FOLDER    # FOLDER is made anew

CI builds and tests in that folder: a file missing in the distribution fails CI.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import plait_backend
import tidy

WRITTEN_BY_THE_BACKEND = {"PKG-INFO"}


def make(folder: Path) -> Path:
    """Makes the archive of this checkout in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(tidy.ROOT)  # backends look for pyproject.toml in the current folder
    try:
        return folder / plait_backend.build_sdist(str(folder))
    finally:
        os.chdir(before)


def files_in(archive: Path) -> set[str]:
    """Returns the files of an archive, by path in the checkout."""
    with tarfile.open(archive) as opened:
        names = [member.name for member in opened.getmembers() if member.isfile()]
    return {name.partition("/")[2] for name in names} - WRITTEN_BY_THE_BACKEND


def differences(archive: Path) -> list[str]:
    """Returns a line for each file that only the archive or only git has; nothing if git tracks no
    file."""
    tracked = {str(path.relative_to(tidy.ROOT)) for path in tidy.tracked()} - WRITTEN_BY_THE_BACKEND
    if not tracked:
        return []
    packed = files_in(archive)
    lacking = [f"{name}: in the checkout, not in the sdist" for name in sorted(tracked - packed)]
    return lacking + [
        f"{name}: in the sdist, not in the checkout" for name in sorted(packed - tracked)
    ]


def unpack(archive: Path, folder: Path) -> None:
    """Empties `folder`, and moves the archive's only folder into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(
        ["tar", "-xzf", archive, "--strip-components=1", "-C", folder], check=True, timeout=300
    )


def main() -> int:
    if len(sys.argv) != 2:
        print(f"wanted one folder to unpack into, found {len(sys.argv) - 1}", file=sys.stderr)
        return 2
    archive = make(tidy.ROOT / "dist")
    found = differences(archive)
    for line in found:
        print(f"sdist: {line}", file=sys.stderr)
    if not found:
        unpack(archive, Path(sys.argv[1]).resolve())
        print(f"sdist: {archive.name} unpacked in {sys.argv[1]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
