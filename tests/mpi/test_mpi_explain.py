"""PLAIT_DEBUG=EXPLAIN says why a call goes to the native MPI, a line for a function and reason.

PLAIT_DEBUG=INFO says who serves the job and each communicator."""

from __future__ import annotations

import re

import pytest
from mpi_programs import compiled, environment, launched, rows

DEFAULTS = {"PLAIT_MIN_BYTES": "64K"}  # of one node
OPEN_MPI, ABI = "openmpi", "mpich abi"

# Case of explains.cpp: settings, function, reason, first such call.
REASONS = {
    "small_twice": (
        DEFAULTS,
        "MPI_Allreduce",
        "the message is smaller than PLAIT_MIN_BYTES, here 65536 bytes",
        "4 MPI_INT, 16 bytes",
    ),
    "no_data": ({}, "MPI_Allreduce", "the call moves no data", "0 MPI_INT, 0 bytes"),
    "gathered": (
        {"PLAIT_OPS": "all_reduce"},
        "MPI_Allgather",
        "PLAIT_OPS does not name all_gather",
        "32768 MPI_INT, 262144 bytes",
    ),
    "type": ({}, "MPI_Allreduce", "plait does not reduce this type", "MPI_LONG_DOUBLE"),
    "logical": ({}, "MPI_Allreduce", "plait does not run this operation", "32768 MPI_INT"),
    "own_operation": ({}, "MPI_Allreduce", "plait does not run this operation", "32768 MPI_INT"),
    "intercommunicator": ({}, "MPI_Allreduce", "the communicator is an intercommunicator", None),
    "one_rank": ({}, "MPI_Allreduce", "the communicator has one rank", "131072 bytes"),
    "many_communicators": ({}, "MPI_Allreduce", "or too many are", "131072 bytes"),
    "started_sum": ({}, "MPI_Iallreduce", "no blocking call has attached", "131072 bytes"),
    "sum": (
        {"PLAIT_DISABLE": "1"},
        "MPI_Allreduce",
        "no call of this job is served: PLAIT_DISABLE is set",
        "131072 bytes",
    ),
    "persistent_sum": (
        {"PLAIT_MPI_HOST": "0"},
        "MPI_Allreduce_init",
        "no call of this job is served: PLAIT_MPI_HOST is not set",
        "131072 bytes",
    ),
}

# The same with an emulated GPU, and host memory not served.
GPU_REASONS = {
    "sum": ("MPI_Allreduce", "no rank is known to use a GPU", "1"),
    "sum_beside_gpu": ("MPI_Allreduce", "all ranks' buffers are in host memory", "0"),
    "started_beside_gpu": ("MPI_Iallreduce", "found all ranks' buffers on GPUs", "0"),
    "uneven_exchange": ("MPI_Alltoallv", "sizes that only two ranks know", "0"),
}

# The same with two ranks a node.
NODE_REASONS = {
    "started_after": ({}, "MPI_Iallreduce", "non-blocking and persistent calls are the MPI's"),
    "persistent_sum": ({}, "MPI_Allreduce_init", "non-blocking and persistent calls"),
    "uneven_parts": ({}, "MPI_Allgatherv", "parts of unequal sizes are the MPI's"),
    "small_twice": ({"PLAIT_MIN_BYTES": "8M"}, "MPI_Allreduce", "here 8388608 bytes"),
    "sum": ({"PLAIT_NODE_SIZE": "1"}, "MPI_Allreduce", "each node has one rank"),
}

MESSAGE_REASONS = {
    "send_small": "smaller than PLAIT_MIN_BYTES",
    "send_to_itself": "to the rank itself",
    "send_with_holes": "the layout of the type has holes",
}


@pytest.fixture
def explained(mpi, drop_in, folder):
    def run(name: str, ranks: int = 2, unset: str = "", **settings: str) -> list[str]:
        program = compiled(mpi, folder, "explains", ["explains.cpp"])
        env = environment(drop_in, PLAIT_DEBUG="EXPLAIN", **settings)
        env.pop(unset, None)
        done = launched(mpi, ranks, [str(program), name], env)
        rows(done)
        found = re.findall(
            r"PLAIT EXPLAIN (MPI_\w+ goes to the MPI: .*)", done.stdout + done.stderr
        )
        return [line.strip() for line in found]

    return run


@pytest.mark.parametrize("name", REASONS)
def test_a_call_that_goes_to_the_mpi_has_a_reason(explained, name):
    settings, function, reason, first = REASONS[name]
    lines = explained(name, **settings)
    writers = 2 if name in ("one_rank", "intercommunicator") else 1  # each communicator's rank 0
    assert len(lines) == writers, lines
    for line in lines:
        assert line.startswith(f"{function} goes to the MPI: ") and reason in line, line
        assert first is None or (first in line and "(first such call: " in line), line


def test_short_integers_have_a_reason_over_open_mpi(mpi, explained):
    lines = explained("short_sums")
    assert len(lines) == (1 if mpi.name.startswith(OPEN_MPI) else 0), lines
    assert all("sums of integers of 8 and 16 bits are Open MPI's" in line for line in lines)


@pytest.mark.parametrize("name", GPU_REASONS)
def test_a_call_beside_a_gpu_has_a_reason(explained, emulated_gpu, name):
    function, reason, late = GPU_REASONS[name]
    settings = {"TEST_LIBCUDA": emulated_gpu, "PLAIT_MPI_HOST": "0"}
    if late == "1":
        settings["TEST_CUDA_LATE"] = "1"
    lines = explained(name, **settings)
    assert any(line.startswith(f"{function} goes") and reason in line for line in lines), lines


# Settings and reasons of device_sums in explains.cpp: of the blocking sum, of the non-blocking
# reduce_scatter in place, of the blocking reduce_scatter in place.
IN_PLACE = "the engines lack MPI's layout in place"
STAGED = {
    "of another context": (
        {"TEST_LIBCUDA_CONTEXT": "other"},
        ["the memory is of another CUDA context", "no blocking call has found all", IN_PLACE],
    ),
    "of a pool": ({}, ["no blocking call has found all ranks' buffers on GPUs", IN_PLACE]),
}


@pytest.mark.parametrize("name", STAGED)
def test_staged_device_memory_has_a_reason(mpi, drop_in, folder, emulated_gpu, name):
    settings, reasons = STAGED[name]
    program = compiled(mpi, folder, "explains", ["explains.cpp"])
    env = environment(drop_in, PLAIT_DEBUG="EXPLAIN", TEST_LIBCUDA=emulated_gpu, **settings)
    done = launched(mpi, 2, [str(program), "device_sums"], env)
    assert [row["wrong"] for row in rows(done)] == [0, 0]
    found = re.findall(r"PLAIT EXPLAIN (\w+ stages device memory: .*)", done.stdout + done.stderr)
    assert len(found) == 2 * len(reasons), found  # a line of each rank
    for reason in reasons:
        assert sum(reason in line for line in found) == 2, (reason, found)


@pytest.mark.parametrize("name", NODE_REASONS)
def test_a_call_over_nodes_has_a_reason(explained, name):
    settings, function, reason = NODE_REASONS[name]
    unset = "PLAIT_MIN_BYTES" if reason.startswith("each node") else ""
    lines = explained(name, 4, unset, **{"PLAIT_NODE_SIZE": "2", **settings})
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"{function} goes to the MPI: ") and reason in lines[0], lines


@pytest.mark.parametrize("name", MESSAGE_REASONS)
def test_a_message_that_goes_to_the_mpi_has_a_reason(mpi, explained, name):
    if mpi.name == "mpich" or mpi.name.startswith(ABI):
        pytest.skip("wanted an MPI with a progress hook for rendezvous")
    lines = explained(name, PLAIT_MIN_BYTES="16K")
    assert len(lines) == 1 and lines[0].startswith("MPI_Send goes to the MPI: "), lines
    assert MESSAGE_REASONS[name] in lines[0]


@pytest.mark.parametrize("name", ["sum", "started_after"])
def test_served_calls_and_other_levels_print_nothing(explained, name):
    assert explained(name) == []
    assert explained("small_twice", PLAIT_MIN_BYTES="64K", PLAIT_DEBUG_FILE="/dev/null") == []


# Case of explains.cpp: ranks, settings, lines of all ranks.
INFO = {
    "sum": (
        *(2, {}),
        ["serves host memory of this job of 2 ranks on 1 node: a communicator is attached"],
        2 * ["attached to a communicator of 2 ranks on 1 node: plait serves host memory"],
    ),
    "intercommunicator": (
        *(2, {}),
        ["serves host memory of this job of 2 ranks on 1 node"],
        2 * ["a communicator of 1 ranks stays with the MPI: the communicator is an interc"],
    ),
    "type": (
        *(2, {"PLAIT_DISABLE": "1"}),
        ["all communicators stay with the MPI: PLAIT_DISABLE is set"],
        [],
    ),
    "sum over nodes": (
        *(4, {"PLAIT_NODE_SIZE": "1", "PLAIT_MIN_BYTES": ""}),
        [],
        ["a communicator of 4 ranks stays with the MPI: each node has one rank"],
    ),
}


@pytest.mark.parametrize("name", INFO)
def test_info_says_who_serves_each_communicator(mpi, drop_in, folder, name):
    ranks, settings, job, communicators = INFO[name]
    program = compiled(mpi, folder, "explains", ["explains.cpp"])
    env = environment(drop_in, PLAIT_DEBUG="INFO", **settings)
    done = launched(mpi, ranks, [str(program), name.split()[0]], env)
    found = re.findall(r"PLAIT INFO (.*)", done.stdout + done.stderr)
    wanted = [*job, *communicators]
    served = r"serves|attached|stay"
    said = [line for line in found if re.match(rf"({served}|a communicator of|all comm)", line)]
    assert len(said) == len(wanted), (said, wanted)
    for line in wanted:
        assert sum(one.startswith(line) for one in said) == wanted.count(line), (line, said)
