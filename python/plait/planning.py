"""User-defined strategies: functions from a topology and a request to a plan.

    @plait.strategy
    def two_level(topology, request, *, chunks=4):
        builder = plait.Builder(topology, request, "two_level")
        ...
        return builder.build()

Any call with strategy="two_level", plait.propose(), plait.propose_one() and commands with --load
FILE can then use it. Plans are verified before running. A call with a wrong plan raises
InvalidArgumentError with the findings, on all ranks.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from plait import _core
from plait._core import Error, FileError, InvalidArgumentError, Plan, Request, Topology

MakesPlan = TypeVar("MakesPlan", bound=Callable[..., Plan])
COLLECTIVES = (
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"),
    *("all_to_all", "gather", "scatter", "send_recv", "copy"),
)


@overload
def strategy(function: MakesPlan) -> MakesPlan: ...


@overload
def strategy(
    *,
    collectives: Sequence[str] = COLLECTIVES,
    candidates: Sequence[Mapping[str, int]] = ({},),
    name: str = "",
) -> Callable[[MakesPlan], MakesPlan]: ...


def strategy(
    function: Any = None,
    *,
    collectives: Sequence[str] = COLLECTIVES,
    candidates: Sequence[Mapping[str, int]] = ({},),
    name: str = "",
) -> Any:
    """Registers function(topology, request) -> plan as a strategy of the function's name.

    The function's keyword-only integer arguments are the strategy's parameters
    ("two_level:chunks=8"). The function raises plait.UnsupportedError, with a reason, for requests
    that it does not serve.
    collectives: served collectives; candidates: parameter sets to try. All ranks of a job register
    the same strategies. Calls that name no strategy never use it.
    """

    def add(made: MakesPlan) -> MakesPlan:
        title = name or made.__name__
        defaults = _parameters(title, made)
        idea = (inspect.getdoc(made) or "").partition("\n")[0]
        source = inspect.getsourcefile(made) or made.__module__
        choices = [dict(one) for one in candidates]
        _core.add_strategy(
            title,
            idea,
            source,
            list(collectives),
            defaults,
            lambda topology, request: choices,
            _checked(title, made),
        )
        return made

    return add if function is None else add(function)


def _parameters(title: str, made: Callable[..., Plan]) -> dict[str, int]:
    found = {}
    for parameter in list(inspect.signature(made).parameters.values())[2:]:
        if parameter.kind is not parameter.KEYWORD_ONLY or type(parameter.default) is not int:
            raise InvalidArgumentError(
                f"strategy {title}: wanted function(topology, request, *, name=whole number, ...), "
                f"found {parameter} among its arguments"
            )
        found[parameter.name] = parameter.default
    return found


def _checked(
    title: str, made: Callable[..., Plan]
) -> Callable[[Topology, Request, dict[str, int]], Plan]:
    """Wraps the function: exceptions become plait errors that name the place."""

    def plan(topology: Topology, request: Request, params: dict[str, int]) -> Plan:
        try:
            found = made(topology, request, **params)
        except Error:
            raise
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise InvalidArgumentError(
                f"strategy {title} failed: {type(error).__name__}: {error} "
                f"({at.filename}:{at.lineno})"
            ) from error
        if not isinstance(found, Plan):
            kind = type(found).__name__
            raise InvalidArgumentError(f"strategy {title}: wanted a plait.Plan, found {kind}")
        return found

    return plan


def load(file: str) -> None:
    """Runs a Python file that registers strategies."""
    path = Path(file)
    name = f"plait_strategies_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise FileError(f"--load: wanted a Python file with strategies, found {file!r}")
    before = {info.name for info in _core.strategies()}
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Error:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        at = next((one for one in reversed(frames) if one.filename == str(path)), frames[-1])
        raise InvalidArgumentError(
            f"--load: {type(error).__name__}: {error} ({at.filename}:{at.lineno})"
        ) from error
    if not {info.name for info in _core.strategies()} - before:
        raise InvalidArgumentError(
            f"--load: wanted a function with @plait.strategy in {file}, found none"
        )
