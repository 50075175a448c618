"""`plait bench`: time and check a collective over sizes and strategies, on CPU ranks or on GPUs.

Options and columns follow nccl-tests. With --against nccl (or --gpus) each rank has a GPU, and both
libraries run in the same processes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from math import prod
from typing import Annotated, Any, NoReturn

import typer

import plait
from plait import gpu, launch, outputs
from plait.bench import cpu_ranks, engines
from plait.bench import sizes as bench_sizes
from plait.commands import between
from plait.commands.console import (
    CountsOption,
    JsonOption,
    LoadOption,
    OpOption,
    TopologyOption,
    WhatArgument,
    WithoutOption,
    at_least,
    err,
    load,
    out,
    progress_bar,
)
from plait.commands.plan import proved_plan
from plait.plan_files import is_plan_file

HOST_ITERS = 20
STRATEGIES_HELP = """all, or names by commas; or by semicolons with parameters, on GPUs engines
too: tiled:blocks=16/32;direct_ll. Default: plait's choice."""
ItersOption = Annotated[
    int | None,
    typer.Option(
        "--iters",
        "-n",
        help="Most timed calls a round, not ranks (-g); default: 20, on GPUs 200, fewer for slow "
        "calls.",
        callback=at_least(1),
    ),
]
BenchRanksOption = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        "-g",
        help="How many; -n is --iters here; default: 2, or every GPU.",
        callback=at_least(1),
    ),
]
InterferenceOption = Annotated[
    bool,
    typer.Option(
        "--interference", help="With --pair: measure how relaying slows a relay GPU down."
    ),
]
SmBudgetOption = Annotated[
    int, typer.Option(help="On GPUs: most blocks of a call; 0 = default.", callback=at_least(0))
]


def _is_checked(check: int) -> int:
    """Callback that refuses other numbers than 0 and 1."""
    if check not in (0, 1):
        raise plait.InvalidArgumentError(f"--check: wanted 0 or 1, found {check}")
    return check


CheckOption = Annotated[
    int, typer.Option("--check", "-c", help="0: don't check results.", callback=_is_checked)
]


def bench(
    collective: WhatArgument,
    ranks: BenchRanksOption = None,
    first: Annotated[str, typer.Option("--min-bytes", "-b")] = "1K",
    last: Annotated[str, typer.Option("--max-bytes", "-e")] = "64M",
    step: Annotated[str, typer.Option("--step-bytes", "-i", help="Sizes grow by this.")] = "0",
    factor: Annotated[int, typer.Option("--factor", "-f")] = 2,
    iters: ItersOption = None,
    warmup: Annotated[int, typer.Option("--warmup", "-w", callback=at_least(0))] = 1,
    op: OpOption = "sum",
    counts: CountsOption = "",
    types: Annotated[str, typer.Option("--type", "-d", help="One or several: fp32,bf16")] = "fp32",
    root: Annotated[int, typer.Option("--root", "-r")] = 0,
    check: CheckOption = 1,
    strategies: Annotated[str, typer.Option(help=STRATEGIES_HELP)] = "",
    seed: Annotated[int, typer.Option(help="Of the random inputs.", callback=at_least(0))] = 1,
    topology: TopologyOption = "",
    without: WithoutOption = None,
    gpus: Annotated[bool, typer.Option("--gpus", help="Device buffers, a GPU a rank.")] = False,
    against: Annotated[str, typer.Option(help="nccl: also time NCCL on the same GPUs.")] = "",
    sm_budget: SmBudgetOption = 0,
    csv: Annotated[str, typer.Option(help="On GPUs: write the rows here.")] = "",
    plot: Annotated[str, typer.Option(help="Write a picture of busbw over size here.")] = "",
    pair: Annotated[str, typer.Option(help="copy: between these GPUs of one process: 0:1")] = "",
    shares: Annotated[str, typer.Option(help="With --pair: host=110,relay=0 (thousandths)")] = "",
    interference: InterferenceOption = False,
    loaded: LoadOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time and check a collective; under mpiexec on its ranks."""
    load(loaded)
    if against not in ("", "nccl"):
        raise plait.InvalidArgumentError(f"--against: wanted nccl, found {against!r}")
    task = {
        "launched": _is_launched(ranks, {"gpus": gpus, "against": against, "pair": pair}),
        "against": against,
        "topology": topology,
        "masks": without or [],
        "sizes": _sizes(first, last, factor, step),
        "check": bool(check),
        "seed": seed,
        "load": loaded or [],
    }
    if is_plan_file(collective):
        idle = {"gpus": gpus, "against": against, "pair": pair, "strategies": strategies}
        idle |= {"ranks": ranks, "csv": csv, "counts": counts, "sm-budget": sm_budget, "root": root}
        idle |= {"min-bytes": first != "1K", "max-bytes": last != "64M", "step-bytes": step != "0"}
        idle |= {"factor": factor != 2, "type": types != "fp32", "op": op != "sum"}
        task |= {"iters": iters or HOST_ITERS, "warmup": warmup}
        _bench_plan(collective, idle, task, plot, as_json)
        return
    if pair or shares or interference:
        idle = {"plot": plot, "strategies": strategies, "gpus": gpus, "ranks": ranks, "root": root}
        idle |= {"sm-budget": sm_budget, "warmup": warmup != 1, "type": types != "fp32"}
        _refuse("--pair goes without", idle | {"op": op != "sum", "counts": counts})
        task |= {"interference": interference, "iters": iters or HOST_ITERS}
        _bench_pair(collective, pair, shares, task, csv, as_json)
        return
    on_gpus = gpus or bool(against)
    if not on_gpus:
        _refuse("ranks on CPUs (without --gpus) go without", {"csv": csv, "sm-budget": sm_budget})
    outputs.check(csv, "--csv")
    outputs.check_picture(plot, "--plot")
    ranks = gpu_ranks(ranks, collective) if on_gpus else ranks or between.ranks_or(2)
    task |= _requested(collective, types, op, ranks, root, counts)
    task |= {"warmup": warmup, "in_place": True, "strategies": _named(strategies)}
    task["iters"] = iters if on_gpus else iters or HOST_ITERS
    if not on_gpus:
        return _bench_cpus(task, strategies, plot, as_json)
    _bench_gpus(task | {"sm_budget": sm_budget}, strategies, csv, plot, as_json)


def _is_launched(ranks: int | None, own: dict[str, object]) -> bool:
    """Returns whether to time the launcher's ranks. own: options that start ranks of their own."""
    if ranks is not None or not between.is_launched():
        return False
    if words := [f"--{name}" for name, value in own.items() if value]:
        raise plait.InvalidArgumentError(
            f"{', '.join(words)}: starts ranks of its own, and a launcher has started "
            f"{between.ranks()} here: run it without the launcher, or say --ranks"
        )
    return True


def _named(strategies: str) -> list[str]:
    """Splits 'ring,direct', or 'ring:segments=2,lanes=4;direct' with parameters."""
    by = ";" if ":" in strategies or ";" in strategies else ","
    return [name for name in strategies.split(by) if name]


def _bench_plan(
    file: str, idle: dict[str, object], task: dict[str, Any], plot: str, as_json: bool
) -> None:
    """Runs the plan of a file on CPU ranks. idle: options that the file states itself."""
    _refuse("a plan's file goes without", idle)
    plan = proved_plan(file)
    request = plan.request
    task |= _requested(request.collective, request.type, request.op, request.ranks, request.root)
    task |= {"plan": plan.to_json(), "in_place": True, "strategies": []}
    if not task["topology"] and not task["launched"]:
        task["topology"] = "local-cpu"
    _bench_cpus(task, "", plot, as_json)


def _refuse(what: str, given: dict[str, object]) -> None:
    """Raises an error for given options that have no effect."""
    if idle := [f"--{name}" for name, value in given.items() if value]:
        raise plait.InvalidArgumentError(f"{what} {', '.join(idle)}")


def _requested(
    collective: str, types: str, op: str, ranks: int, root: int, counts: str = ""
) -> dict[str, Any]:
    """Returns the requests of a task. Refuses bad names before any rank starts."""
    most = plait._core.MOST_RANKS
    if ranks > most and not between.is_launched():
        raise plait.UnsupportedError(
            f"--ranks: wanted 1 to {most}, as many as a communicator has, found {ranks}"
        )
    if not 0 <= root < ranks:
        raise plait.InvalidArgumentError(f"--root: wanted 0 to {ranks - 1}, found {root}")
    named = [
        plait.Request(collective, 0, name, op, ranks, root, min(1, ranks - 1))
        for name in types.split(",")
    ]
    bench_sizes.check_op(named[0])
    if counts:
        bench_sizes.counts_for(counts, named[0].collective, 0, ranks)
    return {
        "ranks": ranks,
        "counts": counts,
        "collective": named[0].collective,
        "types": [request.type for request in named],
        "op": named[0].op,
        "root": root,
        "peer": (root + 1) % ranks,
    }


def _bench_pair(
    collective: str, pair: str, shares: str, task: dict[str, Any], csv: str, as_json: bool
) -> None:
    """Benchmarks copies between two GPUs of this process, over every path at once."""
    from plait.bench import copies

    if plait.Request(collective, 0).collective != "copy" or not pair:
        raise plait.InvalidArgumentError(
            "--pair, --shares and --interference go together with copy: bench copy --pair 0:1"
        )
    if task["interference"]:
        _refuse("--interference goes without", {"against": task["against"]})
    outputs.check(csv, "--csv")
    task |= {"pair": copies.parse_pair(pair), "params": copies.parse_shares(shares)}
    task["sizes"] = [size for size in task["sizes"] if size > 0] or _no_sizes()
    facts: dict[str, Any] = {"plait": plait.__version__}
    rows: list[dict[str, Any]] = []
    for row in copies.bench(task):
        if "gpus" in row:
            facts |= row
        else:
            rows.append(row)
        if not as_json:
            said = copies.header(facts, task) if "gpus" in row else copies.line(row)
            out.print(said, markup=False)
    if as_json:
        print_json = {"config": task, "facts": facts, "results": rows}
        out.print(json.dumps(print_json, indent=1), markup=False)
    if csv:
        copies.write_csv(csv, facts, task, rows)
    if any(row.get("wrong", 0) or row.get("nccl_wrong", 0) for row in rows):
        raise typer.Exit(1)


def _no_sizes() -> NoReturn:
    raise plait.InvalidArgumentError(
        "wanted sizes of at least an element, and for some collectives of one for each rank, "
        "found none; see --max-bytes"
    )


def _sizes(first: str, last: str, factor: int, step: str) -> list[int]:
    limits = (bench_sizes.parse_bytes(first), bench_sizes.parse_bytes(last))
    return list(bench_sizes.sizes(*limits, factor, bench_sizes.parse_bytes(step)))


def _bench_cpus(task: dict[str, Any], strategies: str, plot: str, as_json: bool) -> None:
    known = {info.name for info in plait.strategies()} | {"all"}
    named = (name.partition(":")[0] for name in task["strategies"])
    if unknown := [name for name in named if name not in known]:
        raise plait.InvalidArgumentError(
            f"wanted strategies out of {', '.join(sorted(known))}, found {', '.join(unknown)}"
        )
    rows = (_run_launched if task["launched"] else _run_bench)(task, as_json)
    if task["launched"] and not between.is_first():
        return
    if not rows:
        raise plait.UnsupportedError(f"no strategy of {strategies!r} takes this request")
    if as_json:
        out.print(json.dumps(bench_json(task, rows), indent=1), markup=False)
    if plot:
        from plait.bench.plots import plot_bench

        plot_bench(rows, task, plot)
    wrong = sum(row["wrong"] + (row["in_place_wrong"] or 0) for row in rows)
    if wrong or not cpu_ranks.bitwise_equal(rows):
        raise typer.Exit(1)


def gpu_ranks(ranks: int | None, collective: str) -> int:
    """Returns the number of ranks with a GPU each; raises NoDeviceError if GPUs are missing."""
    found = gpu.count()
    wanted = ranks or (2 if collective == "copy" else max(found, 2))
    if found < wanted:
        why = gpu.why_none() or "each rank needs one of its own; see --ranks"
        raise plait.NoDeviceError(f"wanted {wanted} GPUs, found {found}: {why}")
    return wanted


def _bench_gpus(task: dict[str, Any], strategies: str, csv: str, plot: str, as_json: bool) -> None:
    from plait.bench import gpu_ranks as ranks_on_gpus
    from plait.bench.nccl import Nccl

    facts: dict[str, Any] = {"plait": plait.__version__}
    if task["against"]:
        facts["library"] = Nccl().path  # fails before any rank starts
    if strategies == "all":
        task["ways"] = [("", {}), *((name, {}) for name in engines.names(task["collective"]))]
    else:
        wanted = "all, or ways such as tiled:blocks=16/32;direct_ll on GPUs"
        task["ways"] = bench_sizes.parse_variants(strategies, wanted)
    # A copy goes in a single direction; send_recv of two ranks goes both ways at once.
    both = ["copy", "send_recv"] if task["collective"] == "copy" else [task["collective"]]
    task["collectives"] = both
    if not any(ranks_on_gpus.requests_of(task)):
        _no_sizes()
    rows = _gpu_rows(task, facts, as_json)
    if as_json:
        said = {"config": task, "facts": facts, "results": rows}
        out.print(json.dumps(said, indent=1), markup=False)
    else:
        out.print(gpu_end(rows), markup=False)
    if csv:
        outputs.write_csv(csv, facts, ranks_on_gpus.FIELDS, rows)
    if plot:
        from plait.bench.plots import plot_gpu_bench

        plot_gpu_bench(rows, plot)
    if any(row["plait_wrong"] or row.get("nccl_wrong", 0) for row in rows):
        raise typer.Exit(1)


def _gpu_rows(task: dict[str, Any], facts: dict[str, Any], as_json: bool) -> list[dict[str, Any]]:
    """Prints rows as they arrive, unless as_json; adds the ranks' facts to `facts`."""
    rows: list[dict[str, Any]] = []
    bar = _Bar(task, as_json)
    try:
        for row in rows_of("plait.bench.gpu_ranks:rank_main", task["ranks"], task):
            if "gpu" in row:
                facts |= row
                said = gpu_header(facts, task)
            else:
                rows.append(row)
                bar.take(row)
                said = gpu_line(row)
            if not as_json:
                out.print(said, markup=False)
    finally:
        bar.end()
    return rows


def gpu_header(facts: dict[str, Any], task: dict[str, Any]) -> str:
    """Returns the head of the table: machine, run and columns."""
    beside = f", NCCL {facts['nccl']} ({facts['library']})" if facts.get("nccl") else ""
    return (
        f"# plait {facts['plait']}{beside}, {task['ranks']} x {facts['gpu']}, CUDA driver "
        f"{facts['driver']}; us a call: medians of the slowest rank; busbw of the faster way\n"
        f"#{'size':>11} {'type':>6} {'op':>5} | {'plait us':>10} {'in graph':>10} {'busbw':>7} "
        f"{'#wrong':>6} | {'NCCL us':>10} {'in graph':>10} {'busbw':>7} {'#wrong':>6} | "
        f"{'eager x':>7} {'graph x':>7}  done by"
    )


def gpu_line(row: dict[str, Any]) -> str:
    """Returns a row as text; '-' if NCCL has no such call or was not run."""

    def figure(name: str, form: str) -> str:
        return format(row[name], form) if name in row else "-"

    def library(name: str) -> str:
        return (
            f"{figure(f'{name}_eager_us', '.1f'):>10} {figure(f'{name}_graph_us', '.2f'):>10} "
            f"{figure(f'{name}_busbw', '.1f'):>7} {figure(f'{name}_wrong', 'd'):>6}"
        )

    return (
        f"{row['size']:>12} {row['type']:>6} {row['op']:>5} | {library('plait')} | "
        f"{library('nccl')} | {figure('eager_ratio', '.2f'):>7} {figure('graph_ratio', '.2f'):>7}  "
        f"{row['kernel']}{' as ' if row['way'] else ''}{row['way']}"
    )


def gpu_end(rows: list[dict[str, Any]]) -> str:
    """Returns a line: wrong elements, and the geometric mean of NCCL's time over plait's."""
    wrong = sum(row["plait_wrong"] for row in rows)
    lines = [f"# plait: wrong values {wrong} {'OK' if wrong == 0 else 'FAILED'}"]
    for way in ("eager", "graph"):
        ratios = [row[f"{way}_ratio"] for row in rows if f"{way}_ratio" in row]
        if ratios:
            mean = prod(ratios) ** (1 / len(ratios))
            lines.append(
                f"# NCCL's time over plait's, {way}: geometric mean {mean:.2f}, least "
                f"{min(ratios):.2f} of {len(ratios)}"
            )
    return "\n".join(lines)


def bench_json(task: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the rows in nccl-tests' JSON format (config, results, ...), with more fields."""
    return {
        "version": plait.__version__,
        "config": task,
        "results": rows,
        "out_of_bounds": sum(row["wrong"] for row in rows),
        "average_bus_bandwidth": sum(row["busbw"] for row in rows) / max(len(rows), 1),
        "bitwise_equal": cpu_ranks.bitwise_equal(rows),
    }


HEADER = (
    f"#{'size':>11} {'count':>12} {'type':>6} {'redop':>6} {'root':>4} {'time':>10} {'algbw':>8} "
    f"{'busbw':>8} {'#wrong':>6} {'in place':>10} {'#wrong':>6}  strategy\n"
    f"#{'(B)':>11} {'(elements)':>12} {'':>6} {'':>6} {'':>4} {'(us)':>10} {'(GB/s)':>8} "
    f"{'(GB/s)':>8} {'':>6} {'(us)':>10}"
)


class _Bar:
    """Progress bar over sizes, if standard output is no terminal."""

    def __init__(self, task: dict[str, Any], as_json: bool) -> None:
        shows_rows = not as_json and sys.stdout.isatty()
        total = len(task["sizes"]) * len(task["types"])
        self._progress = progress_bar(total, task["collective"], not shows_rows)
        self._seen: set[tuple[str, int]] = set()
        self._progress.start()

    def take(self, row: dict[str, Any]) -> None:
        self._seen.add((row["type"], row["size"]))
        self._progress.update(self._progress.task_ids[0], completed=len(self._seen))

    def end(self) -> None:
        """Ends the bar; later calls do nothing."""
        self._progress.stop()


class _Table:
    """Prints rows of CPU ranks as they arrive, unless as_json."""

    def __init__(self, task: dict[str, Any], where: str, as_json: bool) -> None:
        self._bar = _Bar(task, as_json)
        self.rows: list[dict[str, Any]] = []
        self._refused: set[str] = set()
        self._prints = not as_json
        if name := task["topology"] or os.environ.get("PLAIT_TOPOLOGY", ""):
            self._say(
                f"# CPU ranks play {name}: times are those of this machine's CPUs, nothing is "
                f"predicted; `plait simulate {task['collective']} -T {name} -e 1G` predicts"
            )
        self._say(
            f"# plait {plait.__version__}, {task['collective']}, {where}, at most "
            f"{task['iters']} timed calls a row (-n), times are the slowest rank's mean\n{HEADER}"
        )

    def _say(self, text: str) -> None:
        if self._prints:
            out.print(text, markup=False, soft_wrap=True)

    def take(self, row: dict[str, Any]) -> None:
        if "refused" in row:
            if row["refused"] not in self._refused:
                err.print(f"not {row['refused']}: {row['reason']}", markup=False)
            self._refused.add(row["refused"])
            return
        self.rows.append(row)
        self._bar.take(row)
        self._say(_bench_line(row))

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.end()

    def end(self) -> list[dict[str, Any]]:
        self._bar.end()
        self._say(_bench_end(self.rows))
        return self.rows


def _run_bench(task: dict[str, Any], as_json: bool) -> list[dict[str, Any]]:
    """Runs the task on ranks that this process starts."""
    with _Table(task, f"{task['ranks']} ranks", as_json) as table:
        for row in rows_of("plait.bench.cpu_ranks:rank_main", task["ranks"], task):
            table.take(row)
        return table.end()


def _run_launched(task: dict[str, Any], as_json: bool) -> list[dict[str, Any]]:
    """Runs the task on the launcher's ranks; the first rank prints and returns the rows."""
    comm = between.join(task["topology"], task["masks"])
    task["place"] = between.place_of(comm)
    if not between.is_first():
        cpu_ranks.bench(comm, task, lambda row: None)
        return []
    with _Table(task, task["place"], as_json) as table:
        cpu_ranks.bench(comm, task, table.take)
        return table.end()


def _gb_per_s(figure: float) -> str:
    """Formats with 2 decimals, as nccl-tests; 4 for very small figures."""
    return f"{figure:>8.2f}" if figure >= 0.1 else f"{figure:>8.4f}"


def _bench_line(row: dict[str, Any]) -> str:
    in_place = "-" if row["in_place_us"] is None else f"{row['in_place_us']:.1f}"
    wrong_in_place = "-" if row["in_place_wrong"] is None else row["in_place_wrong"]
    root = row["root"] if row["op"] == "none" else -1
    return (
        f"{row['size']:>12} {row['count']:>12} {row['type']:>6} {row['op']:>6} {root:>4} "
        f"{row['time_us']:>10.1f} {_gb_per_s(row['algbw'])} {_gb_per_s(row['busbw'])} "
        f"{row['wrong']:>6} "
        f"{in_place:>10} {wrong_in_place:>6}  {row['strategy']}"
    )


def _bench_end(rows: list[dict[str, Any]]) -> str:
    wrong = sum(row["wrong"] + (row["in_place_wrong"] or 0) for row in rows)
    average = sum(row["busbw"] for row in rows) / max(len(rows), 1)
    groups = cpu_ranks.bitwise_groups(rows)
    compared = sum(len(group) for group in groups.values())
    equal = "bitwise equal" if cpu_ranks.bitwise_equal(rows) else "NOT BITWISE EQUAL"
    equal = equal if compared else "not compared"
    return (
        f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}\n"
        f"# Rank-order strategies: {equal} ({compared} results of {len(groups)} requests)\n"
        f"# Avg bus bandwidth    : {average:.3f}"
    )


def rows_of(entry: str, ranks: int, task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the rows that ranks emit; exits if a rank failed."""
    job = launch.start(entry, ranks, task)
    failure: dict[str, Any] | None = None
    try:
        for row in job.lines():
            if "error" in row:
                failure = failure or row
            else:
                yield row
        statuses = job.wait()
    except BaseException:  # Ctrl-C, or the consumer failed
        job.kill()
        raise
    if failure is not None:
        error = str(failure["error"])
        whose = "" if re.search(r"\brank \d+: ", error) else f"rank {failure['rank']}: "
        err.print(f"{whose}{error}", markup=False)
        raise typer.Exit(failure["exit_code"])
    if any(statuses):
        err.print(f"ranks ended with {statuses}")
        raise typer.Exit(1)
