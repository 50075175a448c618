"""Runs random collectives for minutes, checks every result bit for bit, and counts leaks.

An epoch takes some seconds. It opens one to three communicators with random SM budgets, and runs
batches of random calls on them side by side: collective, type, op, size, offset, in place or not,
or send and recv or exchange of two ranks. Calls run eagerly and from CUDA graphs, which are
replayed with fresh data. On GPUs, communicators suspend and resume amid the calls. The epoch closes
the communicators and counts memory and descriptors.
Prints a JSON line. Exit status 1: wrong results; 2: leaks; 3: a rank hung or ended.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import queue
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plait
from bench.lib.jobs import Ranks
from bench.lib.oracle import (
    FLOATS,
    INTEGERS,
    ON_FLOATS,
    ON_INTEGERS,
    POISON,
    SCALARS,
    ExpectedCall,
    HostArrays,
    TorchArrays,
    size_of,
)
from plait.bench import engines
from plait.bench.reductions import REDUCING
from plait.launch import Emit

COLLECTIVES = (
    *("all_reduce", "all_reduce", "all_reduce", "reduce_scatter", "all_gather", "broadcast"),
    *("reduce", "all_to_all", "gather", "scatter", "send_recv", "copy"),
)
IN_PLACE = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "reduce_scatter",
    "scatter",
)
MOST_BLOCKS = 120  # sum over all communicators: kernels that wait for each other must all fit
GAP_BYTES = 256

# Growth allowed after the first minute. Device memory: frameworks load a kernel at its first use
# (some 100 KiB each), while a leaked arena of a communicator is over 100 MiB. RSS: the
# interpreter's pools; a leak of 1 KiB a call would be 100 MiB in ten minutes.
MOST_GROWTH = {
    "device_bytes": 32 << 20,
    "rss_bytes": 64 << 20,
    "descriptors": 0,
    "shm_entries": 0,
    "shm_bytes": 0,
}


@dataclass
class SoakCall:
    """A collective with its offsets in the slabs and its communicator."""

    case: ExpectedCall
    comm: int
    strategy: str
    params: dict[str, int]
    input_at: int
    output_at: int
    in_place: bool
    by_pair: bool  # a call of two ranks: send and recv, or exchange_with

    def __str__(self) -> str:
        request = self.case.request
        place = "in place" if self.in_place else "by the pair" if self.by_pair else "out of place"
        return (
            f"{request.collective} of {request.count} {request.type} {request.op} "
            f"root {request.root} peer {request.peer} {place} {self.strategy} {self.params or ''} "
            f"on {self.comm}"
        )


class Deck:
    """Draws the calls from one seed, alike on all ranks."""

    def __init__(self, task: dict[str, Any], ranks: int, on: HostArrays) -> None:
        self.task, self.ranks, self.on = task, ranks, on
        self.random = random.Random(task["seed"])
        self.numbers = itertools.count(1)

    def budgets(self) -> list[int]:
        """Returns SM budgets of the next communicators; 0 = all SMs, for a single communicator."""
        count = self.random.choice((1, 2, 3))
        if count == 1:
            return [self.random.choice((0, 0, self.random.randint(1, 132)))]
        cuts = sorted(self.random.sample(range(1, MOST_BLOCKS), count - 1))
        return [b - a for a, b in zip((0, *cuts), (*cuts, MOST_BLOCKS), strict=True)]

    def request(self) -> plait.Request:
        name = self.random.choice(COLLECTIVES)
        kind = self.random.choice((*FLOATS, *INTEGERS, "fp32", "bf16"))
        reduces = name in REDUCING
        ops = ON_FLOATS if kind in FLOATS else ON_INTEGERS
        op = self.random.choice((*ops, "sum", "sum")) if reduces else "sum"
        whole = ("all_reduce", "reduce", "broadcast", "send_recv", "copy")
        most = self.task["most_bytes"] // size_of(kind) // (1 if name in whole else self.ranks)
        count = max(1, round(2 ** self.random.uniform(0, (most).bit_length() - 1)))
        if self.random.random() < 0.5:
            count |= 1  # odd
        root = self.random.randrange(self.ranks)
        peer = (root + self.random.randrange(1, self.ranks)) % self.ranks
        return plait.Request(name, min(count, most), kind, op, self.ranks, root, peer)

    def extra_params(self, collective: str, kernel: str) -> dict[str, int]:
        """Returns parameters for a part by CPU cores, or for a share through host memory."""
        if collective != "all_reduce" or kernel not in engines.names():
            return {}
        parts = {"host_cpu_permille": (50, 200, 1000), "host_permille": (20, 90, 200)}
        how = self.random.choice((*parts, ""))
        return {how: self.random.choice(parts[how])} if how else {}

    def batch(self, comms: int) -> list[SoakCall]:
        """Returns calls with disjoint buffers in the slabs, at offsets of any alignment."""
        calls: list[SoakCall] = []
        at, longest = GAP_BYTES, self.random.choice((1, 4, 8, 16, 32))
        while len(calls) < longest:
            case = ExpectedCall(self.on, self.request(), next(self.numbers))
            size = size_of(case.request.type)
            span = max(case.input_count(), case.gathered_count()) * size
            start = at + self.random.choice((0, size * self.random.randrange(16)))
            at = (start + span + 2 * GAP_BYTES - 1) // GAP_BYTES * GAP_BYTES
            if at > self.task["slab_bytes"]:
                break
            name = case.request.collective
            in_place = name in IN_PLACE and self.random.random() < 0.3
            named = self.random.random() < 0.2 and self.task["kernels"]
            known = [*engines.names(name), *["direct"] * (name == "all_reduce")]  # in rank order
            strategy = self.random.choice(known) if named else ""
            comm, params = self.random.randrange(comms), self.extra_params(name, strategy)
            pairs = name == "copy" or (name == "send_recv" and self.ranks == 2)
            by_pair = pairs and self.random.random() < 0.7
            calls.append(SoakCall(case, comm, strategy, params, start, start, in_place, by_pair))
        return calls


class SoakRank:
    """A rank's memory, communicators and counts."""

    def __init__(self, task: dict[str, Any], emit: Emit) -> None:
        self.task, self.emit = task, emit
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.on_gpu = not task["host"]
        self.on: HostArrays = TorchArrays(f"cuda:{self.rank}") if self.on_gpu else HostArrays()
        self.base = plait.init(device=-1, arrive_s=task["stuck_s"])
        self.deck = Deck(task, self.ranks, self.on)
        self.spoiling = random.Random(self.rank)
        self.slabs = [self.on.slab(task["slab_bytes"] + 4096) for _ in range(2)]
        self.comms: list[plait.Communicator] = []
        self.streams: list[Any] = [None] * 3
        if self.on_gpu:
            self.streams = [self.on.xp.cuda.Stream() for _ in range(3)]
        self.made = 0
        self.counts = {"calls": 0, "bytes": 0, "wrong": 0, "broken": 0, "refused": 0, "graphs": 0}
        self.counts["suspends"] = 0
        self.doing, self.batches = "starting", 0

    def open(self, budgets: list[int]) -> None:
        """Opens the communicators of an epoch."""
        for budget in budgets:
            self.made += 1
            self.doing = f"making communicator {self.made}, SM budget {budget}"
            self.comms.append(
                plait.Communicator(
                    self.rank,
                    self.ranks,
                    rendezvous=f"unix:{self.task['folder']}/meet{self.made}",
                    device=self.rank if self.on_gpu else -1,
                    sm_budget=budget,
                    arrive_s=self.task["stuck_s"],
                )
            )
            for peer in range(self.ranks):  # pairs bootstrap while the GPU has no work
                if peer != self.rank:
                    one = self.on.view(self.slabs[0], 0, 1, "int8")
                    other = self.on.view(self.slabs[1], 0, 1, "int8")
                    self.comms[-1].exchange_with(one, peer, other)
        self.on.finish()

    def close(self) -> None:
        """Closes them, in the same order on all ranks."""
        for comm in self.comms:
            comm.check() if self.on_gpu else None
        self.doing = "closing communicators"
        while self.comms:
            self.comms.pop(0)

    def buffers(self, call: SoakCall) -> tuple[Any, Any]:
        """Returns this rank's input and output arrays; the output is None if the rank has none."""
        case, kind = call.case, call.case.request.type
        count, size = case.request.count, size_of(kind)
        inputs, outputs = case.input_count(), case.output_count(self.rank)
        if not call.in_place:
            source = self.on.view(self.slabs[0], call.input_at, inputs, kind)
            output = self.on.view(self.slabs[1], call.output_at, outputs, kind)
            return source, output if outputs else None
        mine = call.output_at + self.rank * count * size
        gathers = case.request.collective in ("all_gather", "gather")
        parts = case.request.collective in ("reduce_scatter", "scatter")
        source = self.on.view(self.slabs[1], mine if gathers else call.output_at, inputs, kind)
        output = self.on.view(self.slabs[1], mine if parts else call.output_at, outputs, kind)
        return source, output if outputs else None

    def prepare(self, calls: list[SoakCall]) -> None:
        """Fills inputs with fresh data, and outputs with poison."""
        for call in calls:
            source, output = self.buffers(call)
            if output is not None:
                self.on.fill(output, POISON)
            self.on.signed(source)[:] = self.on.signed(call.case.drawn(self.rank))
        self.on.finish()

    def run(self, call: SoakCall) -> None:
        """Enqueues the call. If the named kernel refuses the request, plait chooses."""
        source, output = self.buffers(call)
        request = call.case.request
        how: dict[str, Any] = {"out": output, "strategy": call.strategy, "params": call.params}
        if request.collective in REDUCING:
            how["op"] = request.op
        if request.collective in ("broadcast", "reduce", "gather", "scatter"):
            how["root"] = request.root
        if request.collective == "copy":
            how["src"], how["dst"] = request.root, request.peer
        if request.op == "premul_sum":
            how["scalars"] = [SCALARS[rank % len(SCALARS)] for rank in range(self.ranks)]
        if self.on_gpu:
            how["stream"] = self.streams[call.comm].cuda_stream
        try:
            if call.by_pair:
                self.run_pair(call, source, how)
            else:
                getattr(self.comms[call.comm], request.collective)(source, **how)
        except plait.UnsupportedError:
            if not call.strategy:
                raise
            self.counts["refused"] += 1
            call.strategy, call.params = "", {}
            self.run(call)

    def run_pair(self, call: SoakCall, source: Any, how: dict[str, Any]) -> None:
        """Enqueues this rank's end of a call of two ranks, if the rank takes part."""
        comm, request = self.comms[call.comm], call.case.request
        how = {name: how[name] for name in how if name in ("strategy", "params", "stream")}
        output = self.buffers(call)[1]
        if request.collective == "send_recv":
            comm.exchange_with(source, 1 - self.rank, output, **how)
        elif self.rank == request.root:
            comm.send(source, request.peer, **how)
        elif self.rank == request.peer:
            comm.recv(output, request.root, **how)

    def finish(self) -> None:
        """Waits for all streams, and raises the errors of the GPU."""
        self.on.finish()
        for comm in self.comms:
            if self.on_gpu:
                comm.check()

    def check(self, calls: list[SoakCall], how: str) -> None:
        """Compares every output with the expected bits."""
        spoiled = self.spoiling.randrange(len(calls)) if self.task["break"] else -1
        for number, call in enumerate(calls):
            self.doing = f"checking {call}, {how}"
            output = self.buffers(call)[1]
            if output is None:
                continue
            if number == spoiled:
                self.spoil(output)
            wrong = call.case.wrong(self.rank, output)
            self.counts["calls"] += 1
            self.counts["bytes"] += len(output) * size_of(call.case.request.type)
            self.counts["wrong"] += wrong
            if wrong:
                row = {"rank": self.rank, "kind": "wrong", "elements": wrong}
                self.emit({**row, "what": f"{call}, {how}"[:400]})

    def spoil(self, output: Any) -> None:
        """Flips one bit of one element."""
        words = self.on.signed(output)
        at = self.spoiling.randrange(len(output))
        words[at : at + 1] ^= 1
        self.counts["broken"] += 1

    def batch(self) -> None:
        """Runs calls back to back, eagerly; half of the batches again, as graphs with fresh
        data."""
        calls = self.deck.batch(len(self.comms))
        as_graphs = self.on_gpu and self.deck.random.random() < 0.5
        self.doing = "drawing inputs"
        self.prepare(calls)
        for call in calls:
            self.doing = f"enqueuing {call}"
            self.run(call)
        self.doing = f"waiting for {len(calls)} calls, the last of them {calls[-1]}"
        self.finish()
        self.check(calls, "eager")
        self.suspend_some()
        if as_graphs:
            self.replay(calls)
        self.batches += 1

    def replay(self, calls: list[SoakCall]) -> None:
        """Captures each communicator's calls as one graph, and replays it several times."""
        torch, graphs = self.on.xp, []
        for number in range(len(self.comms)):
            mine = [call for call in calls if call.comm == number]
            if not mine:
                continue
            self.doing = f"capturing {len(mine)} calls"
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.streams[number]):
                for call in mine:
                    self.run(call)
            graphs.append((graph, self.streams[number]))
        for again in range(self.deck.random.choice((1, 2, 4))):
            for call in calls:
                call.case.seed = next(self.deck.numbers)
            self.doing = "drawing inputs"
            self.prepare(calls)
            for graph, stream in graphs:
                with torch.cuda.stream(stream):
                    graph.replay()
            self.doing = f"waiting for {len(graphs)} graphs, the first call {calls[0]}"
            self.finish()
            self.check(calls, f"replay {again}")
            self.counts["graphs"] += len(graphs)
            self.suspend_some()

    def suspend_some(self) -> None:
        """Suspends one communicator in ten and resumes it, the same on all ranks."""
        for number, comm in enumerate(self.comms):
            if self.on_gpu and self.deck.random.random() < 0.1:
                self.doing = f"suspending communicator {number}"
                comm.suspend()
                if comm.gpu_memory().suspendable > 0:
                    self.want_refusal(comm)
                    self.counts["suspends"] += 1
                self.doing = f"resuming communicator {number}"
                comm.resume()

    def want_refusal(self, comm: plait.Communicator) -> None:
        """Requires that a suspended communicator refuses a call."""
        try:
            comm.all_reduce(self.on.view(self.slabs[0], 0, 4, "fp32"))
        except plait.InvalidArgumentError as error:
            if "is suspended" in str(error):
                return
            raise
        raise AssertionError("wanted a refusal by a suspended communicator, found a sum")

    def in_use(self) -> dict[str, int]:
        """Counts this rank's memory and descriptors; only the communicator on host memory is
        open."""
        gc.collect()
        found = {
            "rss_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
            "descriptors": len(os.listdir("/proc/self/fd")),
            "device_bytes": 0,
        }
        # Files with plait's name: other programs of the machine use /dev/shm too.
        files = [file for file in os.scandir("/dev/shm") if "plait" in file.name]
        found["shm_entries"] = len(files)
        found["shm_bytes"] = sum(file.stat().st_size for file in files)
        if self.on_gpu:
            self.on.xp.cuda.empty_cache()
            free, total = self.on.xp.cuda.mem_get_info()
            found["device_bytes"] = total - free
        return found

    def warm_up(self) -> None:
        """Loads kernels that check results, and opens communicators once, so that neither counts as
        growth later."""
        self.doing = "loading what checks results"
        for slab in self.slabs:
            slab[:] = 0  # pages that calls touch later would count as growth
        for kind in (*FLOATS, *INTEGERS):
            for op in ON_FLOATS if kind in FLOATS else ON_INTEGERS:
                request = plait.Request("all_reduce", 3, kind, op, self.ranks)
                case = ExpectedCall(self.on, request, 0)
                drawn = [case.drawn(rank) for rank in range(self.ranks)]
                case.wrong(self.rank, self.on.reduced(op, kind, drawn))
        self.on.finish()
        self.open([MOST_BLOCKS // 3] * 3)  # the driver keeps some MiB of the first ones
        self.close()

    def agreed(self, start: float) -> bool:
        """True while rank 0 has time."""
        word = b"on" if time.monotonic() - start < self.task["seconds"] else b"off"
        return self.base.exchange(word)[0] == b"on"

    def soak(self) -> None:
        """Runs epochs until the time is up."""
        self.warm_up()
        start = time.monotonic()
        while self.agreed(start):
            self.open(self.deck.budgets())
            epoch = time.monotonic()
            word = b"on"
            while word == b"on":
                self.batch()
                self.doing = "agreeing to go on"
                mine = b"on" if time.monotonic() - epoch < self.task["epoch_s"] else b"off"
                word = self.base.exchange(mine)[0]
            self.close()
            self.doing = "counting what is in use"
            self.base.barrier()
            at = round(time.monotonic() - start, 2)
            row = {"rank": self.rank, "kind": "use", "at": at, "made": self.made}
            self.emit({**row, **self.in_use()})
            self.base.barrier()
        self.doing = "done"
        self.emit({"rank": self.rank, "kind": "done", "made": self.made, **self.counts})


def rank_main(task: dict[str, Any], emit: Emit) -> None:
    """Runs a rank, and a thread that reports its state once a second."""
    os.environ["PLAIT_DEVICE"] = "-1"
    guard = threading.Lock()

    def say(row: dict[str, Any]) -> None:
        with guard:
            emit(row)

    rank = SoakRank(task, say)

    def pulse() -> None:
        while rank.doing != "done":
            now = {"kind": "doing", "batch": rank.batches, "what": rank.doing[:400]}
            say({"rank": rank.rank, **now})
            time.sleep(1)

    threading.Thread(target=pulse, daemon=True).start()
    rank.soak()


class Overseer:
    """The parent process: collects reports of ranks, and ends the job if a rank hangs."""

    def __init__(self, given: SimpleNamespace, task: dict[str, Any]) -> None:
        self.given, self.task = given, task
        self.said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.doing = {rank: (-2, "starting", time.monotonic()) for rank in range(given.ranks)}
        self.uses: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(given.ranks)}
        self.done: dict[int, dict[str, Any]] = {}
        self.wrong_lines = 0
        self.errors: list[str] = []

    def run(self) -> list[int]:
        """Returns the ranks' exit statuses; empty if the job hung."""
        job = Ranks("soak", self.given.ranks, self.task)

        def read() -> None:
            for row in job.lines():
                self.said.put(row)
            self.said.put(None)

        threading.Thread(target=read, daemon=True).start()
        while True:
            try:
                row = self.said.get(timeout=1.0)
            except queue.Empty:
                row = {"kind": "nothing"}
            if row is None:
                return job.statuses
            self.take(row)
            if self.stuck():
                job.kill()
                return []

    def take(self, row: dict[str, Any]) -> None:
        """Stores a line of a rank."""
        kind = row.get("kind")
        if kind == "doing":
            batch, what, since = self.doing[row["rank"]]
            moved = row["batch"] != batch or row["what"] != what
            at = time.monotonic() if moved else since
            self.doing[row["rank"]] = (row["batch"], row["what"], at)
        elif kind == "use":
            self.uses[row["rank"]].append(row)
            if self.given.verbose and row["rank"] == 0:
                print(json.dumps(row), file=sys.stderr, flush=True)
        elif kind == "done":
            self.done[row["rank"]] = row
        elif kind == "wrong":
            self.wrong_lines += 1
            if self.wrong_lines <= 20:
                print(
                    f"rank {row['rank']}: {row['elements']} wrong: {row['what']}", file=sys.stderr
                )
        elif "error" in row:
            self.errors.append(f"rank {row['rank']}: {row['error']}")

    def stuck(self) -> bool:
        """True if a rank's state has not changed for too long; prints the rank and its state."""
        now = time.monotonic()
        late = [r for r, (_, _, at) in self.doing.items() if r not in self.done]
        late = [r for r in late if now - self.doing[r][2] > self.task["stuck_s"]]
        for rank in late:
            batch, what, at = self.doing[rank]
            line = f"rank {rank} has not moved for {now - at:.0f} s in batch {batch}: {what}"
            self.errors.append(line)
        return bool(late)

    def growth(self) -> dict[str, int]:
        """Returns the largest growth of any rank since the end of the first minute."""
        most = dict.fromkeys(MOST_GROWTH, 0)
        warm_s = min(60.0, self.given.seconds / 3)
        for uses in self.uses.values():
            later = [use for use in uses if use["at"] >= warm_s]
            for name in most:
                if later:
                    most[name] = max(most[name], later[-1][name] - later[0][name])
        return most

    def course(self, name: str, most: int = 12) -> list[int]:
        """Returns the MiB that rank 0 held, at `most` counts from first to last."""
        held = [use[name] >> 20 for use in self.uses[0]]
        shown = min(most, len(held))
        return [held[at * (len(held) - 1) // max(shown - 1, 1)] for at in range(shown)]

    def verdict(self, statuses: list[int], seconds: float) -> int:
        """Prints the JSON line, and returns the exit status."""
        sums = {
            name: sum(row[name] for row in self.done.values())
            for name in ("calls", "bytes", "wrong", "broken", "refused", "graphs", "suspends")
        }
        growth = self.growth()
        leaks = [name for name, most in MOST_GROWTH.items() if growth[name] > most]
        whole = statuses == [0] * self.given.ranks and len(self.done) == self.given.ranks
        if self.given.break_results:
            right = sums["wrong"] == sums["broken"] > 0
        else:
            right = sums["wrong"] == 0 and sums["calls"] > 0
        row = {
            "ranks": self.given.ranks,
            "on": "host" if self.given.host else "gpus",
            "seed": self.given.seed,
            "seconds": round(seconds, 1),
            **sums,
            "communicators": max((row["made"] for row in self.done.values()), default=0),
            "counts_of_use": min((len(uses) for uses in self.uses.values()), default=0),
            "growth": growth,
            "rss_mib": self.course("rss_bytes"),
            "leaks": leaks,
            "errors": self.errors[:8],
            "statuses": statuses,
        }
        print(json.dumps(row), flush=True)
        return 3 if not whole else 1 if not right else 2 if leaks else 0


def run(given: SimpleNamespace) -> int:
    """Runs the ranks, and returns the exit status of the opening comment."""
    slab_mib = given.slab_mib or (0.0 if given.host else 2048.0)
    task = {
        "seed": given.seed,
        "seconds": given.seconds,
        "epoch_s": given.epoch,
        "most_bytes": int(given.most_mib * (1 << 20)),
        "slab_bytes": int(max(slab_mib, 2.1 * given.most_mib + 1) * (1 << 20)),
        "stuck_s": given.stuck,
        "host": given.host,
        "break": given.break_results,
        "kernels": not given.no_kernels and not given.host,
    }
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="plait-soak-", ignore_cleanup_errors=True) as folder:
        overseer = Overseer(given, task | {"folder": folder})
        statuses = overseer.run()
    return overseer.verdict(statuses, time.monotonic() - start)
