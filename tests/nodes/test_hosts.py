"""Ranks on pretended hosts, each in separate namespaces, and errors after some hosts are lost.

A test is skipped, with the reason, if namespaces are not permitted. MPICH's launcher is told to
leave ranks alone when a rank ends (-disable-auto-cleanup).
"""

from __future__ import annotations

import csv
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_nodes import MPIEXEC, facts, is_hydra
from test_nodes import pytestmark as wants_mpi

HOSTS = Path(__file__).parent / "hosts.sh"
JOB, FAULTS = Path(__file__).parent / "job.py", Path(__file__).parent / "faults.py"
BENCH = (str(Path(__file__).parents[2] / "bench"), "nodes")

pytestmark = [wants_mpi, pytest.mark.alone]


def launch(
    folder: Path,
    hosts: int,
    ranks: int,
    words: list[str],
    meanwhile: str = "",
    rate: str = "",
    **env: str,
) -> subprocess.CompletedProcess[str]:
    """Runs mpiexec over `hosts` pretended hosts; 0 = this host as two nodes (PLAIT_NODE_SIZE).

    `meanwhile` is a shell command that runs at the same time; `rate` is a link rate like 1gbit.
    """
    if not is_hydra():
        pytest.skip("wants MPICH's mpiexec")
    command = [str(MPIEXEC), "-disable-auto-cleanup", "-n", str(ranks)]
    settings = {"PLAIT_ARRIVE_S": "60", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    if hosts == 0:
        settings["PLAIT_NODE_SIZE"] = "2"
    else:
        agent = folder / "agent"
        agent.write_text(f'#!/bin/bash\nexec {HOSTS} @ "$@"\n')
        agent.chmod(0o755)
        names = ",".join(f"ph{k}:{ranks // hosts}" for k in range(1, hosts + 1))
        how = ["-launcher", "ssh", "-launcher-exec", str(agent), "-iface", "br0", "-hosts", names]
        command[1:1] = how
    line = shlex.join([*command, sys.executable, *words])
    if hosts > 0:
        # 141: SIGPIPE, since the launcher writes to agents that have ended after all ranks.
        end = "wait $job; said=$?; test $said = 141 && said=0; exit $said"
        script = f"{line} & job=$!; {meanwhile or ':'}; {end}"
        shaped = ["-r", rate] if rate else []
        line = shlex.join([str(HOSTS), *shaped, str(hosts), "bash", "-c", script])
    done = subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, **settings, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    return done


def reports(folder: Path) -> dict[int, tuple[float, str]]:
    """Returns for each rank the seconds until the first call ended, and the text of the call."""
    found = {}
    for path in folder.iterdir():
        if path.name.isdigit():
            seconds, _, said = path.read_text().splitlines()[0].partition(" ")
            found[int(path.name)] = (float(seconds), said)
    return found


def faults(folder: Path, case: str, *guilty: int, hosts: int = 0, meanwhile: str = ""):
    words = [str(FAULTS), str(folder), case, *map(str, guilty)]
    done = launch(folder, hosts, 4, words, meanwhile)
    found = reports(folder)
    assert found, (done.stdout, done.stderr)
    return found


@pytest.mark.parametrize("hosts", [2, 4])
def test_every_collective_has_the_bits_of_rank_order_over_hosts(tmp_path, hosts):
    done = launch(tmp_path, hosts, 2 * hosts, [str(JOB), "collectives"], PLAIT_BITWISE="1")
    found = facts(done)
    assert found["wrong"] == []
    assert found["ranks"] == 2 * hosts and found["checks"] > 400 * hosts


def test_pieces_over_shaped_links_take_what_the_simulator_says(tmp_path):
    """Bounds are loose, since test machines are busy; bench nodes measures figures."""
    file = tmp_path / "rows.csv"
    words = [*BENCH, "--mib", "16", "--turns", "3", "--csv", str(file)]
    done = launch(tmp_path, 2, 4, words, rate="1gbit")
    assert done.returncode == 0, (done.stdout, done.stderr)
    with file.open() as rows:
        found = {row["way"]: row for row in csv.DictReader(rows)}
    took = {way: float(row["ms"]) for way, row in found.items()}
    in_pieces = min(took["multi_node pieces=4"], took["multi_node pieces=16"])
    assert in_pieces < 1.2 * took["multi_node pieces=1"], took
    for way, row in found.items():
        if way.startswith("multi_node"):
            assert 0.5 < took[way] / float(row["simulated_ms"]) < 3, (way, row)


@pytest.mark.parametrize("case", ["absent", "late"])
def test_a_rank_that_does_not_come_is_named(tmp_path, case):
    found = faults(tmp_path, case, 3)
    for rank in range(3):
        seconds, said = found[rank]
        assert "DeadlineError" in said and "no rank 3" in said and seconds < 4
    if case == "late":
        assert "DeadlineError" in found[3][1] and found[3][0] < 4


@pytest.mark.parametrize(
    ("case", "words"), [("refused", "on one host only"), ("other_rank", "rank 0")]
)
def test_what_one_rank_finds_before_it_meets_any_is_an_error_on_all(tmp_path, case, words):
    found = faults(tmp_path, case, 1)
    assert len(found) == 4
    for seconds, said in found.values():
        assert words in said and seconds < 10


def test_abort_ends_what_comes_from_another_node(tmp_path):
    found = faults(tmp_path, "aborted", 0)
    assert found.keys() == {0}
    assert "AbortedError" in found[0][1] and "abort() was called" in found[0][1]
    assert found[0][0] < 5


def test_abort_of_a_rank_in_no_call_is_told_to_all_nodes(tmp_path):
    found = faults(tmp_path, "abort_told", 0)
    assert found.keys() == {1, 2, 3}
    for seconds, said in found.values():
        assert "AbortedError" in said and "rank 0" in said and seconds < 5


def test_a_killed_rank_is_named_on_every_node(tmp_path):
    found = faults(tmp_path, "killed", 3, hosts=2)
    assert {0, 1} <= found.keys()  # MPICH's launcher may end the rank beside the killed rank
    for seconds, said in found.values():
        assert "rank 3 on host ph2" in said and seconds < 0.5 + 3 + 2
    for path in tmp_path.glob("left-*"):
        assert path.read_text() == "[]"


def test_a_rank_that_ends_while_a_communicator_is_made_is_named(tmp_path):
    found = faults(tmp_path, "ended_in_set_up", 3)
    assert found.keys() == {0, 1, 2}
    for seconds, said in found.values():
        assert "PeerLostError" in said and "rank 3" in said and seconds < 10


ENDS_RANK_3 = """
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void end(void) {
  const char* rank = getenv("PMI_RANK");
  if (rank != NULL && *rank == '3') _exit(0);
}
"""


def test_a_rank_that_ends_while_gpus_are_set_up_is_named(tmp_path):
    """A stand-in for the CUDA driver ends the rank that opens the driver."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("wants a C compiler")
    (tmp_path / "driver.c").write_text(ENDS_RANK_3)
    output = ["-o", str(tmp_path / "libcuda.so.1"), str(tmp_path / "driver.c")]
    subprocess.run([compiler, "-shared", "-fPIC", *output], check=True)
    words = [str(FAULTS), str(tmp_path), "made"]
    done = launch(tmp_path, 0, 4, words, LD_LIBRARY_PATH=str(tmp_path), PLAIT_ARRIVE_S="20")
    found = reports(tmp_path)
    assert found.keys() == {0, 1, 2}, (done.stdout, done.stderr)
    for seconds, said in found.values():
        assert "PeerLostError" in said and "rank 3" in said and seconds < 10


def test_a_host_whose_processes_have_ended_is_named(tmp_path):
    found = faults(tmp_path, "killed", 2, 3, hosts=2)
    assert found.keys() == {0, 1}
    for seconds, said in found.values():
        assert "rank 2 on host ph2" in said and seconds < 0.5 + 3 + 2


def test_a_cut_link_is_an_error_on_both_sides(tmp_path):
    cut = f"while [ ! -e {tmp_path}/cut ]; do sleep 0.05; done; ip link set p2 down; "
    # The launcher gets no notice that the host is gone.
    found = faults(tmp_path, "cut", 2, hosts=2, meanwhile=cut + "sleep 8; kill $job")
    assert found.keys() == {0, 1, 2, 3}
    for rank, (seconds, said) in found.items():
        there = "host ph2" if rank < 2 else "host ph1"
        assert "DeadlineError" in said and there in said and seconds < 0.5 + 3 + 2
