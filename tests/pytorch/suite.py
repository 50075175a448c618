"""Runs PyTorch's own suite of torch.distributed, from PyTorch's wheel, against plait's backend.

    python tests/pytorch/suite.py            # all lanes concurrently; prints failures and passes
    python tests/pytorch/suite.py 4 gloo -k all_reduce   # one lane, with pytest's words

A lane is a number of forked ranks and a backend (gloo, mpi), whose tests run too. The suite's
decorators read BACKEND at import, ranks read it at start. Hence the suite is imported with the
lane's backend, and the variable is then set to plait.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LANES = ((2, "gloo"), (4, "gloo"), (4, "mpi"))
# These tests need the name of a torch backend.
ONLY_BY_NAME = {
    *("test_accumulate_gradients_no_sync", "test_accumulate_gradients_no_sync_allreduce_hook"),
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view",
    *("test_monitored_barrier_gloo", "test_monitored_barrier_gloo_rank_0_timeout"),
    "test_monitored_barrier_gloo_subgroup",
}
PASS_AT_LEAST = 111  # different tests over all lanes, in torch 2.13


def as_backend() -> str:
    """Returns the backend at import; pytest imports this file a second time."""
    return os.environ.setdefault("SUITE_AS", "gloo")


if "SUITE_AS" in os.environ:
    import torch
    from torch.testing._internal.common_distributed import DistTestCases

    import plait.torch  # noqa: F401  registers the backend

    for feature in ("plugin", "ddp", "subgroup", "gpu", "cuda"):
        DistTestCases.backend_feature[feature] |= {"plait"}
    os.environ["BACKEND"] = as_backend()
    if as_backend() == "mpi":
        torch.distributed.is_mpi_available = lambda: True
    from torch.testing._internal.distributed import distributed_test
    from torch.testing._internal.distributed.distributed_test import (
        DistributedTest,
        TestDistBackend,
    )

    distributed_test.BACKEND = "plait"

    class TestInWheel(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)


def run_lane(ranks: int, name: str, words: list[str], report: Path) -> str:
    """Runs a lane in a separate process, since the suite is imported once; returns the summary."""
    folder = Path(tempfile.mkdtemp(prefix="plait-suite-"))
    (folder / "barrier").mkdir()
    env = dict(os.environ, SUITE_AS=name, BACKEND=name, WORLD_SIZE=str(ranks))
    env |= {"TEMP_DIR": str(folder), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    env |= {"DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "120"}
    flags = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "-W", "ignore", "--tb=short"]
    command = [sys.executable, "-m", "pytest", str(Path(__file__).resolve()), *flags, *words]
    done = subprocess.run(
        [*command, "--junitxml", str(report)], env=env, capture_output=True, text=True
    )
    tail = done.stdout.splitlines()
    said = [f"{ranks} ranks, {name}'s tests too: {tail[-1] if tail else done.stderr[-2000:]}"]
    for line in tail:
        failed = re.match(r"FAILED .*::(\w+)", line)
        if failed is not None and failed.group(1) not in ONLY_BY_NAME:
            said.append(line)
    return "\n".join([*said, done.stdout[-8000:]] if words else said)


def outcomes(report: Path) -> tuple[set[str], set[str]]:
    """Returns the passed and the failed tests."""
    passed, failed = set(), set()
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        name = re.sub(r"\[.*", "", case.get("name") or "")
        if kinds & {"failure", "error"}:
            failed.add(name)
        elif "skipped" not in kinds:
            passed.add(name)
    return passed, failed


def main() -> int:
    one = sys.argv[1:3]
    lanes = [(int(one[0]), one[1])] if one else LANES
    passed: set[str] = set()
    wrong: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder) / f"{ranks}-{name}.xml" for ranks, name in lanes]
        with ThreadPoolExecutor() as pool:  # lanes mostly wait
            in_flight = [
                pool.submit(run_lane, *lane, sys.argv[3:], report)
                for lane, report in zip(lanes, reports, strict=True)
            ]
            for lane in in_flight:
                print(lane.result(), flush=True)
        for report in reports:
            good, bad = outcomes(report)
            passed |= good
            wrong |= bad - ONLY_BY_NAME
    print(f"{len(passed)} different tests passed; failed beside those of names: {sorted(wrong)}")
    return 1 if wrong or (not one and len(passed) < PASS_AT_LEAST) else 0


if __name__ == "__main__":
    sys.exit(main())
