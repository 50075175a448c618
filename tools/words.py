"""Reports on the prose of comments and pages, for `tools/tidy.py --words`.

For each file the report has the share of pointing words (`POINTING`), and sentences that begin with
a fragment (`FRAGMENT`) instead of a noun and a verb. The figures help writers. No check fails
because of the figures.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

POINTING = frozenset(
    """it its they them their theirs these those what which who whom whose so such there where one
    ones other others""".split()  # noqa: SIM905 (a list of literals would be a page)
)
# First words of sentences that lack a noun as subject, or a verb.
FRAGMENT = re.compile(
    r"^((?:(?:for|from|in|to|with|by|on|and) )?(?:what|who|whom|whose|which)|of|likewise)\b",
    re.IGNORECASE,
)
LEAST_SENTENCE = 4  # words; shorter sentences are labels
LEAST_FILE = 40  # words of prose; shares of fewer words mean little
SUFFIXES_CPP = (".cpp", ".hpp", ".h", ".c", ".cu", ".cuh", ".def")


@dataclass
class WordCount:
    """Counts over the prose of a file or folder."""

    words: int = 0
    pointing: int = 0
    sentences: int = 0
    fragments: tuple[str, ...] = ()

    def __add__(self, other: WordCount) -> WordCount:
        return WordCount(
            self.words + other.words,
            self.pointing + other.pointing,
            self.sentences + other.sentences,
            self.fragments + other.fragments,
        )

    @property
    def pointing_percent(self) -> float:
        return 100 * self.pointing / self.words if self.words else 0.0

    @property
    def fragment_percent(self) -> float:
        return 100 * len(self.fragments) / self.sentences if self.sentences else 0.0


def comments_of_cpp(source: str) -> list[str]:
    """Returns the blocks of comment lines, each joined to one text."""
    blocks: list[list[str]] = [[]]
    for line in source.splitlines():
        match = re.match(r"^(?:[^\"]|\"(?:\\.|[^\"\\])*\")*?//[/!]?<?\s?(.*)$", line)
        if match is None or "SPDX" in line:
            blocks.append([])
        elif line.lstrip().startswith("//"):
            blocks[-1].append(match.group(1))
        else:  # a comment after code is a text of its own
            blocks += [[match.group(1)], []]
    return [" ".join(block) for block in blocks if block]


def comments_of_python(source: str) -> list[str]:
    """Returns the docstrings and the blocks of comments."""
    found: list[str] = []
    blocks: list[list[str]] = [[]]
    last_row = -2
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last_row + 1:
                blocks.append([])
            blocks[-1].append(token.string.lstrip("#! "))
            last_row = token.start[0]
        elif token.type == tokenize.STRING and token.string.lstrip("rRbBuU").startswith('"""'):
            found.append(" ".join(token.string.strip('rRbBuU"').split()))
    return found + [" ".join(block) for block in blocks if block]


def prose_of_page(source: str) -> list[str]:
    """Returns the paragraphs of a page, without code, tables and headings."""
    text = re.sub(r"^```.*?^```", "", source, flags=re.S | re.M)
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*[-*\d]+[.]? )", text)
    kept = [p for p in paragraphs if not p.lstrip().startswith(("|", "#", "<!--"))]
    return [" ".join(p.split()) for p in kept]


def texts_of(path: Path) -> list[str]:
    source = path.read_text()
    if path.suffix in SUFFIXES_CPP:
        return comments_of_cpp(source)
    if path.suffix == ".py":
        return comments_of_python(source)
    return prose_of_page(source)


def counted(texts: Iterable[str]) -> WordCount:
    """Counts the prose of texts; code between backticks counts as one word."""
    made = WordCount()
    for text in texts:
        plain = re.sub(r"`[^`]*`", "code", text)
        for sentence in re.split(r"(?<=[.!?])\s+", plain):
            words = re.findall(r"[A-Za-z][A-Za-z'-]*", sentence)
            if len(words) < LEAST_SENTENCE:
                continue
            pointing = sum(word.lower() in POINTING for word in words)
            begins = (sentence.strip(),) if FRAGMENT.match(" ".join(words)) else ()
            made += WordCount(len(words), pointing, 1, begins)
    return made


def report(paths: Iterable[Path], root: Path, examples: int = 2) -> str:
    """Returns a line per folder, then per file, worst first, with examples of fragments."""
    files = {path: counted(texts_of(path)) for path in paths}
    folders: dict[str, WordCount] = {}
    for path, count in files.items():
        parts = path.relative_to(root).parts
        name = "/".join(parts[: 2 if parts[0] == "src" else 1]) if len(parts) > 1 else "."
        folders[name] = folders.get(name, WordCount()) + count
    lines = ["words of prose, % pointing words, % sentences that begin with a fragment"]

    def row(name: str, count: WordCount) -> str:
        shares = f"{count.pointing_percent:5.1f} {count.fragment_percent:5.1f}"
        return f"{count.words:7} {shares}  {name}"

    lines += [row(f"{name}/", folders[name]) for name in sorted(folders)]
    shown = [(path, count) for path, count in files.items() if count.words >= LEAST_FILE]
    shown.sort(key=lambda item: -item[1].pointing_percent - item[1].fragment_percent)
    for path, count in shown:
        lines.append(row(str(path.relative_to(root)), count))
        lines += [f"{'':21}{sentence[:100]}" for sentence in count.fragments[:examples]]
    return "\n".join(lines)
