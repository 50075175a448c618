"""Reads dependencies, symbols and symbol versions of ELF files, for `plait run` and `plait doctor`.

Reads 64-bit little-endian files only, since plait runs on no other machine.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_SYMTAB, DT_RPATH, DT_RUNPATH = 1, 5, 6, 15, 29
DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
SHT_DYNSYM = 11


def is_elf(path: str | Path) -> bool:
    """Returns whether the file is 64-bit little-endian ELF."""
    with open(path, "rb") as file:
        return file.read(6) == b"\x7fELF\x02\x01"


def _segments(data: bytes) -> list[tuple[int, int, int, int]]:
    """Returns (type, file offset, address, bytes in the file) of each program header."""
    at, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    found = []
    for number in range(count):
        kind, _, offset, address, _, in_file = struct.unpack_from(
            "<IIQQQQ", data, at + number * size
        )
        found.append((kind, offset, address, in_file))
    return found


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode(errors="replace")


def _file_offset(data: bytes, wanted: int) -> int:
    """Returns the file offset of a load address; 0 if no segment holds it."""
    for kind, offset, address, size in _segments(data):
        if kind == PT_LOAD and address <= wanted < address + size:
            return wanted - address + offset
    return 0


def _dynamic(data: bytes) -> tuple[list[tuple[int, int]], int]:
    """Returns the dynamic entries and the file offset of the string table."""
    entries: list[tuple[int, int]] = []
    for kind, offset, _, size in _segments(data):
        if kind == PT_DYNAMIC:
            entries = [
                struct.unpack_from("<QQ", data, at) for at in range(offset, offset + size, 16)
            ]
    strings = next((value for tag, value in entries if tag == DT_STRTAB), 0)
    return entries, _file_offset(data, strings)


def needed(path: str | Path) -> tuple[list[str], list[str]]:
    """Returns (DT_NEEDED names, RPATH and RUNPATH folders) of a file."""
    data = Path(path).read_bytes()
    entries, strings = _dynamic(data)
    names = [_text(data, strings + value) for tag, value in entries if tag == DT_NEEDED]
    paths = [
        _text(data, strings + value) for tag, value in entries if tag in (DT_RPATH, DT_RUNPATH)
    ]
    origin = str(Path(path).resolve().parent)
    folders = [one.replace("$ORIGIN", origin) for whole in paths for one in whole.split(":")]
    return names, folders


def versions_needed(path: str | Path) -> set[str]:
    """Returns the symbol versions that a file requires: GLIBC_2.34, GLIBCXX_3.4.29, ..."""
    data = Path(path).read_bytes()
    entries, strings = _dynamic(data)
    values = dict(entries)
    at = _file_offset(data, values.get(DT_VERNEED, 0))
    found = set()
    for _ in range(values.get(DT_VERNEEDNUM, 0)):
        _, count, _, first, after = struct.unpack_from("<HHIII", data, at)
        one = at + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, one)
            found.add(_text(data, strings + name))
            one += step
        at += after
    return found


def all_needed(path: str | Path, depth: int = 4) -> Iterator[str]:
    """Yields the libraries that a file needs, recursively as far as RPATH and RUNPATH lead."""
    names, folders = needed(path)
    for name in names:
        yield name
        for folder in folders:
            library = Path(folder) / name
            if depth > 0 and library.exists() and is_elf(library):
                yield from all_needed(library, depth - 1)
                break


def exported(path: str | Path) -> set[str]:
    """Returns the names of symbols that a shared object defines."""
    return _symbols(path)[0]


def asked_for(path: str | Path) -> set[str]:
    """Returns the names of symbols that a shared object leaves undefined."""
    return _symbols(path)[1]


def _symbols(path: str | Path) -> tuple[set[str], set[str]]:
    """Returns (defined, undefined) names of the dynamic symbol table."""
    data = Path(path).read_bytes()
    table = struct.unpack_from("<Q", data, 40)[0]
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + n * size) for n in range(count)]
    defined: set[str] = set()
    wanted: set[str] = set()
    for section in sections:
        if section[1] != SHT_DYNSYM:
            continue
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, _, _, index, _, _ = struct.unpack_from("<IBBHQQ", data, at)
            (defined if index != 0 else wanted).add(_text(data, strings + name))
    return defined - {""}, wanted - {""}
