"""The drop-in over emulated hosts (tests/nodes/hosts.sh): the ranks share no memory.

Skipped, with the reason, where namespaces are not permitted.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from mpi_programs import ROOT, Mpi, compiled, environment, rows
from test_mpi import MIXES, SCALE

HOSTS = ROOT / "tests" / "nodes" / "hosts.sh"


def version(mpi: Mpi) -> str:
    return subprocess.run([mpi.launcher, "--version"], capture_output=True, text=True).stdout


def words(mpi: Mpi, agent: Path, hosts: int, each: int) -> list[str]:
    """Options of the launcher for `each` ranks on each of `hosts` hosts."""
    said = version(mpi)
    if mpi.name == "mpich":
        pytest.skip("MPICH 4.0 over TCP may not come out of MPI_Finalize, with plait or without")
    names = ",".join(f"ph{host}:{each}" for host in range(1, hosts + 1))
    if "HYDRA" in said:
        how = ["-launcher", "ssh", "-launcher-exec", str(agent), "-iface", "br0", "-hosts", names]
        return [*how, "-n", str(hosts * each)]
    if "Open MPI" not in said and "OpenRTE" not in said:
        pytest.skip("only Open MPI's and MPICH's launchers are known here")
    links = ["--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "e0", "--host", names]
    if ") 4." in said:
        via = ["--mca", "plm_rsh_agent", str(agent), "--oversubscribe", "--mca", "btl"]
        via += ["tcp,self,vader", "--mca", "oob_tcp_if_include", "192.0.2.0/24"]
    else:
        via = ["--prtemca", "plm_ssh_agent", str(agent), "--mca", "btl", "tcp,self,sm"]
        via += ["--map-by", f"ppr:{each}:node:OVERSUBSCRIBE"]
        via += ["--prtemca", "prte_if_include", "192.0.2.0/24"]
    return [*links, *via, "-n", str(hosts * each)]


def launched_over(
    mpi: Mpi, folder: Path, hosts: int, each: int, command: list[str], env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Preloads the drop-in into ranks alone, not into the launcher or the host emulation."""
    agent = folder / "agent"
    agent.write_text(f'#!/bin/bash\nexec {HOSTS} @ "$@"\n')
    agent.chmod(0o755)
    own = {key: value for key, value in env.items() if key.startswith(("PLAIT_", "LD_PRELOAD"))}
    # Open MPI passes named variables alone; without the list the drop-in does not serve.
    own["OMPI_MCA_mca_base_env_list"] = "LD_PRELOAD;PLAIT_MPI_HOST"
    given = [f"{key}={value}" for key, value in own.items()]
    line = shlex.join([mpi.launcher, *words(mpi, agent, hosts, each), "env", *given, *command])
    # 141 (SIGPIPE): MPICH's launcher wrote to agents that had exited after all ranks had ended.
    script = f"{line}; said=$?; test $said = 141 && said=0; exit $said"
    done = subprocess.run(
        [str(HOSTS), str(hosts), "bash", "-c", script],
        env={key: value for key, value in env.items() if key not in own},
        capture_output=True,
        text=True,
        timeout=180,
        errors="replace",
    )
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    return done


@pytest.mark.parametrize(("hosts", "each", "seed"), [(2, 2, 21), (3, 1, 22)])
def test_random_calls_over_hosts(mpi, drop_in, folder, hosts, each, seed):
    program = compiled(mpi, folder, "mixes", MIXES)
    command = [str(program), str(seed), str(max(1, int(100 * SCALE)))]
    done = launched_over(mpi, folder, hosts, each, command, environment(drop_in))
    found = rows(done)
    assert len(found) == hosts * each and all(row["wrong"] == 0 for row in found), found
    assert sum(row["served"] for row in found) > sum(row["calls"] for row in found) / 8, found


def test_a_message_makes_progress_during_a_call_over_hosts(mpi, drop_in, folder):
    program = compiled(mpi, folder, "cases", ["cases.cpp"])
    for name in ("nodes", "nodes_progress"):
        done = launched_over(mpi, folder, 2, 2, [str(program), name], environment(drop_in))
        found = rows(done)
        assert len(found) == 4 and all(row["wrong"] == 0 and row["served"] > 0 for row in found)
