"""Keeps torch.compile out of the frames of a group; applied by group.py, works.py and calls.py.

A function under torch.compile breaks its graph at a call of a group, as with gloo. Dynamo then
compiles the Python frames below the break. A frame of a group reads members of a ProcessGroup,
and Dynamo refuses these from PyTorch 2.13 on. This module does not import torch._dynamo, since the
import takes seconds.
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch

Marked = TypeVar("Marked")


def never_compiled(thing: Marked) -> Marked:
    """Marks a function, or the methods of a class: runs them and their callees uncompiled."""
    functions = [thing] if isinstance(thing, FunctionType) else vars(thing).values()
    for function in functions:
        if isinstance(function, property):
            function = function.fget
        if isinstance(function, FunctionType):
            # Dynamo breaks the graph instead of inlining the function.
            function.__dict__["_torchdynamo_disable"] = True
            function.__dict__["_torchdynamo_disable_msg"] = "plait's groups run uncompiled"
            _skip_frames(function.__code__)
    return thing


def _skip_frames(code: CodeType) -> None:
    """Runs frames of `code`, and frames below, as Python. Does nothing before PyTorch 2.8."""
    dynamo: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if hasattr(dynamo, "set_code_exec_strategy"):
        skip = dynamo._FrameAction.SKIP
        dynamo.set_code_exec_strategy(code, dynamo._FrameExecStrategy(skip, skip))
    elif hasattr(dynamo, "skip_code"):
        dynamo.skip_code(code)
