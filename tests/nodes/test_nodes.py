"""Communicators over several nodes, joined by the MPI of the process: real ranks under mpiexec.

PLAIT_NODE_SIZE splits a machine into nodes; MPICH over shared memory carries messages between them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import plait

JOB = Path(__file__).parent / "job.py"
BESIDE = Path(sys.executable).parent / "mpiexec"
MPIEXEC = str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec")

pytestmark = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
    reason="wants mpiexec and mpi4py (pip install mpich mpi4py)",
)


def run(ranks: int, node_size: int, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    settings = {"PLAIT_NODE_SIZE": str(node_size), "OMPI_MCA_rmaps_base_oversubscribe": "1", **env}
    command = [str(MPIEXEC), "-n", str(ranks), sys.executable, *words]
    return subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300
    )


def is_hydra() -> bool:
    said = subprocess.run([str(MPIEXEC), "--version"], capture_output=True, text=True).stdout
    return "HYDRA" in said


def facts(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("ranks", "node_size"), [(4, 2), (5, 3), (6, 2)])
def test_every_collective_has_the_bits_of_rank_order(ranks, node_size):
    found = facts(run(ranks, node_size, str(JOB), "collectives", PLAIT_BITWISE="1"))
    assert found["wrong"] == []
    assert found["ranks"] == ranks and found["checks"] > 200 * ranks


@pytest.mark.parametrize("strategy", ["library", "multi_node", "node_order"])
def test_each_strategy_is_right_in_place_too(strategy):
    found = facts(run(4, 2, str(JOB), "strategies", strategy))
    assert found["wrong"] == [] and found["checks"] > 4


def test_what_one_rank_gets_wrong_is_an_error_on_all_nodes():
    found = facts(run(4, 2, str(JOB), "refusals"))
    assert found["wrong"] == [] and found["checks"] == 4 * 6


@pytest.mark.parametrize(("ranks", "node_size"), [(3, 2), (5, 3)])
def test_copies_are_right_where_nodes_have_unlike_numbers_of_ranks(ranks, node_size):
    found = facts(run(ranks, node_size, str(JOB), "copies"))
    assert found["wrong"] == [] and found["checks"] == 3 * ranks**3


def test_without_mpi_the_error_says_what_to_do():
    program = "import plait\ntry:\n    plait.init()\nexcept plait.Error as e:\n    print(e)"
    done = run(2, 1, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("from mpi4py import MPI") == 2


BY_ID = """
from mpi4py import MPI
import os, plait, sys, numpy as np
os.environ.pop("MPI_LOCALNRANKS", "")  # no launcher says that all are on one host
world = MPI.COMM_WORLD
id = world.bcast(plait.unique_id() if world.rank == 0 else None)
if "other" in sys.argv and world.rank == 1:
    id = plait.unique_id()
if "broken" in sys.argv and world.rank == 1:
    id = id[:-1]
try:
    comm = plait.init(unique_id=id, rank=world.rank, ranks=world.size, arrive_s=20)
    nodes = {device.node for device in comm.topology.devices}
    sys.stdout.write(f"{comm.all_reduce(np.array([10.0 ** comm.rank]))} on {len(nodes)}\\n")
except plait.Error as error:
    sys.stdout.write(f"{type(error).__name__} {error}\\n")
"""


def test_ranks_with_an_id_find_out_how_many_nodes_they_are_on():
    for node_size, nodes in ((2, 2), (0, 1)):
        done = run(3, node_size, "-c", BY_ID)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"[111.] on {nodes}") == 3, done.stdout


@pytest.mark.parametrize(
    ("case", "error"), [("other", "MismatchError"), ("broken", "InvalidArgumentError")]
)
def test_ids_that_differ_or_are_broken_are_errors_on_all_nodes(case, error):
    done = run(3, 2, "-c", BY_ID, case)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(error) == 3 and done.stdout.count("unique_id") >= 3, done.stdout


def test_an_id_without_mpi_over_nodes_says_what_to_install():
    program = (
        "import plait\ntry:\n    plait.init(unique_id=plait.unique_id(), rank=0, ranks=2)\n"
        "except plait.Error as e:\n    print(e)"
    )
    done = run(1, 1, "-c", program)
    assert "pip install mpich mpi4py" in done.stdout and "init_process_group" in done.stdout


UNLIKE = """
from mpi4py import MPI
import plait, sys
rank, (name, value) = MPI.COMM_WORLD.rank, sys.argv[1:]
options = {name: value == "True" or value} if rank == 2 else {}
try:
    plait.init(arrive_s=20, **options)
    sys.stdout.write("no error\\n")
except plait.Error as error:
    sys.stdout.write(f"{type(error).__name__} {error}\\n")
"""


@pytest.mark.parametrize("node_size", [2, 0])
@pytest.mark.parametrize(
    ("option", "error"),
    [
        (("bitwise", "True"), "MismatchError"),
        (("sum_order", "tree"), "MismatchError"),
        (("sum_order", "none"), "InvalidArgumentError"),
    ],
)
def test_an_order_of_sums_of_one_rank_is_an_error_on_all(node_size, option, error):
    done = run(3, node_size, "-c", UNLIKE, *option)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout.count(error) == 3 and done.stdout.count("rank 2") >= 2, done.stdout


def test_nodes_compare_versions_of_plait():
    done = run(3, 2, "-c", UNLIKE, "bitwise", "True")
    assert done.stdout.count(f"(plait={plait.__version__} ") == 6, done.stdout


# MPICH gives the handle of a freed communicator to the next duplicate, which is plait's own.
TRUNCATED = """
from mpi4py import MPI
import numpy as np, os, plait, sys, time
world = MPI.COMM_WORLD
freed = world.Dup()
handle = freed.handle
freed.Free()
comm = plait.init(arrive_s=30, deadline_s=30)
private = MPI.Comm.fromhandle(handle)
if MPI.Comm.Compare(private, world) != MPI.CONGRUENT:
    sys.stdout.write("another handle\\n")
if comm.rank == 2:  # a message longer than rank 0's receive, whatever tag plait uses next
    long = np.zeros(64, np.uint8)
    sent = [private.Isend(long, dest=0, tag=tag) for tag in range(0, 32764, 2)]
    world.Send(long, dest=0)
if comm.rank == 0:
    world.Recv(np.zeros(64, np.uint8), source=2)
try:
    comm.all_reduce(np.ones(4))
except plait.Error as error:
    sys.stdout.write(f"{comm.rank} {type(error).__name__} {error}\\n")
sys.stdout.flush()
time.sleep(1)
os._exit(0)  # MPI_Finalize would wait for the messages
"""


def test_an_error_of_mpi_is_no_end_of_a_message():
    if not is_hydra():
        pytest.skip("wants MPICH's handles")
    began = time.monotonic()
    done = run(4, 2, "-c", TRUNCATED)
    assert time.monotonic() - began < 25, (done.stdout, done.stderr)
    found = {line[:1]: line for line in done.stdout.splitlines()}
    assert "PeerLostError" in found["0"] and "rank 2" in found["0"], done.stdout
    assert "MPI_Test returned" in found["0"], done.stdout


def test_doctor_says_what_is_between_nodes():
    done = run(5, 2, "-m", "plait", "doctor", "--json", COLUMNS="200")
    assert done.returncode == 0, (done.stdout, done.stderr)
    found = {check["what"]: check for check in json.loads(done.stdout)}  # rank 0's alone
    assert found["nodes"]["found"] == "3 nodes of 2, 2, 1 ranks, 1 rail"
    between = found["between nodes"]
    assert between["state"] == "ok" and "libmpi" in between["found"]
    assert "us for 8 bytes; 16 MiB at " in between["found"]
    found = {
        check["what"]: check["found"]
        for check in json.loads(run(2, 0, "-m", "plait", "doctor", "--json").stdout)
    }
    assert found["nodes"] == "2 ranks on one node" and "between nodes" not in found


@pytest.mark.parametrize(("ranks", "node_size"), [(4, 2), (5, 2), (2, 0)])
def test_bench_runs_on_the_launchers_ranks(ranks, node_size):
    words = ("-m", "plait", "bench", "all_reduce", "-b", "4", "-e", "1M", "-f", "512", "-n", "2")
    done = run(ranks, node_size, *words, COLUMNS="80")
    assert done.returncode == 0, (done.stdout, done.stderr)
    where, *_ = done.stdout.splitlines()
    places = {
        (4, 2): "2 nodes of 2, 2 ranks, 2 rails, MPI, ",
        (5, 2): "3 nodes of 2, 2, 1 ranks, 1 rail, MPI, ",
        (2, 0): "2 ranks on one node, at most",
    }
    assert f"all_reduce, {places[ranks, node_size]}" in where
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [row[0] for row in rows] == ["4", "2048", "1048576"]  # once, printed by the first rank
    assert all(row[8] == row[10] == "0" for row in rows), done.stdout
    assert "Out of bounds values : 0 OK" in done.stdout


def test_bench_says_in_json_which_nodes_and_what_is_wrong_with_an_option():
    words = ("-m", "plait", "bench", "all_gather", "-b", "1K", "-e", "1K", "--json")
    found = json.loads(run(4, 2, *words).stdout)
    assert found["config"]["ranks"] == 4
    assert found["config"]["place"].startswith("2 nodes of 2, 2 ranks, 2 rails, MPI, ")
    assert [row["wrong"] for row in found["results"]] == [0]
    own = run(2, 1, "-m", "plait", "bench", "-b", "1K", "-e", "1K", "-g", "2", "all_gather")
    assert own.returncode == 0 and own.stdout.count("2 ranks, at most") == 2, own.stdout
    refused = run(2, 1, "-m", "plait", "bench", "all_reduce", "--gpus")
    assert refused.returncode != 0 and "a launcher has started 2 here" in refused.stderr


def test_two_ranks_alone_send_to_each_other_over_nodes():
    found = facts(run(4, 2, str(JOB), "pairs"))
    assert found["wrong"] == [] and found["checks"] == 4 * (3 * 3 * 2 + 2)


def test_a_receive_without_a_send_ends_and_says_who_is_missing():
    program = (
        "from mpi4py import MPI\nimport plait, numpy as np\nc = plait.init()\n"
        "if c.rank == 0:\n    try:\n        plait.Communicator.recv(c, np.ones(3), 1)\n"
        "    except plait.Error as e:\n        print(e)\nMPI.COMM_WORLD.Barrier()\n"
        "print(c.all_reduce(np.ones(1)))"
    )
    done = run(2, 1, "-c", program, PLAIT_ARRIVE_S="3")
    assert done.returncode == 0, done.stderr
    assert "without rank 1 on host" in done.stdout and done.stdout.count("[2.]") == 2


TAGS = """
from mpi4py import MPI
import plait, sys, time, numpy as np
world, tag = MPI.COMM_WORLD, int(sys.argv[1])
got = np.zeros(5)
if world.rank == 0:
    sent = world.Isend(np.arange(5.0), 1, tag)
if world.rank == 1:
    time.sleep(0.5)  # the message is under way while rank 0 waits, and rank 0's before rank 1 looks
    sent = world.Isend(np.arange(5.0), 0, tag)
comm = plait.init(arrive_s=20)
world.Recv(got, 1 - world.rank, tag)
sent.Wait()
print(f"{comm.all_reduce(np.ones(1))} {got.tolist()}\\n", end="")  # one write: ranks share a pipe
"""


@pytest.mark.parametrize("tag", [5, 32766, 32767])
def test_messages_of_the_program_with_any_tag_are_its_own(tag):
    done = run(2, 1, "-c", TAGS, str(tag))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("[2.] [0.0, 1.0, 2.0, 3.0, 4.0]") == 2, done.stdout


LATE = """
from mpi4py import MPI
import numpy as np, os, plait, sys, time
world = MPI.COMM_WORLD
if world.rank == 2:
    [world.recv(source=peer, tag=1) for peer in (0, 1)]  # they have given up
else:
    world.sendrecv(None, 1 - world.rank, 1, source=1 - world.rank, recvtag=1)
began = time.monotonic()
try:
    plait.init(arrive_s=2 if world.rank < 2 else 60)
except plait.Error as error:
    print(type(error).__name__, round(time.monotonic() - began), error, flush=True)
if world.rank < 2:  # mpiexec ends the other ranks with the first
    world.send(None, 2, tag=1)
    time.sleep(4) if sys.argv[1] == "asleep" else world.recv(source=2, tag=1)
else:
    [world.send(None, peer, tag=1) for peer in (0, 1)]
    time.sleep(1)
if sys.argv[1] != "asleep":
    total = plait.init(arrive_s=30).all_reduce(np.ones(1))[0]
    os.write(1, f"then {total}\\n".encode())  # in one piece
    world.barrier()
os._exit(0)
"""


@pytest.mark.parametrize("others", ["asleep", "in MPI"])
def test_a_rank_that_is_missing_is_named_and_hears_of_it_when_it_comes_late(others):
    done = run(3, 1, "-c", LATE, others)
    assert done.stdout.count("there is no rank 2") == 2, (done.stdout, done.stderr)
    said = [line for line in done.stdout.splitlines() if line.startswith("DeadlineError ")]
    late = [line for line in said if "no rank 2" not in line]  # mpiexec prints additional lines
    assert len(late) == 1, done.stdout
    assert int(late[0].split()[1]) < 20, late  # of 60 s
    assert done.stdout.count("then 3.0") == (0 if others == "asleep" else 3), done.stdout
