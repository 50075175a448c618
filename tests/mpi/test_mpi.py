"""The drop-in under the MPIs of this machine, with the programs of tests/mpi/programs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from mpi_programs import (
    PROGRAMS,
    ROOT,
    compiled,
    environment,
    launched,
    moves_messages,
    plait_command,
    rows,
    rows_of,
)

MIXES = ["mixes.cpp", "mixed_reductions.cpp", "mixed_movements.cpp", "mixed_uneven.cpp"]
SCALE = float(os.environ.get("PLAIT_TEST_SCALE", "1"))


@pytest.fixture
def run_case(mpi, drop_in, folder):
    def run(name: str, ranks: int = 2, limit_s: float = 60, **settings: str):
        program = compiled(mpi, folder, "cases", ["cases.cpp"])
        env = environment(drop_in, **settings)
        return launched(mpi, ranks, [str(program), name], env, limit_s)

    return run


@pytest.mark.parametrize(("ranks", "seed"), [(2, 1), (3, 2), (4, 3)])
def test_random_calls_over_random_communicators(mpi, drop_in, folder, ranks, seed):
    program = compiled(mpi, folder, "mixes", MIXES)
    rounds = max(1, int(250 * SCALE))
    command = [str(program), str(seed), str(rounds)]
    found = rows(launched(mpi, ranks, command, environment(drop_in), 120 + rounds))
    assert len(found) == ranks and all(row["wrong"] == 0 for row in found), found
    least = 4 if SCALE >= 1 else 8  # with few rounds the share varies
    assert sum(row["served"] for row in found) > sum(row["calls"] for row in found) / least, found


@pytest.fixture
def run_staged(mpi, drop_in, folder, emulated_gpu):
    def run(name: str, ranks: int):
        program = compiled(mpi, folder, "staged", ["staged.cpp"])
        env = environment(drop_in, TEST_LIBCUDA=emulated_gpu)
        return launched(mpi, ranks, [str(program), name], env)

    return run


ON_GPUS = {
    "alongside host memory": {},
    "alone": {"PLAIT_MPI_HOST": "0"},
    "staged for the MPI": {"PLAIT_MPI_HOST": "0", "PLAIT_MIN_BYTES": "1T"},
}


@pytest.mark.parametrize(("ranks", "seed"), [(2, 4), (3, 5)])
@pytest.mark.parametrize("served", ON_GPUS)
def test_random_calls_on_device_memory(mpi, drop_in, folder, emulated_gpu, served, ranks, seed):
    if mpi.name == "mpich" and served != "alongside host memory":
        pytest.skip("MPICH 4.0's own reduce takes MPI_IN_PLACE for an address")
    program = compiled(mpi, folder, "mixes", MIXES)
    command = [str(program), str(seed), str(max(1, int(120 * SCALE)))]
    env = environment(drop_in, TEST_LIBCUDA=emulated_gpu, **ON_GPUS[served])
    found = rows(launched(mpi, ranks, command, env, 120))
    assert len(found) == ranks and all(row["wrong"] == 0 for row in found), found
    assert all((row["served"] > 0) == (served != "staged for the MPI") for row in found), found


MESSAGES: dict[str, dict[str, str] | None] = {
    "host memory": None,
    "device memory": {},
    "device memory that is not shown": {"TEST_LIBCUDA_IPC": "unshown"},
    "device memory that cannot be opened": {"TEST_LIBCUDA_IPC": "unopened"},
    "device memory that must not be opened": {"NCCL_P2P_DISABLE": "1"},
}


@pytest.mark.parametrize(("ranks", "seed"), [(2, 6), (4, 7)])
@pytest.mark.parametrize("where", MESSAGES)
def test_random_messages(mpi, drop_in, folder, emulated_gpu, where, ranks, seed):
    program = compiled(mpi, folder, "messages", ["messages.cpp"])
    command = [str(program), str(seed), str(max(1, int(150 * SCALE)))]
    said = MESSAGES[where]
    gpu = {} if said is None else {"TEST_LIBCUDA": emulated_gpu, **said}
    found = rows(launched(mpi, ranks, command, environment(drop_in, **gpu), 120))
    assert len(found) == ranks and all(row["wrong"] == 0 for row in found), found
    assert all((row["served"] > 0) == moves_messages(mpi) for row in found), found


@pytest.fixture
def run_messages(mpi, drop_in, folder, emulated_gpu):
    def run(name: str, ranks: int, on_gpus: bool, **settings: str):
        program = compiled(mpi, folder, "message_cases", ["message_cases.cpp"])
        gpu = {"TEST_LIBCUDA": emulated_gpu} if on_gpus else {}
        env = environment(drop_in, **gpu, **settings)
        return rows(launched(mpi, ranks, [str(program), name], env))

    return run


@pytest.mark.parametrize("on_gpus", [False, True], ids=["host", "gpus"])
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("started", 2),
        ("rings", 4),
        ("queried_twice", 2),
        ("never_matched", 2),
        ("freed", 2),
        ("one_buffer", 2),
        ("threads", 2),
        ("many_pending", 2),
        ("same_length", 2),
        ("short_receive", 2),
        ("tiny_receive", 2),
    ],
)
def test_a_case_of_messages(mpi, run_messages, name, ranks, on_gpus):
    if name == "queried_twice" and not on_gpus and mpi.name.startswith("mpich abi"):
        pytest.skip("MPICH 5.0's own get_status ends a persistent request")
    if name == "threads" and mpi.name == "openmpi of make":
        pytest.skip("Open MPI 5.0's own cancel in one of two threads loses messages, or crashes")
    if name in ("short_receive", "tiny_receive") and not moves_messages(mpi):
        pytest.skip("an MPI's own large messages overrun their room")
    large = name in ("same_length", "short_receive", "tiny_receive")
    least = {"PLAIT_MIN_BYTES": "16K"} if large else {}
    found = run_messages(name, ranks, on_gpus, **least)
    assert [row["wrong"] for row in found] == [0] * ranks
    # MPICH's progress hook does not work with concurrent threads.
    if name == "rings" and moves_messages(mpi):  # persistent sends too
        assert [row["served"] for row in found] == [90] * ranks
    if name == "many_pending":
        return  # the messages are too small for rendezvous
    moves = moves_messages(mpi) and (name != "threads" or "mpich" not in mpi.name)
    assert (found[1]["served"] > 0) == moves, found


def open_allocations(found: list[dict[str, int]]) -> list[int]:
    """Allocations of other ranks that each rank has open before MPI_Finalize; afterwards none."""
    assert all(row["wrong"] == 0 and row["left"] == 0 for row in found), found
    return [row["open"] for row in found]


def test_opened_allocations_are_bounded_and_closed(mpi, run_messages):
    most = 2 if moves_messages(mpi) else 0
    assert open_allocations(run_messages("opened", 3, True)) == [most] * 3
    large = run_messages("opened", 3, True, TEST_LIBCUDA_BYTES=str(3 << 30))
    assert open_allocations(large) == [min(most, 1)] * 3


@pytest.mark.parametrize("said", [{"NCCL_P2P_DISABLE": "1"}, {"PLAIT_THROUGH_HOST": "1"}])
def test_no_memory_of_a_peers_gpu_is_opened_where_settings_forbid_that(run_messages, said):
    assert open_allocations(run_messages("opened", 3, True, **said)) == [0] * 3


def test_a_copy_of_a_message_to_the_host_blocks_nothing(mpi, run_messages):
    if not moves_messages(mpi):
        pytest.skip("messages are the MPI's here")
    found = run_messages("copied_to_host", 2, True, TEST_LIBCUDA_IPC="unshown")
    assert [row["wrong"] for row in found] == [0, 0]


def test_a_message_to_oneself_stays_on_the_gpu(mpi, run_messages):
    found = run_messages("to_itself", 2, True)
    assert [row["wrong"] for row in found] == [0, 0]
    served = 6 if moves_messages(mpi) else 0
    assert [row["served"] for row in found] == [served] * 2, found


def test_many_large_messages_of_gpus_take_little_host_memory(mpi, run_messages):
    if not moves_messages(mpi):
        pytest.skip("messages are the MPI's here")
    found = run_messages("window", 2, True)
    assert [row["wrong"] for row in found] == [0, 0]
    assert found[1]["served"] == 64, found


def test_more_than_2_gib_go_and_come_in_place(run_messages):
    free = re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())
    if SCALE < 2 or free is None or int(free[1]) < 10 << 20:
        pytest.skip("wanted PLAIT_TEST_SCALE of 2, and 10 GiB of free memory")
    assert [row["wrong"] for row in run_messages("in_place", 2, False)] == [0, 0]


def test_a_large_message_that_is_too_long(mpi, run_staged):
    found = rows(run_staged("too_long", 2))
    assert [row["wrong"] for row in found] == [0, 0]
    assert (found[1]["served"] > 0) == moves_messages(mpi), found


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("alone", 1),
        ("exchanges", 1),
        ("exchanges", 3),
        ("truncated", 2),
        ("persistent_freed", 3),
        ("forgotten", 2),
        ("hidden_errors", 2),
    ],
)
def test_staged_device_memory(run_staged, name, ranks):
    found = rows(run_staged(name, ranks))
    assert [row["wrong"] for row in found] == [0] * ranks


@pytest.mark.parametrize(
    "name", ["made_c", "bottom", "apart", "nested", "split", "displaced", "displaced_gpus"]
)
@pytest.mark.parametrize("host", ["0", "1"])
def test_derived_types(mpi, drop_in, folder, emulated_gpu, name, host):
    if (name, host) == ("displaced", "0") and mpi.name.startswith("openmpi"):
        pytest.skip("Open MPI 5.0 itself has no functions with displacements of 64 bits")
    program = compiled(mpi, folder, "types", ["types.cpp"])
    env = environment(drop_in, TEST_LIBCUDA=emulated_gpu, PLAIT_MPI_HOST=host)
    found = rows(launched(mpi, 2, [str(program), name], env))
    assert [row["wrong"] for row in found] == [0, 0]


def test_an_element_of_more_than_2_gib(mpi, drop_in, folder):
    free = re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())
    if SCALE < 2 or free is None or int(free[1]) < 14 << 20:
        pytest.skip("wanted PLAIT_TEST_SCALE of 2, and 14 GiB of free memory")
    program = compiled(mpi, folder, "types", ["types.cpp"])
    env = environment(drop_in, PLAIT_OPS="broadcast")
    found = rows(launched(mpi, 2, [str(program), "large"], env, 120))
    assert [(row["wrong"], row["served"]) for row in found] == [(0, 1), (0, 1)]


@pytest.mark.parametrize("name", ["even_sums", "even_parts", "uneven_sums", "uneven_parts"])
def test_even_parts_are_for_the_engines_and_others_are_staged(
    mpi, drop_in, folder, emulated_gpu, name
):
    """The emulated GPU has no engines, which a warning says when ranks try to use them."""
    program = compiled(mpi, folder, "staged", ["staged.cpp"])
    env = environment(drop_in, TEST_LIBCUDA=emulated_gpu, PLAIT_DEBUG="WARN")
    done = launched(mpi, 2, [str(program), name], env)
    assert [(row["wrong"], row["served"]) for row in rows(done)] == [(0, 1)] * 2
    tried = "device memory of a communicator is staged" in done.stderr + done.stdout
    assert tried == name.startswith("even")


def test_a_forgotten_receive_of_the_mpis_is_in_device_memory_at_the_end(
    mpi, drop_in, folder, emulated_gpu
):
    program = compiled(mpi, folder, "staged", ["staged.cpp"])
    env = environment(drop_in, TEST_LIBCUDA=emulated_gpu, PLAIT_OPS="all_reduce")
    found = rows(launched(mpi, 2, [str(program), "forgotten"], env))
    assert [row["wrong"] for row in found] == [0, 0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_collectives_that_stay_the_mpis_on_device_memory(mpi, drop_in, folder, emulated_gpu, ranks):
    if mpi.name == "mpich" and ranks > 2 and "MPI_SHIM" in os.environ:
        pytest.skip("under AddressSanitizer MPICH 4.0's own Neighbor_alltoallw loses a message")
    program = compiled(mpi, folder, "others", ["others.cpp"])
    env = environment(drop_in, TEST_LIBCUDA=emulated_gpu)
    assert [row["wrong"] for row in rows(launched(mpi, ranks, [str(program)], env))] == [0] * ranks


@pytest.mark.parametrize("name", ["loaded_late", "loaded_late_threads"])
def test_cuda_that_is_loaded_after_many_calls(run_staged, name):
    assert [row["wrong"] for row in rows(run_staged(name, 2))] == [0, 0]


def test_the_first_calls_of_several_threads_on_device_memory(run_staged):
    for _ in range(max(1, int(10 * SCALE))):
        assert [row["wrong"] for row in rows(run_staged("first_of_threads", 2))] == [0, 0]


def test_a_receive_writes_what_came_and_reads_nothing(run_staged):
    assert [row["wrong"] for row in rows(run_staged("untouched", 2))] == [0, 0]


@pytest.mark.parametrize("device_memory", [False, True])
def test_persistent_collectives(mpi, drop_in, folder, emulated_gpu, device_memory):
    program = compiled(mpi, folder, "persistent", ["persistent.cpp"])
    rounds = max(1, int(20 * SCALE))
    # MPICH 4.0's own Waitany and Waitsome crash with MPICH's own persistent collectives.
    command = [str(program), "8", str(rounds), "2" if mpi.name == "mpich" else "4"]
    env = environment(drop_in, **({"TEST_LIBCUDA": emulated_gpu} if device_memory else {}))
    found = rows(launched(mpi, 3, command, env, 120))
    assert len(found) == 3 and all(row["wrong"] == 0 for row in found), found
    # 12 a round: three requests and a blocking call, three times. 48: a blocking call and 47 of 60
    # requests.
    assert [row["served"] for row in found] == [48 + 12 * rounds] * 3, found


def compiled_adopted(mpi, folder) -> Path:
    flags = ("-std=c++20", *(f"-I{ROOT / name}" for name in ("include", "src", "tests")))
    return compiled(mpi, folder, "adopted", ["adopted.cpp"], *flags)


@pytest.mark.parametrize("ranks", [2, 3])
def test_one_communicator_serves_host_memory_and_gpus(mpi, drop_in, folder, emulated_gpu, ranks):
    if "SHIM_RUNTIME" in os.environ:
        pytest.skip("wanted kernels of engines: tools/sanitize.sh builds none (PLAIT_CUDA=0)")
    program = compiled_adopted(mpi, folder)
    env = environment(drop_in, PLAIT_DEBUG="WARN")
    done = launched(mpi, ranks, [str(program), emulated_gpu, "20"], env)
    # A sum on host memory and two on GPUs, and six calls a round; one sum at the end. Twice seven
    # calls in place, four beside captures, and four with memory of another context.
    assert [(row["wrong"], row["served"]) for row in rows(done)] == [(0, 146)] * ranks, done.stderr
    assert "is staged" not in done.stderr + done.stdout


@pytest.mark.parametrize("name", ["without_gpus", "gpus_late"])
def test_gpus_that_the_program_uses_late_or_never(run_case, emulated_gpu, name):
    settings = {"TEST_LIBCUDA": emulated_gpu, "TEST_CUDA_LATE": "1", "PLAIT_MPI_HOST": "0"}
    found = rows(run_case(name, **settings))
    assert all(row["wrong"] == 0 for row in found), found


def test_by_default_host_memory_is_native(mpi, drop_in, folder):
    program = compiled(mpi, folder, "mixes", MIXES)
    env = environment(drop_in, PLAIT_MPI_HOST="0")
    # With some seeds MPICH 4.0's own reduce takes MPI_IN_PLACE for an address.
    found = rows(launched(mpi, 2, [str(program), "3", "60"], env))
    assert [(row["wrong"], row["served"]) for row in found] == [(0, 0)] * 2


@pytest.mark.parametrize(
    "name",
    [
        "progress",
        "native_alongside",
        "freed_early",
        "used_while_freed",
        "persistent_left",
        "persistent_orders",
        "mismatch",
        "retained_codes",
        "corners",
        "threads",
    ],
)
def test_case(run_case, name):
    found = rows(run_case(name))
    assert len(found) == 2 and all(row["wrong"] == 0 and row["served"] > 0 for row in found)


AUDITED = ["freed_early", "freed_in_pairs", "thread_ends", "retained_codes"]
AUDITED += ["persistent_left", "persistent_again"]


@pytest.fixture
def run_audited(mpi, drop_in, call_audit):
    """Runs a program of two ranks, in which no thread but the program's may call the MPI."""

    def run(program: Path, *words: str, **settings: str) -> None:
        # Neither the launcher nor env is audited.
        command = ["env", f"LD_AUDIT={call_audit}", str(program), *words]
        done = launched(mpi, 2, command, environment(drop_in, **settings), 120)
        assert [row["wrong"] for row in rows(done)] == [0, 0], done.stderr
        said = re.findall(r"call audit: (.*)", done.stderr + done.stdout)
        assert said == ["watches MPI"] * 2, said

    return run


@pytest.mark.parametrize("name", AUDITED)
def test_no_thread_of_plait_calls_the_mpi(mpi, folder, run_audited, name):
    run_audited(compiled(mpi, folder, "cases", ["cases.cpp"]), name)


def test_no_thread_of_plait_calls_the_mpi_in_random_calls(mpi, folder, emulated_gpu, run_audited):
    run_audited(compiled(mpi, folder, "mixes", MIXES), "4", "20", TEST_LIBCUDA=emulated_gpu)


def test_no_thread_of_plait_calls_the_mpi_in_calls_on_gpus(mpi, folder, emulated_gpu, run_audited):
    run_audited(compiled_adopted(mpi, folder), emulated_gpu, "3")


def test_sums_of_floats_take_one_order_from_the_first_call_on(run_case):
    """MPICH's own sums change the order with the fifth call."""
    found = rows(run_case("one_order", ranks=4))
    assert [(row["wrong"], row["served"]) for row in found] == [(0, 36)] * 4


def test_a_nan_is_the_largest_and_the_least_on_all_ranks(run_case):
    found = rows(run_case("nans"))
    assert [(row["wrong"], row["served"]) for row in found] == [(0, 304)] * 2


def test_sums_that_overflow_are_alike_in_small_calls_and_large_ones(mpi, run_case):
    """Open MPI's vector code saturates sums of 8 and 16 bits, hence these stay native."""
    found = rows(run_case("narrow_integers", PLAIT_MIN_BYTES="64K"))
    served = 4 if "openmpi" in mpi.name else 12
    assert [(row["wrong"], row["served"]) for row in found] == [(0, served)] * 2


def test_constants_are_those_of_the_header(mpi, folder):
    program = compiled(mpi, folder, "constants", ["constants.cpp"])
    done = subprocess.run([program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def run_errors(mpi, drop_in, folder):
    def run(*words: str, ranks: int = 2, options: tuple[str, ...] = (), **settings: str):
        program = compiled(mpi, folder, "errors", ["errors.cpp"])
        env = environment(drop_in, **settings)
        return launched(mpi, ranks, [str(program), *words], env, 60, options)

    return run


@pytest.mark.parametrize("name", ["own_handler", "persistent_handler", "status"])
def test_errors_and_statuses_of_nonblocking_calls(run_errors, name):
    found = rows(run_errors(name))
    assert len(found) == 2 and all(row["wrong"] == 0 and row["served"] > 0 for row in found)


def test_a_datatype_without_commit_is_the_mpis_error_on_the_calls_communicator(run_errors):
    found = rows(run_errors("uncommitted"))
    assert [row["wrong"] for row in found] == [0, 0] and all(row["served"] > 0 for row in found)


def test_a_count_too_large_for_the_mpi_goes_to_the_calls_handler(mpi, run_errors):
    if not mpi.name.startswith("openmpi"):
        pytest.skip("this MPI has functions for wide counts")
    assert [row["wrong"] for row in rows(run_errors("wide_counts"))] == [0, 0]


@pytest.mark.parametrize("call", ["blocking", "nonblocking", "persistent", "sent"])
@pytest.mark.parametrize("how", ["revoked", "killed"])
def test_waiting_ranks_get_ulfm_errors(mpi, run_errors, how, call):
    if mpi.name != "openmpi of make":
        pytest.skip("wanted an MPI with ULFM: Open MPI 5")
    done = run_errors(how, call, ranks=3, options=("--with-ft", "ulfm"))
    found = rows_of(done)  # the launcher returns the killed rank's status
    left = 3 if how == "revoked" else 2
    assert [row["wrong"] for row in found] == [0] * left, done.stderr[-2000:]


@pytest.mark.parametrize("how", ["revoked", "killed"])
def test_waiting_ranks_of_several_nodes_get_ulfm_errors(mpi, run_errors, how):
    if mpi.name != "openmpi of make":
        pytest.skip("wanted an MPI with ULFM: Open MPI 5")
    nodes = {"PLAIT_NODE_SIZE": "2"}
    done = run_errors(how, "blocking", ranks=4, options=("--with-ft", "ulfm"), **nodes)
    left = 4 if how == "revoked" else 3
    assert [row["wrong"] for row in rows_of(done)] == [0] * left, done.stderr[-2000:]


def test_an_error_of_the_mpi_while_plait_attaches_reaches_the_program_once(mpi, run_errors):
    if mpi.name != "openmpi of make":
        pytest.skip("wanted an MPI with ULFM: Open MPI 5")
    found = rows(run_errors("unattached", ranks=3, options=("--with-ft", "ulfm")))
    assert [(row["wrong"], row["served"]) for row in found] == [(0, 1)] * 3


def test_small_calls_are_forwarded(run_case):
    found = rows(run_case("corners", PLAIT_MIN_BYTES="64K"))
    assert [(row["wrong"], row["served"]) for row in found] == [(0, 0)] * 2


def test_ranks_exchange_counts_that_two_of_them_know(run_case):
    found = rows(run_case("uneven", ranks=3, PLAIT_MIN_BYTES="64K"))
    assert [(row["wrong"], row["served"]) for row in found] == [(0, 2)] * 3


def test_variables_that_differ_make_all_calls_native(mpi, drop_in, folder):
    program = compiled(mpi, folder, "cases", ["cases.cpp"])
    words = f"PLAIT_MIN_BYTES=$((${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} * 1024)) {program} corners"
    found = rows(launched(mpi, 2, ["sh", "-c", words], environment(drop_in)))
    assert [(row["wrong"], row["served"]) for row in found] == [(0, 0)] * 2


def test_a_rank_without_the_drop_in_is_reported(mpi, drop_in, folder):
    program = compiled(mpi, folder, "cases", ["cases.cpp"])
    is_rank_1 = "[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 1 ]"
    words = f"{is_rank_1} && unset LD_PRELOAD; {program} without_it"
    env = environment(drop_in, PLAIT_ARRIVE_S="1")  # after 10 s otherwise
    done = launched(mpi, 2, ["sh", "-c", words], env)
    assert done.returncode != 0  # rank 1 ends the job
    assert "does each rank of this job run with the drop-in?" in done.stderr + done.stdout


def test_an_invalid_variable_makes_all_calls_native(run_case):
    done = run_case("corners", PLAIT_MIN_BYTES="many")
    assert [(row["wrong"], row["served"]) for row in rows(done)] == [(0, 0)] * 2
    assert "PLAIT_MIN_BYTES: wanted" in done.stderr + done.stdout


@pytest.mark.parametrize("nodes", ["1", "2"])
@pytest.mark.parametrize("how", ["kill", "abort"])
def test_a_rank_that_ends_during_random_calls_ends_the_job(mpi, drop_in, folder, how, nodes):
    program = compiled(mpi, folder, "mixes", MIXES)
    settings = {"PLAIT_NODE_SIZE": "2"} if nodes == "2" else {}
    marked = {"PLAIT_TEST_MARK": f"{os.getpid()}-{mpi.name}-{how}-{nodes}"}
    env = environment(drop_in, **settings) | marked
    for seed in range(31, 31 + max(1, int(3 * SCALE))):
        command = [str(program), str(seed), "120", how]
        assert launched(mpi, 4, command, env, 60).returncode != 0
        left = running_with(marked)
        assert not left, left


def running_with(settings: dict[str, str], wait_s: float = 5) -> list[str]:
    """Processes whose environment still has these settings after `wait_s`."""
    words = [f"{key}={value}".encode() for key, value in settings.items()]
    deadline = time.monotonic() + wait_s
    while True:
        found = []
        for page in Path("/proc").glob("[0-9]*/environ"):
            try:
                if all(word in page.read_bytes().split(b"\0") for word in words):
                    found.append(
                        (page.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    )
            except OSError:  # the process has just ended
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


LACKING = [
    "thread",
    "listen",
    "connect",
    "place_taken",
    "grow",
    "staged",
    "staged_uneven",
    "staged_nonblocking",
    "staged_started",
]


@pytest.fixture
def run_faults(mpi, drop_in, folder):
    if os.environ.get("SHIM_RUNTIME"):
        pytest.skip("a sanitizer replaces the same functions of the C library")

    def run(name: str, ranks: int, at_rank: int, step: int = 1, **settings: str):
        program = compiled(mpi, folder, "faults", ["faults.cpp"], "-rdynamic")
        env = environment(drop_in, XDG_RUNTIME_DIR=str(folder), **settings)
        found = rows(launched(mpi, ranks, [str(program), name, str(at_rank), str(step)], env, 40))
        assert [row["wrong"] for row in found] == [0] * ranks, found

    return run


@pytest.mark.parametrize("name", LACKING)
def test_one_rank_lacks_what_plait_needs(run_faults, name):
    run_faults(name, 2, 0 if name == "listen" else 1)


@pytest.mark.parametrize("at_rank", [0, 1])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_a_step_of_a_set_up_fails_on_one_rank_alone(run_faults, step, at_rank):
    run_faults("vote", 2, at_rank, step)
    if step < 3:
        run_faults("choice", 3, at_rank, step)


@pytest.mark.parametrize("step", [1, 2])
def test_a_question_who_uses_gpus_fails_on_one_rank_alone(run_faults, emulated_gpu, step):
    run_faults("vote", 2, 1, step, TEST_LIBCUDA=emulated_gpu)


@pytest.mark.parametrize(("name", "step"), [("split", 1), ("vote", 1), ("vote", 2)])
def test_a_step_over_several_nodes_fails_on_one_rank_alone(run_faults, name, step):
    run_faults(name, 4, 3, step, PLAIT_NODE_SIZE="2")


def test_one_rank_lacks_host_memory_for_device_memory(run_faults, emulated_gpu):
    run_faults("staged_device", 2, 1, TEST_LIBCUDA=emulated_gpu)


@pytest.mark.parametrize(("name", "at_rank"), [("listen", 2), ("connect", 3), ("grow", 3)])
def test_one_rank_of_several_nodes_lacks_what_plait_needs(run_faults, name, at_rank):
    run_faults(name, 4, at_rank, PLAIT_NODE_SIZE="2")


# Worlds of different sizes, and worlds that serve different calls.
SPAWNED = {
    "1 parent, 2 children": (1, 2, ""),
    "2 parents, 1 child": (2, 1, ""),
    "children that serve other calls": (2, 2, "PLAIT_OPS=broadcast"),
    "children that serve nothing": (2, 2, "PLAIT_DISABLE=1"),
}


@pytest.mark.parametrize("on_gpus", [False, True], ids=["host", "gpus"])
@pytest.mark.parametrize("case", SPAWNED)
def test_ranks_of_two_worlds_in_one_communicator(mpi, drop_in, folder, emulated_gpu, case, on_gpus):
    parents, children, setting = SPAWNED[case]
    program = compiled(mpi, folder, "spawned", ["spawned.cpp"])
    command = [str(program), str(children), *([setting] if setting else [])]
    gpu = {"TEST_LIBCUDA": emulated_gpu} if on_gpus else {}
    found = rows(launched(mpi, parents, command, environment(drop_in, **gpu), 40))
    assert [row["wrong"] for row in found] == [0] * (parents + children), found
    for row in found:  # sums of a single world; a world of a single rank has none
        serves = (parents, children)[row["child"]] > 1 and not (row["child"] and setting)
        assert row["served"] == (4 if serves else 0), found


def test_a_killed_rank_ends_the_job(run_case):
    assert run_case("killed", limit_s=30).returncode != 0


def emulated_nodes(mpi, kind: str) -> dict[str, str]:
    """Two nodes of four ranks: emulated by plait, or by MPICH (odd and even ranks)."""
    if kind == "plait's":
        return {"PLAIT_NODE_SIZE": "2"}
    if "mpich" not in mpi.name:
        pytest.skip("only MPICH emulates several nodes without a network")
    return {"MPIR_CVAR_NUM_CLIQUES": "2"}


@pytest.mark.parametrize("kind", ["plait's", "the MPI's"])
@pytest.mark.parametrize("name", ["nodes", "nodes_progress", "nodes_many"])
def test_case_over_nodes(mpi, run_case, kind, name):
    found = rows(run_case(name, 4, **emulated_nodes(mpi, kind)))
    assert len(found) == 4 and all(row["wrong"] == 0 and row["served"] > 0 for row in found)


@pytest.mark.parametrize(("ranks", "seed"), [(4, 9), (5, 10)])
@pytest.mark.parametrize("kind", ["plait's", "the MPI's"])
def test_random_calls_over_nodes(mpi, drop_in, folder, kind, ranks, seed):
    program = compiled(mpi, folder, "mixes", MIXES)
    command = [str(program), str(seed), str(max(1, int(150 * SCALE)))]
    env = environment(drop_in, **emulated_nodes(mpi, kind))
    found = rows(launched(mpi, ranks, command, env, 120 + 2 * int(150 * SCALE)))
    assert len(found) == ranks and all(row["wrong"] == 0 for row in found), found
    assert sum(row["served"] for row in found) > sum(row["calls"] for row in found) / 8, found


def test_a_launcher_and_programs_without_mpi_run_as_they_would(mpi, drop_in):
    done = launched(mpi, 2, ["sh", "-c", "echo here"], environment(drop_in))
    assert done.returncode == 0 and done.stdout.count("here") == 2


def test_plait_run_sees_mpi(mpi, drop_in, folder):
    pytest.importorskip("plait.run")
    program = compiled(mpi, folder, "cases", ["cases.cpp"])
    command = [mpi.launcher, "-n", "2", str(program), "corners"]
    done = subprocess.run(
        plait_command("run", "--drop-in", str(drop_in), "--", *command),
        env=environment(None, PLAIT_MPI_HOST="1", PLAIT_OPS="all_reduce", PLAIT_MIN_BYTES="0"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert all(row["wrong"] == 0 and row["served"] > 0 for row in rows(done))
    assert f"via mpi ({Path(program).name} links MPI)" in done.stderr


@pytest.mark.parametrize("host", ["0", "1"])
def test_plait_profile_counts_the_mpis_calls_and_plaits(mpi, drop_in, folder, tmp_path, host):
    profile = pytest.importorskip("plait.profile")
    program = compiled(mpi, folder, "cases", ["cases.cpp"])
    command = [mpi.launcher, "-n", "2", str(program), "native_alongside"]
    options = ["--drop-in", str(drop_in), "--folder", str(tmp_path)]
    done = subprocess.run(
        plait_command("profile", *options, "--", *command),
        env=environment(None, PLAIT_MPI_HOST=host, PLAIT_OPS="all_reduce", PLAIT_MIN_BYTES="0"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    pages = profile.load(tmp_path)
    assert sorted(page["rank"] for page in pages) == [0, 1]
    found = {
        (row.collective, row.path, row.size_below): (row.calls, row.bytes)
        for row in profile.table(pages, 1.0)
    }
    # Two sums of 4 bytes, and a sum of 400,000 that starts before the communicator is attached.
    small = "plait" if host == "1" else "mpi"
    assert found == {
        ("all_reduce", small, 8): (4, 16),
        ("all_reduce", "mpi", 1 << 19): (2, 800000),
    }
    events = profile.trace(pages)["traceEvents"]
    assert sum(event["ph"] == "X" and event["dur"] > 0 for event in events) == 6


def test_fortran_calls_are_served(mpi, drop_in, folder):
    if not mpi.fortran:
        pytest.skip("this MPI has no compiler for Fortran")
    made = folder / f"sums-{mpi.name}"
    source = str(PROGRAMS / "sums.f90")
    subprocess.run([mpi.fortran, "-o", str(made), source, "-ldl"], check=True, cwd=folder)
    found = rows(launched(mpi, 2, [str(made)], environment(drop_in)))
    assert [(row["wrong"], row["served"]) for row in found] == [(0, 3)] * 2
