"""Parses sizes, strategies and counts of benchmarks, and computes bandwidths from times."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import plait
from plait.arrays import DTYPE_OF_TYPE

# More than any machine's memory, and within the core's integers.
MOST_BYTES = 1 << 40
MOST_SIZES = 10_000  # most rows of a run
BLOCKS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
SHAPES = ("uniform", "linear", "one-heavy")


def parse_bytes(text: str) -> int:
    """Parses '64M' as 67108864; K, M, G and T are powers of 1024, as in nccl-tests."""
    wanted = "wanted a size such as 8, 1K, 64M or 1G, 1T at most"
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    try:
        scale = units.get(number[-1:], 1)
        size = float(number[:-1] if scale > 1 else number) * scale
    except ValueError:
        raise plait.InvalidArgumentError(f"{wanted}, found {text!r}") from None
    if not 0 <= size <= MOST_BYTES:  # false for NaN, too
        raise plait.InvalidArgumentError(f"{wanted}, found {text!r}")
    return int(size)


def parse_strategy(text: str, wanted: str) -> tuple[str, dict[str, int]]:
    """Parses 'direct:pieces=2' as ('direct', {'pieces': 2}). wanted: the form, for errors."""
    name, _, rest = text.partition(":")
    params = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise plait.InvalidArgumentError(f"wanted {wanted}, found {text!r}")
        try:
            params[key] = int(value)
        except ValueError:
            raise plait.InvalidArgumentError(
                f"{name}: wanted a whole number as {key}, found {value!r}"
            ) from None
    return name, params


def parse_variants(text: str, wanted: str) -> list[tuple[str, dict[str, int]]]:
    """Parses 'tiled:blocks=16/32;direct_ll' as 3 variants; "" = plait's choice."""
    ways = []
    for way in text.split(";"):
        name, _, rest = way.partition(":")
        pairs = (part.partition("=") for part in rest.split(",") if part)
        choices = [[f"{key}={value}" for value in values.split("/")] for key, _, values in pairs]
        ways += [parse_strategy(f"{name}:{','.join(one)}", wanted) for one in product(*choices)]
    return ways


def _short(size: int) -> str:
    """Returns a size as options take it: 1048576 -> '1M'."""
    for unit, scale in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size and size % scale == 0:
            return f"{size // scale}{unit}"
    return str(size)


def sizes(
    first: int,
    last: int,
    factor: int,
    step: int,
    options: tuple[str, str] = ("--min-bytes", "--max-bytes"),
) -> Iterator[int]:
    """Yields message sizes from first to last, times factor, or plus step if step > 0. options: of
    first and last, for errors."""
    if last < first:
        raise plait.InvalidArgumentError(
            f"{options[1]}: wanted at least {options[0]} ({_short(first)}), found {_short(last)}"
        )
    if step <= 0 and factor < 2:
        raise plait.InvalidArgumentError(
            f"--factor: wanted 2 or more, or --step-bytes beside it, found {factor}"
        )
    if step > 0 and (last - first) // step >= MOST_SIZES:
        raise plait.InvalidArgumentError(
            f"wanted at most {MOST_SIZES} sizes, found {(last - first) // step + 1}: take a larger "
            "--step-bytes"
        )
    size = first
    while size <= last:
        yield size
        size = size + step if step > 0 else max(size, 1) * factor


def kind_of(request: plait.Request) -> str:
    """Returns the collective with the reduction, if there is one: 'all_reduce sum'."""
    reduces = request.collective in REDUCTIONS
    return f"{request.name} {request.op}" if reduces else str(request.name)


def check_op(request: plait.Request) -> None:
    """Raises InvalidArgumentError for a reduction beside a collective that does not reduce."""
    if request.op != "sum" and request.collective not in REDUCTIONS:  # sum is the default
        raise plait.InvalidArgumentError(
            f"--op {request.op}: wanted a collective that reduces ({', '.join(REDUCTIONS)}), found "
            f"{request.collective}"
        )


def count_for(collective: str, size_bytes: int, plait_type: str, ranks: int) -> int:
    """Returns the count of a message of `size_bytes`, by nccl-tests' conventions."""
    elements = size_bytes // DTYPE_OF_TYPE[plait_type].itemsize
    return elements // ranks if collective in BLOCKS else elements


def least_bytes(collective: str, plait_type: str, ranks: int) -> int:
    """Returns the bytes of the smallest non-empty message."""
    return DTYPE_OF_TYPE[plait_type].itemsize * (ranks if collective in BLOCKS else 1)


def counts_for(shape: str, collective: str, count: int, ranks: int) -> list[int]:
    """Returns the counts of a shape, with the sum ranks * count; [] = equal blocks.

    linear: from 0 to twice the mean. one-heavy: the last block has nearly all, each of the rest has
    1 % of the mean. In an all_to_all every rank sends blocks of this shape, and a single rank gets
    the most.
    """
    if shape not in SHAPES:
        raise plait.InvalidArgumentError(
            f"--counts: wanted one of {', '.join(SHAPES)}, found {shape!r}"
        )
    if collective not in BLOCKS:
        raise plait.InvalidArgumentError(
            f"--counts: wanted a collective of blocks ({', '.join(BLOCKS)}), found {collective}"
        )
    if shape == "uniform" or ranks == 1:
        return []
    if shape == "linear":
        row = [2 * count * rank // (ranks - 1) for rank in range(ranks)]
    else:
        row = [count // 100] * ranks
    row[-1] += ranks * count - sum(row)
    return row * ranks if collective == "all_to_all" else row


def request_for(
    collective: str,
    size_bytes: int,
    plait_type: str,
    op: str,
    ranks: int,
    root: int = 0,
    peer: int = 0,
    *,
    shape: str,
) -> plait.Request:
    """Returns the request of a message of `size_bytes`. shape: shape of the counts, "" = equal."""
    count = count_for(collective, size_bytes, plait_type, ranks)
    counts = counts_for(shape, collective, count, ranks) if shape else []
    return plait.Request(collective, count, plait_type, op, ranks, root, peer, counts=counts)


def bandwidth(request: plait.Request, seconds: float) -> dict[str, float]:
    algbw = request.message_bytes() / max(seconds, 1e-12) / 1e9
    return {"algbw": algbw, "busbw": algbw * request.busbw_factor()}
