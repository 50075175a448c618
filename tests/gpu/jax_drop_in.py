"""Checks JAX's collectives over the drop-in, run by `plait run --via ...`.

A single process for two GPUs; with --processes, a process each. Prints a JSON line for each. Exit
status 1 = a result was wrong. JAX finds NCCL by handle, so LD_PRELOAD alone does not reach it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.lib.drop_in import served

COUNTS = (1024, 70_000, 3_000_000)  # floats of a rank, divisible by two for scatters
ROUNDS = 3


def values(ranks: int, count: int) -> np.ndarray[Any, Any]:
    """Integers below 13, a row per rank."""
    places = np.arange(count)[None, :] * 7 + np.arange(ranks)[:, None] * 3 + 1
    return (places % 13).astype(np.float32)


def programs(ranks: int) -> dict[str, tuple[Any, Any]]:
    """By name: the call of each rank on the rank's row, and the expected rows of all ranks."""
    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    blocks = (ranks, ranks, -1)  # rows as (rank, block, element)
    return {
        "psum": (lambda row: jax.lax.psum(row, "ranks"), lambda all_: [all_.sum(0)] * ranks),
        "all_gather": (
            lambda row: jax.lax.all_gather(row, "ranks", axis=0, tiled=True),
            lambda all_: [all_.reshape(-1)] * ranks,
        ),
        "psum_scatter": (
            lambda row: jax.lax.psum_scatter(row, "ranks", tiled=True),
            lambda all_: list(all_.sum(0).reshape(ranks, -1)),
        ),
        "all_to_all": (
            lambda row: jax.lax.all_to_all(row, "ranks", 0, 0, tiled=True),
            lambda all_: list(all_.reshape(blocks).transpose(1, 0, 2).reshape(ranks, -1)),
        ),
        "ppermute": (
            lambda row: jax.lax.ppermute(row, "ranks", ring),
            lambda all_: list(np.roll(all_, 1, axis=0)),
        ),
    }


def check(mesh: Mesh, count: int) -> list[str]:
    """Names of collectives with a wrong result on a GPU of this process."""
    ranks = mesh.devices.size
    rows = values(ranks, count)
    by_rank = NamedSharding(mesh, PartitionSpec("ranks"))
    array = jax.make_array_from_callback((ranks * count,), by_rank, rows.reshape(-1).__getitem__)
    wrong = []
    for name, (program, expected) in programs(ranks).items():
        spec = PartitionSpec("ranks")
        run = jax.jit(jax.shard_map(program, mesh=mesh, in_specs=spec, out_specs=spec))
        wanted = expected(rows)
        for _ in range(ROUNDS):
            for shard in run(array).addressable_shards:
                rank = list(mesh.devices).index(shard.device)
                if not np.array_equal(np.asarray(shard.data), wanted[rank]):
                    wrong.append(f"{name} of {count} on rank {rank}")
    return wrong


def check_all(what: str) -> bool:
    """Checks every collective and size over all GPUs of the job."""
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    wrong = [one for count in COUNTS for one in check(mesh, count)]
    jnp.zeros(1).block_until_ready()
    calls = served()
    good = not wrong and (calls == [] or calls[0] > 0)  # no drop-in, or a drop-in that serves calls
    row = {"check": what, "ok": good, "gpus": mesh.devices.size, "served": calls}
    print(json.dumps(row | ({"wrong": wrong[:8]} if wrong else {})), flush=True)
    return good


def as_process(rank: int, ranks: int, port: int) -> bool:
    """This process's part of a job with a process per GPU."""
    jax.distributed.initialize(f"127.0.0.1:{port}", ranks, rank, local_device_ids=[rank])
    good = check_all(f"jax, a process a GPU, rank {rank}")
    jax.distributed.shutdown()
    return good


def main() -> int:
    """Returns 1 if a result was wrong or a process failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=0, help="so many, a GPU each")
    parser.add_argument("--rank", type=int, default=-1, help="of this one (set by the first)")
    parser.add_argument("--port", type=int, default=23456)
    asked = parser.parse_args()
    if asked.rank >= 0:
        return 0 if as_process(asked.rank, asked.processes, asked.port) else 1
    if asked.processes == 0:
        return 0 if check_all("jax, one process") else 1
    words = ["--processes", str(asked.processes), "--port", str(asked.port), "--rank"]
    children = [
        subprocess.Popen([sys.executable, __file__, *words, str(rank)])
        for rank in range(asked.processes)
    ]
    return int(any([child.wait() for child in children]))


if __name__ == "__main__":
    sys.exit(main())
