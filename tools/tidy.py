"""Checks the rules of ARCHITECTURE.md: include order, sizes, names, comments.

Prints a line per breach (file:line: rule: finding); exits 1 after any breach. `--words [PATH...]`
prints a report on the prose of comments and pages instead (tools/words.py), and exits 0; without
paths reads all tracked files.
"""

import ast
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import std_includes
import words

ROOT = Path(__file__).resolve().parent.parent
LINE_COLUMNS = 100
FILE_LINES = 700
FUNCTION_LINES = 70
EVIDENCE = ROOT / "python" / "plait" / "evidence"
READING_BUDGET_LINES = 3560  # the reading route of ARCHITECTURE.md: an afternoon

# Rooms in order. A room is a folder of src; in gpu and comm each subfolder is a room. A room
# includes from itself and from the rooms that its row names. All of these stand above it, so no two
# rooms include each other. `gpu/*` names all rooms of gpu. A row may go on in the next line.
ROOMS = """
base:
driver:          base
topo:            base driver
plan:            base topo
planner:         base topo plan
verify:          base topo plan
sim:             base topo plan
cpu:             base topo plan
gpu/abi:         plan
gpu/device:      base driver plan gpu/abi
gpu/arena:       base driver gpu/abi
gpu/consensus:   base driver gpu/abi
gpu/engine:      base driver plan gpu/abi gpu/device gpu/arena
gpu/path_check:  base gpu/abi gpu/device gpu/arena
gpu/lanes:       base plan gpu/abi gpu/device gpu/arena gpu/engine
gpu/tile:        base plan gpu/abi gpu/device gpu/engine
gpu/ll:          base plan gpu/abi gpu/device gpu/engine gpu/lanes gpu/tile
gpu/chunk:       base plan gpu/abi gpu/device gpu/engine gpu/ll
gpu/norm:        base driver plan gpu/abi gpu/device gpu/engine gpu/ll
gpu/copy:        base topo plan cpu gpu/abi gpu/device gpu/consensus gpu/engine gpu/tile
gpu/host_path:   base plan cpu gpu/abi gpu/consensus gpu/engine gpu/tile gpu/copy
gpu/scale:       plan gpu/abi gpu/device gpu/engine
gpu/p2p:         base topo plan gpu/abi gpu/device gpu/engine gpu/ll
gpu/copy_pair:   base driver plan gpu/device
gpu/select:      base topo plan gpu/engine gpu/path_check gpu/lanes gpu/tile gpu/ll gpu/chunk
                 gpu/norm gpu/copy gpu/host_path gpu/scale gpu/p2p
gpu/rank:        base plan gpu/*
comm/bootstrap:  base driver topo plan
comm/trace:      base driver plan gpu/select comm/bootstrap
comm/shm:        base plan gpu/arena comm/bootstrap
comm/choose:     base driver topo plan planner verify sim cpu gpu/* comm/bootstrap
comm/transport:  base driver topo plan cpu comm/bootstrap
comm/liveness:   base plan cpu comm/bootstrap comm/trace comm/shm comm/choose
comm/meet:       base comm/bootstrap comm/shm comm/liveness
comm/p2p:        base plan cpu comm/bootstrap comm/shm comm/liveness
comm/node:       base driver topo plan cpu comm/bootstrap comm/trace comm/shm comm/choose
                 comm/liveness
comm/gpu:        base driver topo plan verify sim gpu/* comm/bootstrap comm/trace comm/shm
                 comm/choose comm/liveness comm/node
comm/multinode:  base driver topo plan planner gpu/* comm/bootstrap comm/trace comm/shm comm/choose
                 comm/transport comm/liveness comm/node comm/gpu
comm/api:        base driver topo plan planner verify sim cpu gpu/* comm/*
"""
SPLIT = ("gpu", "comm")  # folders whose subfolders are rooms


def rooms_of(rows: str) -> dict[str, set[str]]:
    """Returns the rooms that each room may include from. Fails if a row names a room that does not
    stand above it."""
    found: dict[str, set[str]] = {}
    for row in re.sub(r"\n +", " ", rows.strip()).splitlines():
        room, _, named = row.partition(":")
        allowed: set[str] = set()
        for name in named.split():
            above = {one for one in found if one == name or fnmatch(one, name)}
            if not above:
                raise SystemExit(f"tidy: row of {room}: {name} is no room above it")
            allowed |= above
        found[room] = allowed
    return found


MAY_INCLUDE = rooms_of(ROOMS)
# The folder of each public header, in the same order.
HEADER_FOLDER = {
    "error": "base",
    "topology": "topo",
    "plan": "plan",
    "builder": "plan",
    "strategy": "planner",
    "courier": "planner",
    "report": "verify",
    "timeline": "sim",
    "communicator": "comm",
    "copies": "comm",
}
FOLDERS = {room.split("/")[0] for room in MAY_INCLUDE}
BANNED_NAME = re.compile(r"\b\w*(Utils?|Impl|Ext|V2|Manager|Helper)\b")
BANNED_TEXT = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
ARCH_IFDEF = re.compile(
    r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*(__CUDA|__HIP|__x86_64|__AVX|__aarch64)"
)


def tracked(*patterns: str) -> list[Path]:
    """Returns the files that git tracks or does not ignore, by patterns."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    names = done.stdout.split() if done.returncode == 0 else []
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def breach(path: Path, line: int, rule: str, found: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {rule}: {found}"


def check_lines(path: Path, lines: list[str]) -> list[str]:
    found = []
    if len(lines) > FILE_LINES:
        found.append(breach(path, 1, "file length", f"{len(lines)} lines, at most {FILE_LINES}"))
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_COLUMNS and path.suffix != ".def":  # rows of tables may be longer
            found.append(breach(path, number, "columns", f"{len(line)}, at most {LINE_COLUMNS}"))
        if BANNED_TEXT.search(line) and path.name != "tidy.py":
            found.append(breach(path, number, "unfinished", line.strip()))
    return found


def check_opening(path: Path, lines: list[str], marks: tuple[str, ...]) -> list[str]:
    first = next((line for line in lines if line.strip() and not line.startswith("#!")), "")
    if first.startswith(marks):
        return []
    return [breach(path, 1, "opening comment", "the file does not say what becomes what")]


def room_of(parts: tuple[str, ...]) -> str:
    """Returns the room of a file below src, also of one that is in no room of the table."""
    return "/".join(parts[:2]) if parts[0] in SPLIT and len(parts) > 2 else parts[0]


def may_include(room: str, parts: tuple[str, ...]) -> bool:
    """Returns whether a file of the room may include a file below src, or a public header."""
    allowed = MAY_INCLUDE[room] | {room}
    if parts[0] == "plait":
        folder = HEADER_FOLDER.get(Path(parts[1]).stem)
        return folder is None or any(one.split("/")[0] == folder for one in allowed)
    return parts[0] not in FOLDERS or room_of(parts) in allowed


def check_includes(path: Path, lines: list[str]) -> list[str]:
    parts = path.relative_to(ROOT).parts
    if parts[0] != "src" or len(parts) < 3:
        return []
    room = room_of(parts[1:])
    if room not in MAY_INCLUDE:
        return [breach(path, 1, "room", f"{room} has no row in tools/tidy.py")]
    found = []
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include "([^"]+)"', line)
        if match and "/" in match.group(1) and not may_include(room, Path(match.group(1)).parts):
            found.append(breach(path, number, "include order", f"{room} includes {match.group(1)}"))
    return found


# Folders of shims/mpi in order: a folder includes from itself and from those before it.
MPI_ROOMS = ("abi", "args", "staging", "requests", "p2p", "collective", "intercept")


def check_mpi_rooms(path: Path, lines: list[str]) -> list[str]:
    parts = path.relative_to(ROOT).parts
    if parts[:2] != ("shims", "mpi") or len(parts) < 4:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include "shims/mpi/(\w+)/', line)
        if match and MPI_ROOMS.index(match.group(1)) > MPI_ROOMS.index(parts[2]):
            found.append(
                breach(path, number, "include order", f"{parts[2]} includes {match.group(1)}")
            )
    return found


def check_std_includes(path: Path, lines: list[str]) -> list[str]:
    """Checks that code of plait includes the standard headers whose names it uses."""
    if path.relative_to(ROOT).parts[0] not in ("src", "include", "shims", "bindings"):
        return []
    is_whole = path.suffix == ".cpp" or (path.suffix == ".hpp" and "#pragma once" in lines)
    if not is_whole:
        return []
    return [
        breach(path, number, "include", f"std::{name} without <{header}>")
        for number, name, header in std_includes.missing_includes(path, lines, ROOT)
    ]


def check_environment(path: Path, lines: list[str]) -> list[str]:
    """Checks that product code reads the environment under the lock of base/env.cpp alone."""
    parts = path.relative_to(ROOT).parts
    if parts[0] not in ("src", "shims", "bindings") or parts == ("src", "base", "env.cpp"):
        return []
    return [
        breach(path, number, "environment", "read it by read_env() or foreign_env()")
        for number, line in enumerate(lines, 1)
        if re.search(r"\b(secure_)?getenv\(", line.split("//")[0])
    ]


def check_cpp_functions(path: Path, lines: list[str]) -> list[str]:
    """Checks lengths: a top-level brace after a parenthesis opens a function."""
    found, depth, start, name, opener_depths = [], 0, 0, "", []
    for number, line in enumerate(lines, 1):
        code = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])+\'|//.*', '""', line)
        for char in code:
            if char == "{":
                head = " ".join(lines[max(0, number - 4) : number])
                is_scope = (
                    re.search(
                        r"\b(namespace|struct|class|enum|union|extern)\b[^;(){}]*\{?\s*$",
                        code[: code.index("{") + 1],
                    )
                    if code.count("{")
                    else None
                )
                if not opener_depths and not is_scope and "(" in head:
                    opener_depths.append(depth)
                    start, name = number, code.strip()
                depth += 1
            elif char == "}":
                depth -= 1
                if opener_depths and depth == opener_depths[-1]:
                    opener_depths.pop()
                    length = number - start + 1
                    if length > FUNCTION_LINES:
                        what = f"{length} lines, at most {FUNCTION_LINES}: {name}"
                        found.append(breach(path, start, "function length", what))
    return found


def check_cpp(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    found = check_lines(path, lines) + check_opening(path, lines, ("//", "/*"))
    found += check_includes(path, lines) + check_mpi_rooms(path, lines)
    found += check_std_includes(path, lines)
    found += check_environment(path, lines)
    found += check_cpp_functions(path, lines)
    where = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(lines, 1):
        if not where.startswith(("src/driver/", "src/cpu/", "src/gpu/")) and ARCH_IFDEF.match(line):
            found.append(breach(path, number, "architecture #if", line.strip()))
        match = re.match(r"\s*(class|struct)\s+(\w+)", line)
        if match and BANNED_NAME.search(match.group(2)):
            found.append(breach(path, number, "name", match.group(2)))
    return found


def types_of(lines: list[str]) -> list[tuple[int, str]]:
    """Returns (line, name with namespaces) of each type defined in a named namespace."""
    found, spaces = [], []
    for number, line in enumerate(lines, 1):
        opened = re.match(r"namespace (?:([\w:]+) )?\{$", line)
        if opened:
            spaces.append(opened.group(1) or "")
        elif spaces and line.startswith("}  // namespace"):
            spaces.pop()
        defined = re.match(r"(?:struct|class|enum class|enum|union) ([\w:]+)(?<!:)\b", line)
        if defined and not line.endswith(";") and spaces and "" not in spaces:
            found.append((number, "::".join([*spaces, defined.group(1)])))
    return found


def check_one_definition(paths: list[Path]) -> list[str]:
    """Checks that no two types share a name: the linker of a program would take both for the same
    type."""
    first: dict[str, Path] = {}
    found = []
    for path in paths:
        for number, name in types_of(path.read_text().splitlines()):
            if first.setdefault(name, path) != path:
                what = f"{name} is another in {first[name].relative_to(ROOT)}"
                found.append(breach(path, number, "one definition", what))
    return found


def check_evidence(path: Path, tree: ast.Module) -> list[str]:
    """Checks that python/plait/evidence imports plait's public names alone."""
    if EVIDENCE not in path.parents:
        return []
    package = ast.parse((EVIDENCE.parent / "__init__.py").read_text())
    public = next(
        ast.literal_eval(node.value)
        for node in package.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "plait" and rest and rest[0] not in ("evidence", *public):
                found.append(breach(path, node.lineno, "import of evidence", name))
    return found


def check_python(path: Path) -> list[str]:
    source = path.read_text()
    lines = source.splitlines()
    found = check_lines(path, lines)
    tree = ast.parse(source)
    if source.strip() and ast.get_docstring(tree) is None:
        found.append(breach(path, 1, "opening comment", "the module has no docstring"))
    found += check_evidence(path, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                what = f"{length} lines, at most {FUNCTION_LINES}: {node.name}"
                found.append(breach(path, node.lineno, "function length", what))
    return found


def check_page(path: Path) -> list[str]:
    """Checks the width of pages; rows of tables may be longer."""
    lines = path.read_text().splitlines()
    return [
        breach(path, number, "columns", f"{len(line)}, at most {LINE_COLUMNS}")
        for number, line in enumerate(lines, 1)
        if len(line) > LINE_COLUMNS and not line.lstrip().startswith("|")
    ]


def reading_route() -> list[Path]:
    """Returns the files of ARCHITECTURE.md's reading route. A bare name is a file of the folder
    named last."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    route = page.split("## Reading route", 1)[1].split("\n\n", 1)[0]
    folder, files = ROOT, []
    for name in re.findall(r"`(\w[\w/.]*[/.]\w*)`", route):
        path = ROOT / name if "/" in name else folder / name
        if name.endswith("/"):
            folder = path
        else:
            folder = path.parent
            files.append(path)
    return files


def check_reading_budget() -> list[str]:
    page, files = ROOT / "ARCHITECTURE.md", reading_route()
    lost = [path for path in files if not path.is_file()]
    if lost or not files:
        found = ", ".join(str(path.relative_to(ROOT)) for path in lost) or "no file"
        return [breach(page, 1, "reading route", f"wanted files, found {found}")]
    total = sum(len(path.read_text().splitlines()) for path in files)
    if total <= READING_BUDGET_LINES:
        return []
    what = f"the reading route has {total} lines, at most {READING_BUDGET_LINES}"
    return [breach(page, 1, "reading budget", what)]


def print_words(names: list[str]) -> int:
    kinds = (".md", ".py", *words.SUFFIXES_CPP)
    paths = [path for path in tracked(*names) if path.suffix in kinds]
    print(words.report(paths, ROOT))
    return 0


def main() -> int:
    if sys.argv[1:2] == ["--words"]:
        return print_words(sys.argv[2:])
    found = check_reading_budget()
    for path in tracked("*.cpp", "*.hpp", "*.h", "*.def", "*.cu", "*.cuh"):
        found += check_cpp(path)
    found += check_one_definition(
        tracked("src/*.?pp", "include/*.hpp", "shims/*.?pp", "bindings/*.?pp")
    )
    for path in tracked("*.py"):
        found += check_python(path)
    for path in tracked("*.md"):
        found += check_page(path)
    print("\n".join(found) if found else "tidy: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
