"""Installs NVIDIA's compiler wheels into this environment where no nvcc is found.

The development build runs without build isolation, so what plait_backend asks for in an isolated
build is installed here instead (not with PLAIT_CUDA=0). A machine that cannot fetch them builds
without kernels and says so.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import plait_backend


def main() -> int:
    wanted = plait_backend._with_compiler([])
    if not wanted:
        return 0
    done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", *wanted])
    if done.returncode != 0:
        print("no nvcc here and none could be fetched: building without kernels", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
