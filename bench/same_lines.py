"""Checks that two variants in a file of JSON lines have the same hashes (bench/same_bits.sh).

python bench/same_lines.py FILE ONE OTHER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def hashes(file: Path, variant: str) -> list[str]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [row["hash"] for row in rows if row["variant"] == variant]


def main() -> int:
    file, one, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    first, second = hashes(file, one), hashes(file, other)
    same = bool(first) and first == second
    print(f"## {one} and {other}: {'the same bits' if same else f'{first} and {second}'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
