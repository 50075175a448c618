"""`python -m bench`: every measurement of plait, a subcommand each, in a checkout.

This file has the options of all subcommands. A subcommand imports its body (bench/programs) when it
runs, so that --help needs neither torch nor a GPU. Programs of several GPUs run under torchrun:
torchrun --nproc-per-node 2 -m bench ddp. Figures go to standard output, and with --csv to a file.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NoReturn

from typer import Argument, BadParameter, Exit, Option, Typer

ROOT = str(Path(__file__).resolve().parents[1])
if not __package__:  # python .../bench: the folder's own modules are no top-level ones
    sys.path[0] = ROOT

app = Typer(
    help="Measures plait: CPU ranks, MPI, PyTorch, GPUs; and makes tables of the rows.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"terminal_width": 100},
    pretty_exceptions_enable=False,
)


def one_of(*known: str) -> Callable[[str], str]:
    """Returns a callback that refuses other words."""

    def checked(word: str) -> str:
        if word not in known:
            raise BadParameter(f"wanted {', '.join(known)}, found {word}")
        return word

    return checked


Ranks = Annotated[int, Option("--ranks", "-n", min=1, help="A process each.")]
Gpus = Annotated[int, Option(min=1, help="Ranks, a GPU each.")]
Seed = Annotated[int, Option(help="Of the random choices.")]
Host = Annotated[bool, Option("--host", help="Host memory, no GPU.")]
Csv = Annotated[Path | None, Option(metavar="FILE", help="Write the rows here.")]
Rounds = Annotated[int, Option(min=1, help="The median counts.")]
Turns = Annotated[int, Option(min=1, help="The median counts.")]
Least = Annotated[str, Option(help="Smallest message, as in 8, 64K or 1G.")]
Most = Annotated[str, Option(help="Largest message.")]
Factor = Annotated[int, Option(min=2, help="From a size to the next.")]
MostMib = Annotated[float, Option(help="Largest message, MiB.")]
BudgetS = Annotated[float, Option(help="Seconds after which no row begins.")]
Deadline = Annotated[float, Option(help="Seconds until ranks are killed.")]
Batches = Annotated[str, Option(help="Batch sizes by commas.")]
Steps = Annotated[int, Option(min=1)]
Cpu = Annotated[bool, Option("--cpu", help="On host memory.")]
Backend = Annotated[str, Option(help="Of torch.distributed; default: gloo on hosts, else nccl.")]
Variant = Annotated[str, Option(help="A name for the lines.")]
Write = Annotated[bool, Option("--write", help="Write the file in the repository.")]
DropIn = Annotated[Path, Option(help="libplait_nccl.so")]
Folder = Annotated[Path, Option(metavar="FOLDER", help="For rows and logs.")]
Build = Annotated[Path, Option(metavar="FOLDER", help="Of the programs in C++.")]
Commit = Annotated[
    str,
    Option(help="Of the build, in rows; default: of the staged package, else of the checkout."),
]
Dry = Annotated[bool, Option("--dry", help="No GPU: print the commands.")]
StepNames = Annotated[list[str], Argument(metavar="STEP...", help="all = each of them.")]
NcclTests = Annotated[str, Option(metavar="FOLDER", help="Of all_reduce_perf, ...")]
NcclOptions = Annotated[str, Option(help="Of every program of nccl-tests.")]
NCCL_TESTS = "-b 1K -e 256M -f 4 -c 1 -n 20 -w 5 -N 3"


def program(options: Callable[..., None]) -> None:
    """Adds a subcommand. It calls run(given) of bench/programs with the function's options as
    attributes of `given`, and returns its status."""

    @functools.wraps(options)
    def command(**given: Any) -> NoReturn:
        name = "gpu_run" if options.__name__ == "run" else options.__name__
        body = importlib.import_module(f"bench.programs.{name}")
        raise Exit(body.run(SimpleNamespace(**given)) or 0)

    app.command()(command)


# --- CPU ranks.


@program
def host_calls(
    ranks: Ranks = 2,
    pinned: Annotated[bool, Option("--pinned", help="A core for each rank.")] = False,
    turns: Turns = 41,
    csv: Csv = None,
) -> None:
    """Time the shortest C calls of CPU ranks."""


@program
def python_call(batches: Annotated[int, Option(min=1)] = 40) -> None:
    """Time an all_reduce of 8 bytes on one rank, from Python."""


@program
def host_all_reduce(
    bytes: Annotated[str, Option(help="Size of the message.")] = "64M",
    ranks: Ranks = 2,
    iters: Annotated[int, Option(min=1, help="Calls a round.")] = 10,
    rounds: Rounds = 5,
    libraries: Annotated[str, Option(help="plait first.")] = "plait,gloo,openmpi",
    realtime: Annotated[bool, Option("--realtime", help="At real-time priority; as root.")] = False,
    in_place: Annotated[bool, Option("--in-place")] = False,
    csv: Csv = None,
    role: Annotated[str, Option(hidden=True)] = "",
) -> None:
    """Time host all_reduces of plait, gloo and Open MPI in turn."""


@program
def soak(
    ranks: Ranks = 2,
    seed: Seed = 1,
    host: Host = False,
    seconds: float = 600.0,
    epoch: Annotated[float, Option(help="Seconds a communicator lives.")] = 5.0,
    most_mib: MostMib = 256.0,
    slab_mib: Annotated[
        float, Option(help="Of all inputs; 0: enough for two calls, on GPUs 2048.")
    ] = 0.0,
    stuck: Annotated[float, Option(help="Seconds without progress.")] = 60.0,
    break_results: Annotated[bool, Option("--break", help="Spoil results, to find them.")] = False,
    no_kernels: Annotated[bool, Option("--no-kernels", help="plait chooses every engine.")] = False,
    verbose: Annotated[bool, Option("--verbose", help="Rank 0's counts as they come.")] = False,
) -> None:
    """Run random collectives for minutes, check every bit, count leaks."""


@program
def kills(
    ranks: Ranks = 2,
    seed: Seed = 1,
    host: Host = False,
    rounds: Annotated[int, Option(min=1)] = 20,
    limit: Annotated[float, Option(help="Seconds until all must know.")] = 2.0,
    deadline: Deadline = 60.0,
    csv: Csv = None,
) -> None:
    """Kill ranks in the middle of collectives; time the survivors' errors."""


@program
def accuracy(
    ranks: Ranks = 2,
    seed: Seed = 1,
    host: Host = False,
    most_mib: MostMib = 64.0,
    least_kib: float = 64.0,
    deadline: Deadline = 300.0,
    csv: Csv = None,
) -> None:
    """Compare errors of 16-bit sums by NCCL and plait; plait's bits stay."""


# --- MPI.


@program
def mpi_osu(
    programs: Annotated[Path, Option(metavar="FOLDER", help="Of osu_bw, osu_allreduce, ...")],
    only: Annotated[str, Option(help="Programs by commas: latency,allreduce")] = "",
    ranks: Ranks = 2,
    device: Annotated[bool, Option("--device", help="Buffers of CUDA.")] = False,
    goals: Annotated[bool, Option("--goals", help="Of two H200.")] = False,
    least: Least = "8",
    most: Most = "4M",
    rounds: Annotated[int, Option(help="OSU's iterations.")] = 20,
    turns: Turns = 3,
    limit_s: float = 120,
    mpirun: str = "mpirun",
    mpirun_options: str = "--oversubscribe --bind-to none",
    run: Annotated[str, Option(help="plait's launcher.")] = f"{sys.executable} -m plait run",
    csv: Csv = None,
) -> None:
    """Run OSU's micro-benchmarks with and without the drop-in under MPI."""


@program
def nodes(mib: Annotated[int, Option(min=1)] = 64, turns: Turns = 5, csv: Csv = None) -> None:
    """Time all_reduces over nodes by pieces; in every rank of an MPI job."""


# --- PyTorch.


@program
def torch_backend(
    ranks: Annotated[str, Option(help="By commas.")] = "2,4",
    load: Annotated[str, Option(help="Busy processes, by commas.")] = "0,2,6,12",
    bytes: Annotated[str, Option(help="Sizes by commas.")] = "8,4K,64K,1M,64M",
    calls: Annotated[str, Option(help="By commas; default: all.")] = "",
    bound: Annotated[
        str, Option(help="A core a rank: yes, no or both.", callback=one_of("yes", "no", "both"))
    ] = "both",
    csv: Csv = None,
) -> None:
    """Time PyTorch's collectives on host memory over plait and gloo."""


@program
def ddp(
    models: str = "resnet50,resnet152,densenet201,vgg16,transformer",
    batches: Batches = "8,32,64",
    steps: Annotated[int, Option(min=1, help="A round.")] = 3,
    rounds: Rounds = 9,
    warmup: int = 4,
    wrap: Annotated[str, Option(help="ddp or fsdp.", callback=one_of("ddp", "fsdp"))] = "ddp",
) -> None:
    """Time data-parallel training, NCCL and plait in turn; under torchrun."""


@program
def decode(
    hidden: Annotated[str, Option(help="Sizes by commas.")] = "4096,8192",
    layers: int = 32,
    batches: Batches = "1,8,64",
    replays: Annotated[int, Option(min=1, help="A round.")] = 20,
    rounds: Rounds = 5,
) -> None:
    """Time tensor-parallel decoding, NCCL and plait in turn; under torchrun."""


@program
def hf_decode(
    model: Annotated[
        str, Option(help="tiny, 1b, 8b or 70b.", callback=one_of("tiny", "1b", "8b", "70b"))
    ] = "8b",
    batches: Batches = "1,3,8,64",
    prompt: Annotated[int, Option(help="Tokens.")] = 128,
    steps: Steps = 128,
    cpu: Cpu = False,
    eager: Annotated[bool, Option("--eager", help="No CUDA graph.")] = False,
    backend: Backend = "",
    variant: Variant = "",
) -> None:
    """Time decoding by a Llama of transformers; under torchrun."""


@program
def train_twice(
    steps: Steps = 50, cpu: Cpu = False, backend: Backend = "", variant: Variant = ""
) -> None:
    """Train by DDP and FSDP2 from one seed, and print a hash; under torchrun."""


@program
def memory(
    groups: Annotated[int, Option(min=1)] = 10,
    large_mib: Annotated[int, Option(min=1, help="Of the large calls, MiB.")] = 256,
    csv: Csv = None,
) -> None:
    """Measure memory and set-up of communicators by stage; under torchrun."""


@program
def factors(
    rounds: Annotated[int, Option(min=1, help="Samples a variant and size.")] = 9,
    type: Annotated[
        str, Option(help="fp32, bf16 or fp16.", callback=one_of("fp32", "bf16", "fp16"))
    ] = "fp32",
    csv: Csv = None,
) -> None:
    """Time pre-multiplied sums of both libraries, and compare bits; under torchrun."""


# --- GPUs.


@program
def run(
    gpus: Gpus,
    out: Annotated[
        Path | None, Option(metavar="FOLDER", help="An empty one; --dry makes its own.")
    ] = None,
    build: Build = Path("build/run"),
    budget_s: Annotated[float, Option(help="Seconds; 0: nine minutes, less start and tables.")] = 0,
    most_mib: Annotated[int, Option(help="Largest message, MiB.")] = 4096,
    only: Annotated[str, Option(help="Steps by commas.")] = "",
    machine: Annotated[str, Option(help="In file names; default: h200xGPUS.")] = "",
    commit: Commit = "",
    one_gpu: Annotated[bool, Option("--one-gpu", help="What one GPU can run.")] = False,
    large: Annotated[
        bool, Option("--large", help="Large messages, shares and rotations; a tuning file.")
    ] = False,
    dry: Dry = False,
) -> None:
    """Run all measurements of schedules on the GPUs of a machine."""


@program
def section(
    section: Annotated[str, Argument(help="table, schedules, slots, ...")] = "",
    csv: Annotated[Path, Option(metavar="FILE", help="Write the rows here.")] = ...,
    ranks: Ranks = 2,
    seed: Seed = 1,
    host: Annotated[bool, Option("--host", help="CPU ranks, plait alone: a try.")] = False,
    trials: Annotated[
        Path | None,
        Option(metavar="FILE", help="Lines: all_gather fp32 64M,1G chosen tiled:order=2"),
    ] = None,
    overlap_compute: Annotated[
        bool, Option("--overlap-compute", "--beside-computing", help="Leave SMs to others.")
    ] = False,
    budget_s: BudgetS = 120.0,
    most_mib: Annotated[int, Option(help="Largest message, MiB.")] = 4096,
    without_nccl: Annotated[bool, Option("--without-nccl")] = False,
    commit: Annotated[str, Option(help="Of the build.")] = "unknown",
) -> None:
    """Time the calls of one section of a run, by plait and NCCL."""


@program
def symmetric(
    most_mib: Annotated[int, Option(help="Largest message, MiB.")] = 64,
    budget_s: BudgetS = 1e9,
    csv: Csv = None,
) -> None:
    """Compare all_reduces with PyTorch's symmetric memory; under torchrun."""


@program
def rms_norm(
    hidden: Annotated[str, Option(help="Elements of a row, by commas.")] = "4096,8192",
    tokens: Annotated[str, Option(help="Rows, by commas.")] = "1,4,16,32,64,128,256,512",
    calls: Annotated[int, Option(min=1, help="Calls of a graph.")] = 20,
    rounds: Rounds = 7,
    budget_s: BudgetS = 100.0,
    csv: Csv = None,
) -> None:
    """Time sum, residual and norm in one call, beside separate calls; under torchrun."""


@program
def overlap(
    size: Annotated[int, Option(help="Of the matrices.")] = 8192,
    mib: Annotated[int, Option(help="Of a call.")] = 256,
    products: int = 40,
    rounds: Rounds = 5,
    collective: Annotated[
        str,
        Option(help="all_reduce or all_gather.", callback=one_of("all_reduce", "all_gather")),
    ] = "all_reduce",
    csv: Annotated[Path | None, Option(metavar="FILE", help="Rows are added to it.")] = None,
) -> None:
    """Measure how calls slow matrix products; under torchrun."""


@program
def under_load(
    pair: Annotated[str, Option(help="Of copies.")] = "0:1",
    both_ways: Annotated[bool, Option("--both-ways", help="Of copies.")] = False,
    sizes: Annotated[str, Option(help="By commas.")] = "256M,1G",
    seconds: Annotated[str, Option(help="Before, during and after.")] = "2,6,4",
    csv: Csv = None,
    load: Annotated[str, Option(hidden=True)] = "",
) -> None:
    """Time large calls while PCIe is busy; all_reduces under torchrun, else plait.copy."""


@program
def through_host(
    ranks: Ranks = 2,
    collectives: Annotated[str, Option(help="By commas.")] = (
        "all_reduce,all_gather,reduce_scatter,broadcast,reduce,all_to_all,send_recv"
    ),
    types: Annotated[str, Option(help="By commas.")] = "fp32",
    bytes: Annotated[str, Option(help="Sizes by commas; default: those with a goal.")] = "",
    engines: Annotated[
        str, Option(help='Timed beside plait\'s choice: "copy_exchange tiled:blocks=16,window=4".')
    ] = "",
    row_s: Annotated[float, Option(help="Seconds of a row's calls, eager and in graphs.")] = 0.35,
    seed: Seed = 1,
    csv: Csv = None,
) -> None:
    """Time plait and NCCL through host memory, with NCCL_P2P_DISABLE=1."""


@program
def old_and_new(
    old: Annotated[Path | None, Argument(help="A folder of `stage`.")] = None,
    new: Annotated[Path | None, Argument()] = None,
    gpus: Gpus = 2,
    variants: Annotated[str, Option(help="native, under-nccl, or both.")] = "native",
    collectives: str = "all_reduce,all_gather,reduce_scatter",
    least: Least = "1K",
    most: Most = "1G",
    factor: Factor = 4,
    rounds: Rounds = 3,
    limit: Annotated[float, Option(help="Seconds of a build's one run.")] = 240.0,
    bar: Annotated[float, Option(help="What the new build may lose.")] = 0.02,
    csv: Csv = None,
) -> None:
    """Time two builds in turn: native and under NCCL."""


@program
def forwarding(
    sizes: Annotated[str, Option(help="By commas.")] = "4K,64K",
    rounds: Rounds = 150,
    csv: Csv = None,
) -> None:
    """Time calls that the drop-in forwards to NCCL; under torchrun."""


@program
def nccl_tests(
    programs: NcclTests,
    drop_in: Annotated[str, Option(help="libplait_nccl.so")],
    lanes: Annotated[str, Option(help="GPUs side by side: 0,1/2,3")] = "0,1",
    only: Annotated[str, Option(help="Programs by commas.")] = "",
    modes: Annotated[str, Option(help="processes, threads, one_thread.")] = "threads",
    mpiexec: str = "mpiexec",
    repeat: Annotated[int, Option(min=1, help="Runs of each program.")] = 2,
    options: NcclOptions = NCCL_TESTS,
    limit: Annotated[float, Option(help="Seconds a run.")] = 60,
    seconds: Annotated[float, Option(help="No run starts after these.")] = 1e9,
    csv: Csv = None,
) -> None:
    """Run nccl-tests with and without the drop-in, in turn."""


@program
def drop_in(
    steps: Annotated[list[str], Argument(metavar="STEP...", help="checks, training, ...")],
    drop_in: DropIn,
    gpus: Gpus = 2,
    out: Folder = Path("results"),
    commit: Commit = "",
    batches: Batches = "8,32,64",
    training: Annotated[str, Option(help="Of ddp.")] = "--steps 3 --rounds 9 --warmup 3",
    programs: NcclTests = "",
    mpiexec: str = "mpiexec",
    options: NcclOptions = NCCL_TESTS,
    seconds: Annotated[float, Option(help="For nccl-tests.")] = 200,
    tail: Annotated[int, Option(help="Characters of a failed job's output.")] = 1500,
    dry: Dry = False,
) -> None:
    """Run all programs that show the drop-in under NCCL."""


@program
def evidence(
    steps: StepNames,
    gpus: Gpus,
    build: Build = Path("build/run"),
    out: Folder = Path("bench/results"),
    soak_s: float = 600.0,
    kill_rounds: int = 20,
    seed: Seed = 1,
    dry: Dry = False,
) -> None:
    """Run the checks of GPUs other than speed."""


@program
def same_bits(
    steps: StepNames,
    gpus: Gpus,
    out: Folder = Path("bench/results"),
    model: Annotated[str, Option(help="Of decode.")] = "8b",
    batches: Batches = "1,3,8,64",
    steps_of: Annotated[int, Option("--steps", help="0: 128 of decode, 50 of train.")] = 0,
    limit_s: Annotated[float, Option(help="Seconds a job.")] = 300.0,
    dry: Dry = False,
) -> None:
    """Compare plait's same bits with NCCL as serving programs pin it."""


@program
def stage(
    build: Annotated[Path, Argument()],
    site: Annotated[Path | None, Option(help="Packages that the machine lacks.")] = None,
    run: Annotated[Path, Option(help="The folder to make.")] = Path("build/run"),
) -> None:
    """Collect the files that a run needs on a machine with GPUs."""


@program
def first_start(
    ranks: Ranks = 2,
    alone: Annotated[bool, Option("--alone", help="Communicators of plait, no NCCL.")] = False,
    through_host: Annotated[
        bool, Option("--through-host", help="Both libraries with NCCL_P2P_DISABLE=1.")
    ] = False,
    build: Build = Path("build/run"),
    csv: Csv = None,
    log: Annotated[Path | None, Option(help="Keeps the first start's lines.")] = None,
) -> None:
    """Compare what a first start measures with the hidden shipped table."""


# --- Rows, tables and pages.


@program
def tables(
    folder: Annotated[Path, Argument(help="Of a run.")], gpus: Gpus, write: Write = False
) -> None:
    """Print the tables and goals of a run; --write: rows and choices too."""


@program
def predictions(
    write: Write = False,
    compare: Annotated[Path | None, Option(metavar="FOLDER", help="Of a run.")] = None,
    gpus: Gpus = 8,
    large: Annotated[bool, Option("--large", help="Write those of `run --large`.")] = False,
) -> None:
    """Write the simulator's predictions for a run, or compare them with one."""


@program
def engine_rows(
    folder: Annotated[Path | None, Argument(help="Of a run.")] = None, write: Write = False
) -> None:
    """Add a run's times of engines to bench/results/engines.csv."""


@program
def fit_prices(write: Write = False) -> None:
    """Fit the simulator's prices of the HGX H200 to recorded rows."""


@program
def memory_table(write: Write = False) -> None:
    """Make the table on what less device memory costs."""


@program
def notes(
    check: Annotated[bool, Option("--check", help="Name stale files, write none.")] = False,
    next: Annotated[bool, Option("--next", help="Print the next experiment's id.")] = False,
) -> None:
    """Write the State tables of the lab book (bench/notes)."""


@program
def renew(
    folder: Annotated[Path | None, Argument(help="Of a run.")] = None,
    gpus: Gpus = 8,
    docs: Annotated[bool, Option("--docs", help="Make the pages anew.")] = False,
) -> None:
    """Write a run's rows into the repository, or with --docs the pages."""


def main() -> NoReturn:
    """Runs the command line. Turns plait's errors into a line and an exit status."""
    try:
        app(prog_name="python -m bench")
    except Exception as error:
        status = getattr(error, "exit_code", None)  # of plait.Error, without an import of plait
        if status is None:
            raise
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(status)
    sys.exit(0)


if __name__ == "__main__":
    main()
