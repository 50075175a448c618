"""Forks ranks of a torch.distributed job on plait's backend, so that torch is imported once."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

Program = Callable[..., Any]


def tell(word: str) -> None:
    """Lets ranks go on that wait in await_told(word). Needs the default group's store."""
    dist.distributed_c10d._get_default_store().set(word, "")


def await_told(*words: str) -> None:
    """Waits until other ranks have told each word, at most a minute. A sleep instead may end too
    early on a busy machine."""
    dist.distributed_c10d._get_default_store().wait(list(words), timedelta(seconds=60))


def _rank(program: Program, rank: int, ranks: int, store: str, options: dict, pipe: Any) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            options.get("backend", "plait"),
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=options.get("timeout_s", 60)),
        )
        pipe.send(("told", program(rank, ranks)))
        code = 0
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
        code = 1
    pipe.close()
    os._exit(code)


def on_ranks(program: Program, ranks: int = 2, **options: Any) -> list[Any]:
    """Returns the results of program(rank, ranks); None for a rank that exits early. Fails if any
    rank raises.

    options: backend, timeout_s (the group's).
    """
    fork = multiprocessing.get_context("fork")
    told: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(ranks):
            ours, theirs = fork.Pipe(duplex=False)
            args = (program, rank, ranks, f"{folder}/store", options, theirs)
            process = fork.Process(target=_rank, args=args)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            for rank, pipe in enumerate(pipes):
                assert pipe.poll(120), f"rank {rank} of {ranks} says nothing"
                told.append(_told(pipe, rank))
        finally:
            for process in processes:
                process.kill()
                process.join()
    return told


def _told(pipe: Any, rank: int) -> Any:
    try:
        kind, what = pipe.recv()
    except EOFError:
        return None
    assert kind == "told", f"rank {rank}: {what}"
    return what
