"""Finds C++ sources that use names of a standard header without the include, for tools/tidy.py.

A source counts as including all that its headers of plait include. The development build
precompiles the standard headers of cmake/precompiled.cmake and compiles such a source; the build
of a wheel does not.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

# Names of namespace std by header. Names that several headers declare are left out.
NAMES = {
    "algorithm": "all_of any_of clamp copy copy_n count_if equal fill fill_n find find_if "
    "lower_bound max max_element min min_element minmax none_of remove remove_if replace reverse "
    "rotate sort stable_sort transform unique upper_bound",
    "array": "array",
    "atomic": "atomic atomic_ref atomic_thread_fence memory_order_acq_rel memory_order_acquire "
    "memory_order_relaxed memory_order_release memory_order_seq_cst",
    "chrono": "chrono",
    "cstdlib": "free malloc strtod strtol strtoll strtoull",
    "cstring": "memcmp memcpy memmove memset strchr strcmp strerror strlen strncmp strstr",
    "functional": "function greater less",
    "limits": "numeric_limits",
    "map": "map multimap",
    "memory": "addressof make_shared make_unique shared_ptr unique_ptr weak_ptr",
    "mutex": "call_once lock_guard mutex once_flag recursive_mutex scoped_lock unique_lock",
    "optional": "nullopt optional",
    "set": "multiset set",
    "sstream": "istringstream ostringstream stringstream",
    "string": "stoi stoul stoull string to_string",
    "thread": "this_thread thread",
    "vector": "vector",
}
HEADER_OF = {name: header for header, names in NAMES.items() for name in names.split()}


@cache
def standard_includes(path: Path, root: Path) -> frozenset[str]:
    """Returns the standard headers that a file includes, directly or by headers of plait."""
    found: set[str] = set()
    seen: set[Path] = set()
    left = [path]
    while left:
        file = left.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', file.read_text(), re.M):
            places = (file.parent, root / "src", root / "include", root / "bindings", root)
            own = [place / name for place in places if (place / name).is_file()]
            left += own[:1]
            if not own:
                found.add(name)
    return frozenset(found)


def missing_includes(path: Path, lines: list[str], root: Path) -> list[tuple[int, str, str]]:
    """Returns (line, name, header) of each name whose header the file does not include; a name
    once."""
    missing: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        for name in re.findall(r"\bstd::(\w+)", line.split("//")[0]):
            header = HEADER_OF.get(name)
            if header is not None and header not in standard_includes(path, root):
                missing.setdefault(name, number)
    return [(number, name, HEADER_OF[name]) for name, number in missing.items()]
