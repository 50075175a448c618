"""Parts of the report's page that all its sections share: escaped text, figures, tables, and
pictures in two widths."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable

from plait.by_size import COLOURS, Style


def text(value: object) -> str:
    return html.escape(str(value), quote=True)


def time_text(us: float) -> str:
    """Returns three digits and a unit: '3.26 us', '183 us', '5.31 ms'."""
    value, unit = (us, "us") if us < 999.5 else (us / 1e3, "ms")
    if value >= 999.5:
        value, unit = value / 1e3, "s"
    return f"{figure(value)} {unit}"


def figure(value: float) -> str:
    """Rounds to three digits, below 0.1 to two; larger numbers keep all integer digits."""
    if 0 < value < 0.0995:
        return f"{value:.2g}"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def in_words(names: Iterable[str]) -> str:
    """Returns 'a', 'a and b' or 'a, b and c'."""
    *first, last = [*names] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def two_widths(wide: str, narrow: str) -> str:
    """Returns a picture for screens and paper, and one for phones; the page shows one of them."""
    return f'<div class="on-wide">{wide}</div><div class="on-narrow">{narrow}</div>'


def table(
    head: Iterable[str], rows: Iterable[Iterable[str]], marked: Iterable[bool] = (), kind: str = ""
) -> str:
    """Returns an HTML table of cells that are HTML. A head that starts with '>' aligns its column
    right. marked: rows to emphasize."""
    heads = [*head]
    sides = [' class="number"' if name.startswith(">") else "" for name in heads]
    parts = [f'<div class="wide"><table class="{kind}"><thead><tr>']
    parts += [f"<th{s}>{n.removeprefix('>')}</th>" for s, n in zip(sides, heads, strict=True)]
    parts.append("</tr></thead><tbody>")
    marks = [*marked]
    for number, cells in enumerate(rows):
        is_marked = number < len(marks) and marks[number]
        parts.append('<tr class="no">' if is_marked else "<tr>")
        parts += [f"<td{s}>{cell}</td>" for s, cell in zip(sides, cells, strict=True)]
        parts.append("</tr>")
    return "".join(parts) + "</tbody></table></div>"


def code(sentence: str) -> str:
    """Returns escaped text with `code` as HTML."""
    parts = text(sentence).split("`")
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(parts))


def bar(share: float, kind: str = "", mark: float = 0.0) -> str:
    """Returns a bar of a table's cell, with a mark in it if `mark` > 0. Both: 0 to 1."""
    filled = f'<i style="width:{100 * min(1.0, share):.1f}%"></i>'
    marked = f'<b style="left:{100 * mark:.1f}%"></b>' if mark else ""
    return f'<span class="bar {kind}">{filled}{marked}</span>'


def dashes(look: Style) -> str:
    return f' stroke-dasharray="{" ".join(map(str, look.dashes))}"' if look.dashes else ""


def sample(look: Style, number: int) -> str:
    """Returns a small picture of a line's style, for legends and tables."""
    return (
        f'<svg class="sample line k{number % len(COLOURS)}" viewBox="0 0 34 12" aria-hidden="true">'
        f'<polyline points="1,6 33,6"{dashes(look)}/><path d="{marker(look.marker, 17, 6, 4)}"/>'
        "</svg>"
    )


def marker(kind: str, x: float, y: float, r: float) -> str:
    """Returns the SVG path of a marker that matplotlib names by the same letter."""
    if kind == "o":
        return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z"
    if kind in "PX":
        third = r / 3
        corners = [(-third, -r), (third, -r), (third, -third), (r, -third), (r, third)]
        corners += [(third, third), (third, r), (-third, r), (-third, third), (-r, third)]
        corners += [(-r, -third), (-third, -third)]
        if kind == "X":
            turn = math.sqrt(0.5)
            corners = [((a - b) * turn, (a + b) * turn) for a, b in corners]
    elif kind == "*":
        corners = [
            (r * size * math.sin(math.pi * k / 5), -r * size * math.cos(math.pi * k / 5))
            for k in range(10)
            for size in (1.25 if k % 2 == 0 else 0.5,)
        ]
    else:
        # Number of corners, and the direction of the first in eighths of a turn from the top.
        count, first = {
            **{"s": (4, 1), "D": (4, 0), "^": (3, 0), "v": (3, 4)},
            **{"<": (3, 6), ">": (3, 2), "h": (6, 0)},
        }[kind]
        long = 1.2 * r
        turns = [math.pi * (first / 4 + 2 * k / count) for k in range(count)]
        corners = [(long * math.sin(turn), -long * math.cos(turn)) for turn in turns]
    return "M" + "L".join(f"{x + a:.1f} {y + b:.1f}" for a, b in corners) + "Z"
