"""The life of requests, and error handlers of the program, in calls that plait takes part in."""

from __future__ import annotations

import pytest
from mpi_programs import compiled, environment, launched, moves_messages, rows


@pytest.fixture
def run_case(mpi, drop_in, folder, emulated_gpu):
    def run(source: str, name: str, on_gpus: bool, **settings: str):
        program = compiled(mpi, folder, source, [f"{source}.cpp"])
        gpu = {"TEST_LIBCUDA": emulated_gpu} if on_gpus else {}
        env = environment(drop_in, **gpu, **settings)
        return rows(launched(mpi, 2, [str(program), name], env))

    return run


@pytest.fixture
def run_requests(run_case):
    def run(name: str, on_gpus: bool = False, **settings: str):
        return run_case("requests", name, on_gpus, **settings)

    return run


@pytest.mark.parametrize("on_gpus", [False, True], ids=["host", "gpus"])
def test_a_persistent_send_outlives_its_type_and_communicator(mpi, run_requests, on_gpus):
    found = run_requests("outlived", on_gpus)
    assert [row["wrong"] for row in found] == [0, 0]
    assert (found[1]["served"] > 0) == moves_messages(mpi), found


@pytest.fixture
def run_handlers(run_case):
    def run(name: str, on_gpus: bool = False, **settings: str):
        found = run_case("handlers", name, on_gpus, **settings)
        assert [row["wrong"] for row in found] == [0, 0]

    return run


@pytest.mark.parametrize("name", ["thrown", "thrown_among_others", "thrown_operation"])
def test_an_exception_of_the_program_passes(run_handlers, name):
    run_handlers(name)


@pytest.mark.parametrize("on_gpus", [False, True], ids=["host", "gpus"])
def test_an_exception_in_a_waitall_leaves_the_other_requests_complete(mpi, run_handlers, on_gpus):
    if not moves_messages(mpi):
        pytest.skip("MPICH's own MPI_Waitall aborts after such an exception")
    run_handlers("thrown_in_waitall", on_gpus)


def test_an_exception_of_a_receive_leaves_the_send_of_the_call(mpi, run_handlers):
    if not moves_messages(mpi):
        pytest.skip("the MPI's own MPI_Sendrecv, which its exception leaves")
    run_handlers("thrown_in_sendrecv")


@pytest.mark.parametrize("on_gpus", [False, True], ids=["host", "gpus"])
def test_a_refused_call_leaves_no_request(run_handlers, on_gpus):
    run_handlers("refused", on_gpus)


@pytest.mark.parametrize("on_gpus", [False, True], ids=["host", "gpus"])
def test_an_error_handler_starts_a_request(run_handlers, on_gpus):
    run_handlers("reentrant", on_gpus)


@pytest.mark.parametrize("on_gpus", [False, True], ids=["host", "gpus"])
def test_an_inactive_persistent_request_is_no_completed_one(mpi, run_requests, on_gpus):
    if mpi.name.startswith("mpich abi") and not on_gpus:
        pytest.skip("MPICH 5.0's own get_status ends a persistent request")
    assert [row["wrong"] for row in run_requests("inactive", on_gpus)] == [0, 0]


@pytest.mark.parametrize("on_gpus", [False, True], ids=["host", "gpus"])
def test_an_error_of_a_matched_message_goes_to_its_communicator(mpi, run_handlers, on_gpus):
    if not mpi.name.startswith("openmpi"):
        pytest.skip("MPICH's own error of MPI_Mrecv goes to MPI_COMM_WORLD")
    run_handlers("matched", on_gpus)


def test_a_null_result_is_an_error_of_the_mpi(mpi, run_requests):
    if mpi.name.startswith("mpich abi"):
        pytest.skip("MPICH's library of the standard ABI crashes")
    assert [row["wrong"] for row in run_requests("null_results")] == [0, 0]


def test_a_persistent_request_takes_the_state_of_a_freed_request(mpi, drop_in, folder):
    program = compiled(mpi, folder, "cases", ["cases.cpp"])
    env = environment(drop_in, PLAIT_DEBUG="INFO")
    done = launched(mpi, 3, [str(program), "persistent_again"], env)
    # 79 starts of 80 requests
    assert [(row["wrong"], row["served"]) for row in rows(done)] == [(0, 79)] * 3, done.stderr
    # Each rank attaches the communicator, and a state for each of two requests at once.
    assert (done.stderr + done.stdout).count("attached to a communicator") == 3 * 3
