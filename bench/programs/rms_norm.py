"""Times all_reduce_rms_norm and its kernels in CUDA graphs, beside separate calls; under torchrun.

Separate calls: the all_reduce of plait or NCCL, and one Triton kernel for residual and norm. A
graph holds `--calls` calls; variants of a row take turns, the slowest rank counts. The bits of each
variant, eager and replayed, are compared with those of plait's all_reduce and its norm behind it
(`unfused`). A table comes last: for each row the best variant, and its time over those of the
separate calls. Exit status 1: bits differ.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl

import plait
from bench.lib import rows as kept
from bench.lib import torch_jobs, variants

EPSILON = 1e-6
KERNELS = "plait + triton", "nccl + triton"
PARTS = "plait all_reduce", "triton"
COLUMNS = ("hidden", "tokens", "variant", "us", "same_bits")


@triton.jit
def residual_norm(x, residual, weight, out, hidden, epsilon, block: tl.constexpr):
    """Adds a row of x to the residual, and normalises the row."""
    row, at = tl.program_id(0), tl.arange(0, block)
    there = at < hidden
    added = tl.load(x + row * hidden + at, mask=there, other=0.0).to(tl.float32)
    added += tl.load(residual + row * hidden + at, mask=there, other=0.0).to(tl.float32)
    stored = added.to(tl.bfloat16)
    tl.store(residual + row * hidden + at, stored, mask=there)
    wide = stored.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / hidden + epsilon)
    scales = tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + at, (wide * factor * scales).to(tl.bfloat16), mask=there)


def fused(tokens: int, hidden: int) -> dict[str, tuple[str, dict[str, int]]]:
    """Returns (strategy, params) of the kernels worth a try, by name."""
    found: dict[str, tuple[str, dict[str, int]]] = {
        "default": ("", {}),
        "unfused": ("unfused", {}),
        "block": ("one_shot", {"cluster": 1}),
    }
    units = hidden // 8
    for cluster in (1, 2, 4, 8):
        if units <= 512 * cluster and tokens * cluster <= 1024:
            found[f"cluster {cluster}"] = ("one_shot", {"cluster": cluster, "units": 1})
    if tokens >= 64:
        found["two_shot"] = ("two_shot", {})
    return found


class Row:
    """The variants of `tokens` rows of `hidden` elements."""

    def __init__(self, comm: plait.Communicator, tokens: int, hidden: int, calls: int) -> None:
        rank = dist.get_rank()
        generator = torch.Generator(device="cuda").manual_seed(hidden + tokens)

        def random(*shape: int) -> torch.Tensor:
            made = torch.randn(shape, generator=generator, device="cuda")
            return made.to(torch.bfloat16)

        self.weight, self.first = random(hidden), random(tokens, hidden)
        generator.manual_seed(rank + 1)
        self.x = random(tokens, hidden)
        self.residual, self.out = self.first.clone(), torch.empty_like(self.x)
        self.sum = torch.empty_like(self.x)
        self.calls, self.tokens, self.hidden = calls, tokens, hidden
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self.work: dict[str, Callable[[], object]] = {}
        for name, (strategy, params) in fused(tokens, hidden).items():
            self.work[name] = self.norm(comm, strategy, params)
        self.work["plait all_reduce"] = lambda: comm.all_reduce(self.x, out=self.sum)
        self.work["triton"] = self.triton
        self.work["plait + triton"] = lambda: (self.work["plait all_reduce"](), self.triton())
        self.work["nccl + triton"] = lambda: (dist.all_reduce(self.sum), self.triton())

    def norm(
        self, comm: plait.Communicator, strategy: str, params: dict[str, int]
    ) -> Callable[[], object]:
        call = (self.x, self.residual, self.weight, EPSILON, self.out)
        return lambda: comm.all_reduce_rms_norm(*call, strategy=strategy, params=params)

    def triton(self) -> None:
        residual_norm[(self.tokens,)](
            self.sum,
            self.residual,
            self.weight,
            self.out,
            self.hidden,
            EPSILON,
            block=triton.next_power_of_2(self.hidden),
            num_warps=8,
        )

    def begin(self) -> None:
        self.residual.copy_(self.first)
        self.out.fill_(float("nan"))
        self.sum.copy_(self.x)

    def capture(self) -> None:
        for name, call in self.work.items():
            self.begin()
            call()
            torch.cuda.synchronize()
            dist.barrier()
            self.graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[name]):
                for _ in range(self.calls):
                    call()

    def results(self, name: str) -> list[torch.Tensor]:
        """Returns out and residual of an eager call, and of two replays behind it."""
        found = []
        for step in (self.work[name], self.graphs[name].replay):
            self.begin()
            step()
            if step != self.work[name]:
                step()
            torch.cuda.synchronize()
            found += [self.out.clone(), self.residual.clone()]
        return found

    def same_bits(self) -> dict[str, bool]:
        """Returns whether each fused variant gives the bits of `unfused` on all ranks."""
        wanted = self.results("unfused")
        same = {}
        for name in self.graphs:
            if name in (*PARTS, *KERNELS):
                continue
            differs = any(
                not torch.equal(a.view(torch.int16), b.view(torch.int16))
                for a, b in zip(self.results(name), wanted, strict=True)
            )
            same[name] = torch_jobs.slowest([float(differs)])[0] == 0
        return same

    def us(self, rounds: int) -> dict[str, float]:
        """Returns the microseconds of a call, by variant: medians of rounds of the slowest rank."""

        def once(graph: torch.cuda.CUDAGraph) -> float:
            dist.barrier()
            graph.replay()

            def three() -> None:
                for _ in range(3):
                    graph.replay()

            return torch_jobs.elapsed_ms(three) * 1000 / (3 * self.calls)

        calls = {name: lambda graph=graph: once(graph) for name, graph in self.graphs.items()}
        found = variants.medians(variants.taken(calls, rounds, warm_up=1))
        names = sorted(found)
        return dict(zip(names, torch_jobs.slowest([found[name] for name in names]), strict=True))


def table(measured: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each row: the separate calls, the default and the best fused variant."""
    lines = [
        f"{'hidden':>6} {'tokens':>6} {'all_reduce':>10} {'+triton':>8} {'nccl+':>8} "
        f"{'default':>8} {'best':>8} {'of plait+':>9} {'of nccl+':>9}  best variant"
    ]
    for key in dict.fromkeys((row["hidden"], row["tokens"]) for row in measured):
        us = {
            row["variant"]: row["us"] for row in measured if key == (row["hidden"], row["tokens"])
        }
        kernels = {name: one for name, one in us.items() if name not in (*PARTS, *KERNELS)}
        best = min(kernels, key=lambda name: kernels[name])
        plait_us, nccl_us = us[KERNELS[0]], us[KERNELS[1]]
        lines.append(
            f"{key[0]:>6} {key[1]:>6} {us[PARTS[0]]:10.2f} {plait_us:8.2f} {nccl_us:8.2f} "
            f"{us['default']:8.2f} {us[best]:8.2f} {us[best] / plait_us:9.2f} "
            f"{us[best] / nccl_us:9.2f}  {best}"
        )
    return lines


def run(given: SimpleNamespace) -> int:
    os.environ.setdefault("PLAIT_ARRIVE_S", "20")
    torch_jobs.join()
    rank = dist.get_rank()
    comm = plait.init(device=rank)
    begin = time.monotonic()
    measured: list[dict[str, Any]] = []
    about = [f"{torch.cuda.get_device_name()} x{dist.get_world_size()}, commit {kept.commit()}"]
    with_rows = kept.CsvFile(given.csv if rank == 0 else None, COLUMNS, about)
    late = False
    for tokens in map(int, given.tokens.split(",")):
        for hidden in map(int, given.hidden.split(",")):
            seconds = torch_jobs.slowest([time.monotonic() - begin])[0]
            if late := seconds > given.budget_s:
                break
            row = Row(comm, tokens, hidden, given.calls)
            row.capture()
            same = row.same_bits()
            for name, us in row.us(given.rounds).items():
                found = {"hidden": hidden, "tokens": tokens, "variant": name, "us": us}
                found["same_bits"] = str(same.get(name, ""))
                measured.append(found)
                with_rows.write(found)
                if rank == 0:
                    print(f"{hidden} {tokens} {name}: {us:.2f} {found['same_bits']}", flush=True)
            del row
            gc.collect()  # a graph that is freed during a capture ends the capture
    comm.check()
    wrong = [row for row in measured if row["same_bits"] == "False"]
    if rank == 0:
        print("\n".join(table(measured)))
        print(f"{len(measured)} rows, {len(wrong)} with other bits" + ", cut off" * late)
    dist.barrier()
    dist.destroy_process_group()
    return int(bool(wrong))
