"""Kills a rank of a PyTorch job during its calls and checks the end of the remaining ranks.

    python3 tests/gpu/killed_rank.py --gpus 4 --drop-in libplait_nccl.so

Starts the ranks itself, since torchrun would end the remaining ranks too. Without --drop-in the job
uses NCCL alone, and the ranks hang. Prints a JSON line. Exit status 1 = with the drop-in a survivor
did not end in time or did not name the lost rank.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time


def rank_main(rounds: int) -> None:
    """A rank: sums in a loop; the last rank kills itself on the way."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    value = torch.ones(1 << 18, device=device)
    dist.all_reduce(value)
    torch.cuda.synchronize()
    for round_ in range(1_000_000):
        if round_ == rounds and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(value)
        torch.cuda.synchronize()


def free_port() -> int:
    """Returns an unused TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(rank: int, ranks: int, port: int, drop_in: str) -> subprocess.Popen[str]:
    """Starts the process of a rank."""
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if drop_in:
        env |= {"LD_PRELOAD": drop_in, "PLAIT_DEBUG": "WARN"}
    command = [sys.executable, __file__, "--child"]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def main() -> int:
    """Runs the job and watches it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--drop-in", default="")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--limit", type=float, default=15, help="seconds that survivors may take")
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if args.child:
        rank_main(args.rounds)
        return 0
    port = free_port()
    ranks = [start(rank, args.gpus, port, args.drop_in) for rank in range(args.gpus)]
    victim, survivors = ranks[-1], ranks[:-1]
    with contextlib.suppress(subprocess.TimeoutExpired):
        victim.wait(90)
    died = time.monotonic()
    took: list[float | None] = [None] * len(survivors)
    while None in took and time.monotonic() - died < args.limit:
        for number, survivor in enumerate(survivors):
            if took[number] is None and survivor.poll() is not None:
                took[number] = round(time.monotonic() - died, 2)
        time.sleep(0.01)
    for process in ranks:
        process.kill()
    said = [process.communicate()[1] for process in survivors]
    name = f"rank {args.gpus - 1} (process {victim.pid}) has died"
    named = [name in text for text in said]
    row = {"program": "killed_rank", "gpus": args.gpus, "plait": bool(args.drop_in)}
    row |= {"victim_status": victim.returncode, "survivors_s": took, "named": named}
    print(json.dumps(row), flush=True)
    good = victim.returncode == -signal.SIGKILL and None not in took and all(named)
    if args.drop_in and not good:
        print("\n".join(text[-1500:] for text in said), file=sys.stderr)
    return 1 if args.drop_in and not good else 0


if __name__ == "__main__":
    sys.exit(main())
