"""A rank for tests of launchers: joins, sums, and writes the result to a file.

launched_rank.py FOLDER ADDEND: the job's ranks sum rank + ADDEND.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import plait

folder, addend = Path(sys.argv[1]), float(sys.argv[2])
comm = plait.init(arrive_s=60.0)
total = comm.all_reduce(np.full(1000, comm.rank + addend, np.float32))
comm.barrier()
found = {"rank": comm.rank, "ranks": comm.ranks, "total": sorted({float(x) for x in total})}
(folder / f"{comm.rank}.json").write_text(json.dumps(found))
