"""Builds and runs C and C++ programs against the installed plait: CMake, pkg-config, flags."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from plait import elf, places
from plait.commands.launch import Job, Tags, _blame_text
from plait.launch_page import LaunchPage

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LAUNCH = [sys.executable, "-m", "plait", "launch"]


def said_by(*words: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def installed() -> None:
    if not (places.cmake() / "plaitConfig.cmake").exists():
        pytest.skip("wanted plait as it is installed, found it in another layout")


def sums_of(program: Path, ranks: int) -> list[str]:
    return sorted(said_by(*LAUNCH, "-n", str(ranks), "--", program).splitlines())


def test_c_by_the_line_of_the_example(installed, tmp_path):
    where = said_by(sys.executable, "-m", "plait", "--includes", "--libdir").split()
    flags = [where[0], f"-L{where[1]}", "-lplait", f"-Wl,-rpath,{where[1]}"]
    strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    said_by("gcc", *strict, EXAMPLES / "06_sums.c", *flags, "-o", tmp_path / "sums")
    assert sums_of(tmp_path / "sums", 3) == [
        f"rank {rank} of 3: 1 + ... + 3 = 6" for rank in range(3)
    ]


def test_c_by_pkg_config(installed, tmp_path):
    if shutil.which("pkg-config") is None:
        pytest.skip("wanted pkg-config, found none")
    env = {"PKG_CONFIG_PATH": said_by(sys.executable, "-m", "plait", "--pkgconfigdir").strip()}
    flags = said_by("pkg-config", "--cflags", "--libs", "plait", env=env).split()
    said_by("gcc", "-std=c99", EXAMPLES / "06_sums.c", *flags, "-o", tmp_path / "sums")
    assert len(sums_of(tmp_path / "sums", 2)) == 2


def test_c_and_cpp_by_cmake(installed, tmp_path):
    cmake = shutil.which("cmake") or str(Path(sys.executable).parent / "cmake")
    if not Path(cmake).exists():
        pytest.skip("wanted cmake, found none")
    folder = said_by(sys.executable, "-m", "plait", "--cmakedir").strip()
    said_by(cmake, "-S", EXAMPLES / "consumer", "-B", tmp_path, f"-Dplait_DIR={folder}")
    said_by(cmake, "--build", tmp_path)
    assert len(sums_of(tmp_path / "sums", 2)) == 2
    said = said_by(*LAUNCH, "-n", "4", "--", tmp_path / "strategy")
    assert "chain(chunks=16): " in said and "proved" in said and "hgx-h200: " in said
    assert sorted(line for line in said.splitlines() if line.startswith("rank")) == [
        f"rank {rank} of 4 has 7" for rank in range(4)
    ]


def test_libplait_shows_its_own_names_alone():
    names = elf.exported(places.libraries() / "libplait.so.0")
    # _ZN5plait..., _ZNK5plait..., and the run-time types of plait's classes.
    foreign = [name for name in names if not name.startswith("plait") and "5plait" not in name]
    assert foreign == [] and len(names) > 100


def test_launch_ends_as_its_first_failing_rank_does(tmp_path):
    one_fails = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)"
    words = [*LAUNCH, "-n", "3", "--", sys.executable, "-c", one_fails]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    rest = r"ranks 0 and 2 still ran \d+\.\d s later and were killed"
    assert re.fullmatch(rf"plait: rank 1 ended with 7; {rest}\n", done.stderr), done
    assert done.returncode == 7
    done = subprocess.run([*LAUNCH, "--", "/no/such"], capture_output=True, text=True, timeout=50)
    assert done.returncode == 127 and "cannot run /no/such" in done.stderr


def test_launch_blames_no_rank_that_lost_another(tmp_path):
    """Survivors may end before the lost rank, whose interpreter still shuts down."""
    program = tmp_path / "one_raises.py"
    program.write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '2':\n"
        "    time.sleep(0.5)\n"
        "sys.exit(3 if os.environ['RANK'] == '1' else 1)\n"
    )
    words = [*LAUNCH, "-n", "4", "--", sys.executable, str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    said = (
        "ranks 0, 2 and 3 ended with 1, rank 1 ended with 3",
        "rank 1 ended with 3, ranks 0, 2 and 3 ended with 1",
    )
    line = re.fullmatch(r"plait: (.*?)(; rank [013] failed first)?\n", done.stderr)
    assert line and line[1] in said, done
    assert done.returncode in (1, 3)


@pytest.mark.parametrize("status", [1, 3])
def test_launch_names_the_rank_that_failed_before_all_others(status, tmp_path):
    program = tmp_path / "one_first.py"
    program.write_text(
        "import os, pathlib, sys, time\n"
        f"ended = pathlib.Path({str(tmp_path / 'ended')!r})\n"
        "if os.environ['RANK'] == '1':\n"
        "    ended.touch()\n"
        f"    sys.exit({status})\n"
        "while not ended.exists():\n"
        "    time.sleep(0.01)\n"
        "time.sleep(3)\n"
        "sys.exit(1)\n"
    )
    words = [*LAUNCH, "-n", "4", "--", sys.executable, str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    statuses = {
        1: "ranks 0 to 3 ended with 1",
        3: "rank 1 ended with 3, ranks 0, 2 and 3 ended with 1",
    }
    assert done.stderr == f"plait: {statuses[status]}; rank 1 failed first\n", done
    assert done.returncode == status


def test_launch_tags_whole_lines_and_names_the_rank_that_others_lost(tmp_path):
    program = tmp_path / "one_raises.py"
    program.write_text(
        "import numpy as np, plait, sys\n"
        "comm = plait.init()\n"
        "print('out', flush=True)\n"
        "if comm.rank == 2:\n"
        "    sys.exit('no more')\n"
        "comm.all_reduce(np.ones(8, np.float32))\n"
    )
    words = [*LAUNCH, "--tag", "-n", "4", "--", sys.executable, str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] out" for rank in range(4)]
    *lines, last = done.stderr.splitlines()
    assert last == "plait: rank 2 ended with 1 by itself, and ranks 0, 1 and 3 lost it"
    assert all(re.match(r"\[[0-3]\] ", line) for line in lines), done.stderr
    assert "[2] no more" in lines and done.returncode == 1


def test_tagged_lines_wait_for_a_slow_reader():
    words = [*LAUNCH, "--tag", "-n", "2", "--", "seq", "1", "9000"]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert job.stdout is not None
    time.sleep(3)  # the pipe is full meanwhile, and the ranks have ended
    assert len(job.stdout.read().splitlines()) == 18000
    assert job.wait(60) == 0


def test_the_last_lines_of_ranks_come_though_their_readers_are_slow(monkeypatch, capfd):
    pass_on = Tags._pass_on

    def pass_on_late(*of_rank):
        time.sleep(2)
        pass_on(*of_rank)

    monkeypatch.setattr(Tags, "_pass_on", pass_on_late)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    rank, tags = subprocess.Popen(["sh", "-c", "echo out; echo err >&2"], **pipes), Tags()
    tags.add(3, rank)
    rank.wait()
    tags.close()
    assert tuple(capfd.readouterr()) == ("[3] out\n", "[3] err\n")


@pytest.mark.parametrize("status", [0, 7])
def test_lines_that_the_disk_does_not_take_are_an_error(status):
    words = [*LAUNCH, "--tag", "-n", "2", "--", "sh", "-c", f"seq 1 90000; exit {status}"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=50)
    said = "plait: --tag: cannot write the ranks' lines: No space left on device"
    assert done.stderr.splitlines()[-1] == said and done.returncode == (status or 1), done


@pytest.mark.parametrize("options", [[], ["--tag"]])
@pytest.mark.parametrize("handles", [False, True])
def test_an_interrupt_ends_launched_ranks(options, handles):
    """Also ranks that do not end by themselves."""
    program = "import signal, time\n"
    program += "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if handles else ""
    program += "print('up', flush=True)\nprint('and on', flush=True)\ntime.sleep(60)\n"
    words = [*LAUNCH, *options, "-n", "2", "--", sys.executable, "-c", program]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    job = subprocess.Popen(words, start_new_session=True, **pipes)
    for _ in range(4):
        job.stdout.readline()
    os.killpg(job.pid, signal.SIGINT)
    before = time.monotonic()
    said = job.communicate(timeout=50)[1]
    assert time.monotonic() < before + 10
    assert job.returncode == 130 and said.splitlines()[-1] == "plait: interrupted"
    killed = r"plait: ranks 0 and 1 still ran \d\.\d s later and were killed \(--grace\)\n"
    assert bool(re.search(killed, said)) == handles, said


def test_an_interrupt_amid_the_start_leaves_ranks_their_time():
    """Ranks end by themselves, also if the launcher has not started all ranks yet."""
    program = "trap 'sleep 1; echo saved; exit' INT; echo up; while :; do sleep 0.05; done"
    words = [*LAUNCH, "--grace", "30", "-n", "16", "--", "sh", "-c", program]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    job = subprocess.Popen(words, start_new_session=True, **pipes)
    lines = [job.stdout.readline()]
    os.killpg(job.pid, signal.SIGINT)
    rest, said = job.communicate(timeout=50)
    lines += rest.splitlines(keepends=True)
    assert lines.count("saved\n") >= lines.count("up\n") >= 1, lines
    assert job.returncode == 130 and said.splitlines()[-1] == "plait: interrupted", said


def test_sigterm_amid_the_start_is_the_launchers_status():
    """Ranks that end with 0 are no success of a job that has not started all ranks."""
    program = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"
    words = [*LAUNCH, "-n", "16", "--", "sh", "-c", program]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    job.stdout.readline()
    job.terminate()
    out, said = job.communicate(timeout=50)
    is_part = 1 + out.count("up") < 16
    assert job.returncode == (143 if is_part else 0), (out, said)
    if is_part:
        assert said == "plait: ended by SIGTERM sent to the launcher\n"


ONE_OF_FOUR = {
    "raise ValueError('wrong')": "rank 2 ended with 1 by itself, and ranks 0, 1 and 3 lost it",
    "os.kill(os.getpid(), 9)": "rank 2 was killed by SIGKILL, and ranks 0, 1 and 3 lost it",
}


@pytest.mark.parametrize("end", ONE_OF_FOUR)
def test_launch_names_the_rank_that_others_lost_without_tags(end, tmp_path):
    program = tmp_path / "one_fails.py"
    program.write_text(
        "import numpy as np, os, plait\n"
        "comm = plait.init()\n"
        f"if comm.rank == 2: {end}\n"
        "comm.all_reduce(np.ones(8, np.float32))\n"
    )
    words = [*LAUNCH, "-n", "4", "--", sys.executable, str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert done.stderr.splitlines()[-1] == f"plait: {ONE_OF_FOUR[end]}", done.stderr


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("status", [0, 3])
def test_ranks_do_not_wait_for_a_rank_that_ended_before_it_joined(gone, status, tmp_path):
    program = tmp_path / "one_leaves.py"
    program.write_text(
        "import os, sys, time\n"
        f"up = {str(tmp_path)!r} + '/up'\n"
        f"if os.environ['RANK'] == '{gone}':\n"
        "    while sum(os.path.exists(f'{up}{rank}') for rank in range(3)) < 2:\n"
        "        time.sleep(0.02)\n"
        f"    sys.exit({status})\n"
        "import plait\n"
        "open(up + os.environ['RANK'], 'w').close()\n"
        "try:\n"
        "    plait.init()\n"
        "except plait.PeerLostError as error:\n"
        "    sys.exit(f'lost: {error}')\n"
    )
    words = [*LAUNCH, "-n", "3", "--", sys.executable, str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)  # arrive_s is 600
    why = f"rank {gone} ended with status {status} before it had joined"
    assert done.stderr.count(why) == 2, done.stderr
    rest = "ranks 1 and 2" if gone == 0 else "ranks 0 and 2"
    last = {
        0: f"{rest} ended with 1 after rank {gone} had ended with 0",
        3: f"rank {gone} ended with 3 by itself, and {rest} lost it",
    }
    assert done.stderr.splitlines()[-1] == f"plait: {last[status]}"
    assert done.returncode == (status or 1)


# Ranks named first end; the others end when the launcher has taken the status of each.
END_IN_TURN = """
import os, signal, sys, time
from pathlib import Path
folder, first = Path(sys.argv[1]), sys.argv[2].split(",")
if os.environ["RANK"] in first:
    written = folder / f"writes-{os.getpid()}"
    written.write_text(f"{os.getpid()}")
    written.rename(folder / os.environ["RANK"])
    END
for rank in first:
    while not (folder / rank).exists():
        time.sleep(0.01)
    while Path("/proc", (folder / rank).read_text()).exists():
        time.sleep(0.01)
sys.exit(1)
"""
SEGMENT_FAULT = "os.kill(os.getpid(), signal.SIGSEGV)"


class ScriptedRank:
    """A process whose polls return these statuses; the last one repeats."""

    def __init__(self, *polls: int | None) -> None:
        self._polls = list(polls)
        self.returncode, self.pid = self._polls[-1], 0

    def poll(self) -> int | None:
        return self._polls.pop(0) if len(self._polls) > 1 else self._polls[0]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([(0,), (7,), (0,)], "rank 1 ended with 7"),  # all have ended at the first look
        ([(None, 7), (0,), (0,)], "rank 0 ended with 7"),  # rank 0 ended beside the others
        ([(None, None, 7), (0,), (0,)], "rank 0 ended with 7 after ranks 1 and 2 had ended with 0"),
        ([(None, None, 7), (0,), (None, None, 0)], "rank 0 ended with 7"),
    ],
)
def test_launch_says_nothing_of_an_order_that_is_not_known(ranks, said):
    page = LaunchPage(len(ranks))
    started = [ScriptedRank(*polls) for polls in ranks]
    keeper = SimpleNamespace(pid=0)
    job = Job(started, keeper, [], 0.0, page)  # type: ignore[arg-type]
    while job._look():
        pass
    assert _blame_text(job, set()) == said


@pytest.mark.parametrize(
    ("first", "end", "said"),
    [
        ("1", SEGMENT_FAULT, "rank 1 was ended by SIGSEGV, and ranks 0 and 2 lost it"),
        ("1", "sys.exit(0)", "ranks 0 and 2 ended with 1 after rank 1 had ended with 0"),
        ("1,2", "sys.exit(0)", "rank 0 ended with 1 after ranks 1 and 2 had ended with 0"),
    ],
)
def test_launch_names_the_rank_that_ended_first_where_statuses_tell(first, end, said, tmp_path):
    program = END_IN_TURN.replace("END", end)
    words = [*LAUNCH, "-n", "3", "--", sys.executable, "-c", program, str(tmp_path), first]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert done.stderr.splitlines()[-1] == f"plait: {said}"


CHILD_IGNORES = r"""
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", (
    "import os, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    "os.write(1, b'up\\n'); time.sleep(60)")])
os.write(1, b"%d\n" % child.pid)
child.wait()
"""


def test_an_interrupt_ends_children_that_ignore_it():
    words = [*LAUNCH, "-n", "2", "--", sys.executable, "-c", CHILD_IGNORES]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    job = subprocess.Popen(words, start_new_session=True, **pipes)
    lines = [job.stdout.readline().strip() for _ in range(4)]
    children = [int(line) for line in lines if line != "up"]
    assert len(children) == 2, lines
    os.killpg(job.pid, signal.SIGINT)
    job.communicate(timeout=50)
    assert job.returncode == 130
    for pid in children:
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


COUNTS = r"""
import os, signal, sys, time
heard = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: heard.append(number))
os.write(1, b"up\n")
end = time.monotonic() + 30
while not heard and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.4)
os.write(1, b"%s\n" % b" ".join(b"%d" % number for number in heard))
"""


@pytest.mark.parametrize("whom", ["launcher", "group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_each_rank_once(number, whom):
    """Whether it comes to the launcher alone or, as from a terminal, to the whole group."""
    words = [*LAUNCH, "--grace", "20", "-n", "2", "--", sys.executable, "-c", COUNTS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    job = subprocess.Popen(words, start_new_session=True, **pipes)
    assert [job.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    (os.killpg if whom == "group" else os.kill)(job.pid, number)
    said, told = job.communicate(timeout=50)
    assert said.split() == [str(int(number))] * 2, told
    assert job.returncode == (130 if number == signal.SIGINT else 0)


@pytest.mark.parametrize("ignores", [False, True])
def test_a_signal_to_the_launcher_is_blamed_on_no_rank(ignores):
    program = "import os, signal, time\n"
    program += "if os.environ['RANK'] == '1': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    program = program if ignores else "import os, time\n"
    program += "os.write(1, b'up\\n')\ntime.sleep(60)\n"
    words = [*LAUNCH, "-n", "2", "--", sys.executable, "-c", program]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert [job.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    job.terminate()
    told = job.communicate(timeout=50)[1]
    killed = r"; rank 1 still ran \d+\.\d s later and was killed" if ignores else ""
    assert re.fullmatch(rf"plait: ended by SIGTERM sent to the launcher{killed}\n", told), told
    assert job.returncode == 143


def test_a_grace_out_of_range_is_refused():
    words = [*LAUNCH, "--grace", "-1", "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert done.returncode == 2 and "--grace: wanted 0 to 3600 seconds, found -1" in done.stderr


def test_launched_ranks_meet_as_often_as_they_like(tmp_path):
    program = tmp_path / "twice.py"
    program.write_text(
        "import numpy as np, plait\n"
        "for _ in range(2):\n"
        "    comm = plait.init()\n"
        "    print(comm.all_reduce(np.ones(2, np.float32)).tolist(), flush=True)\n"
    )
    said = said_by(*LAUNCH, "-n", "3", "--", sys.executable, program)
    assert said.count("[3.0, 3.0]") == 6  # lines of ranks may mix
