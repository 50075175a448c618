"""Installs NVIDIA's compiler wheels into this environment if nvcc is missing.

`make install` calls this program. The development build runs without build isolation, hence this
tool installs the requirements of plait_backend (not with PLAIT_CUDA=0). A machine that cannot fetch
the wheels builds without kernels and prints so.
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
