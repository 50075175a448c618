"""Tests communicators by unique id on a single host: without a launcher, or of some of the
launcher's ranks.

tests/nodes tests several nodes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import plait

LAUNCHERS = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
RANK = """
import os, sys, numpy as np, plait
rank, ranks, given = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for turn in range(2):
    comm = plait.init(unique_id=given.encode() if rank % 2 else given, rank=rank, ranks=ranks,
                      arrive_s=float(os.environ.get("WAIT", "30")))
    print(comm.all_reduce(np.array([10.0 ** rank + turn])))
"""


def run(rank: int, ranks: int, unique_id: str, **env: str) -> subprocess.CompletedProcess[str]:
    alone = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    return subprocess.run(
        [sys.executable, "-c", RANK, str(rank), str(ranks), unique_id],
        env={**alone, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def all_of(*ranks: tuple[int, int, str], **env: str) -> list[subprocess.CompletedProcess[str]]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda one: run(*one, **env), ranks))


def hash_of(words: str) -> str:
    """Returns the FNV-1a hash, as the core does, to make an id of another host."""
    value = 14695981039346656037
    for byte in words.encode():
        value = (value ^ byte) * 1099511628211 % (1 << 64)
    return f"{value:016x}"


def test_ranks_without_a_launcher_meet_and_meet_again_and_two_jobs_do_not_mix():
    one, other = plait.unique_id(), plait.unique_id()
    assert one != other
    jobs = [(rank, 3, one) for rank in range(3)] + [(rank, 2, other) for rank in range(2)]
    done = all_of(*jobs)
    assert [one.stderr for one in done] == [""] * 5
    assert [one.stdout.split() for one in done] == [["[111.]", "[114.]"]] * 3 + [
        ["[11.]", "[13.]"]
    ] * 2


def test_some_ranks_of_a_launcher_make_one_of_their_own():
    words = {"RANK": "7", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "PLAIT_RENDEZVOUS": "a-job"}
    made = plait.unique_id()
    done = all_of((0, 2, made), (1, 2, made), **words)
    assert [one.stdout.split() for one in done] == [["[11.]", "[13.]"]] * 2


@pytest.mark.parametrize("wrong", ["", b"", "plait1", 7, b"\xff\xfe", "plait1-12-34-56"])
def test_what_is_no_id_is_refused(wrong):
    with pytest.raises(plait.InvalidArgumentError, match="unique_id"):
        plait.init(unique_id=wrong, rank=0, ranks=2, arrive_s=1)


def test_an_id_that_was_cut_or_mistyped_is_refused():
    made = plait.unique_id()
    other = "0" if made[20] != "0" else "1"
    for wrong in (made[:-1], made + "0", made[:20] + other + made[21:]):
        with pytest.raises(plait.InvalidArgumentError, match="the whole text"):
            plait.init(unique_id=wrong, rank=0, ranks=2, arrive_s=1)


def test_one_of_id_and_rendezvous():
    with pytest.raises(plait.InvalidArgumentError, match="give one of them"):
        plait.init(unique_id=plait.unique_id(), rank=0, ranks=1, rendezvous="unix:/tmp/x/y")


def test_an_id_of_another_host_says_what_to_install():
    kind, word, _, _ = plait.unique_id().split("-")
    elsewhere = f"{kind}-{word}-{'0' * 16}"
    with pytest.raises(plait.UnsupportedError, match=r"another host.*pip install mpich mpi4py"):
        plait.init(unique_id=f"{elsewhere}-{hash_of(elsewhere)}", rank=1, ranks=2, arrive_s=5)


def test_two_ranks_of_one_number_and_unlike_sizes_are_errors_on_all():
    made = plait.unique_id()
    for rank, size, word in ((0, 2, "two processes joined as rank 0"), (1, 3, "ranks: rank 0")):
        done = all_of((0, 2, made), (rank, size, made), WAIT="20")
        assert all("MismatchError" in one.stderr and word in one.stderr for one in done)


def test_a_communicator_of_one():
    comm = plait.init(unique_id=plait.unique_id(), rank=0, ranks=1)
    assert comm.all_reduce(np.ones(2)).tolist() == [1.0, 1.0]
