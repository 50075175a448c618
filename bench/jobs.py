"""Runs a command with a deadline, at which all its processes end, also those of its launchers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


def run_job(
    command: Sequence[str], env: Mapping[str, str], limit_s: float, cwd: str | None = None
) -> tuple[str, str, str]:
    """Returns (standard output, standard error, why the job failed; empty if it succeeded)."""
    try:
        job = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        return "", "", f"cannot start {command[0]}: {error.strerror}"
    try:
        output, said = job.communicate(timeout=limit_s)
        return output, said, f"status {job.returncode}" if job.returncode else ""
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        output, said = job.communicate()
        return output, said, f"still running after {limit_s:.0f} s"
