"""Hypothesis here and in CI: CI draws the same examples every time (a red run must be somebody's
change), everyone else draws fresh examples."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
