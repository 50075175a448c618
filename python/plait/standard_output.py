"""Standard output of commands: a write that fails ends the command with a line in place of a
traceback. `plait.cli` and `python -m plait` run in `checked()`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast


def discard(stream: Any) -> None:
    """Sends the rest of a stream to /dev/null, with what its buffer holds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Checked:
    """A text stream whose first failed write ends the command: SystemExit with a line, or without
    one if the reader of a pipe has ended."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._ended():
            return cast(int, self._stream.write(text))

    def flush(self) -> None:
        with self._ended():
            self._stream.flush()

    @contextmanager
    def _ended(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            discard(self._stream)
            sys.exit(1)
        except OSError as error:
            discard(self._stream)
            sys.exit(f"plait: cannot write standard output: {error.strerror or error}")


@contextmanager
def checked() -> Iterator[None]:
    """Runs a command with a checked standard output, and writes all text before the end.

    Exits with 1 and a line if standard output is closed or takes no more text.
    """
    if sys.stdout is None:
        sys.exit("plait: standard output is closed; give the command a file, or /dev/null")
    sys.stdout = cast(Any, _Checked(sys.stdout))
    try:
        yield
    finally:
        sys.stdout.flush()
