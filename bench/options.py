"""Options of programs with several ranks: soak.py, kills.py, accuracy.py."""

from __future__ import annotations

import argparse


def parser(said: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the common options; a program adds its own."""
    made = argparse.ArgumentParser(
        description=said, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--ranks", type=int, default=2, help="a process each")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--host", action="store_true", help="host memory, no GPU")
    return made
