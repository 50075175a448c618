"""Writes the functions of the drop-in under MPI from shims/mpi/functions.txt.

Two files are the table of the native MPI's functions, the others export functions to programs. Each
exported function is plain C++ text, so that a search for its name finds the function.

    python tools/mpi_functions.py            # writes the files
    python tools/mpi_functions.py --check    # names the files that are not up to date
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "shims" / "mpi"
LIST = FOLDER / "functions.txt"
MADE = "tools/mpi_functions.py writes this file from functions.txt."

# Types of the C binding by value. Every ABI passes a handle in a register
# (src/comm/transport/mpi/abi.hpp).
VALUES = {
    **dict.fromkeys(("MPI_Comm", "MPI_Datatype", "MPI_Op", "MPI_Info", "MPI_Group"), "Handle"),
    **dict.fromkeys(("MPI_Request", "MPI_Errhandler", "MPI_Message"), "Handle"),
    "MPI_Count": "Count",
    "MPI_Aint": "std::intptr_t",
    "MPI_Comm_copy_attr_function": "CopyAttribute",
    "MPI_Comm_delete_attr_function": "DeleteAttribute",
    "MPI_Comm_errhandler_function": "HandleError",
    "MPI_Grequest_query_function": "QueryRequest",
    "MPI_Grequest_free_function": "FreeRequest",
    "MPI_Grequest_cancel_function": "CancelRequest",
}
# The size of these depends on the ABI, so pointers to them are void*.
OPAQUE = {"MPI_Status", *(name for name, made in VALUES.items() if made == "Handle")}
# An array of MPI_Aint that is none of Displ has this type in both forms: narrowing leaves it alone.
FIXED_ARRAY = "const MPI_Aint*"
# An array of MPI_Aint that is none of Displ has this type in both forms: narrowing leaves it alone.
FIXED_ARRAY = "const MPI_Aint*"
SMALL = {"Count": "int", "Displ": "int"}
LARGE = {"Count": "Count", "Displ": "std::intptr_t"}
MESSAGES = {"send", "isend", "send_init", "recv", "irecv", "recv_init", "sendrecv", "isendrecv"}
WITH_C_FORM = {"served", "staged", "native", "inative", "native_init"} | MESSAGES
NEW_IN_MPI_4 = re.compile(r"Isendrecv|\w+_init$")  # Open MPI 4.1 has these as MPIX_


@dataclass
class Function:
    """A row of the list."""

    kind: str
    name: str
    parameters: list[tuple[str, str]]  # type and name, as in the list
    file: str
    details: dict[str, str] = field(default_factory=dict)


@dataclass
class Form:
    """A function as declared: one of the forms of a row."""

    name: str  # without MPI_
    listed: list[tuple[str, str]]  # types of the list
    of: Function
    mode: str = ""  # blocking, nonblocking, persistent
    is_large: bool = False

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Types of C++ and names."""
        return [(self.cpp_type(kind), name) for kind, name in self.listed]

    def c_type(self, kind: str) -> str:
        """Returns the type of the C binding."""
        large = {"Count": "MPI_Count", "Displ": "MPI_Aint"}
        small = {"Count": "int", "Displ": "int"}
        return re.sub(
            r"\b(Count|Displ)\b", lambda one: (large if self.is_large else small)[one[0]], kind
        )

    def cpp_type(self, kind: str) -> str:
        if kind == FIXED_ARRAY and self.of.kind in WITH_C_FORM:
            return "const void*"
        match = re.fullmatch(r"(const )?(\w+)(\**)", self.c_type(kind))
        if match is None:
            raise SystemExit(f"{LIST.name}: wanted a type of C, found {kind!r}")
        const, name, stars = match[1] or "", match[2], match[3]
        if stars and name in OPAQUE:
            return f"{const}void{stars}"
        return f"{const}{VALUES.get(name, name)}{stars}"

    @property
    def small_name(self) -> str:
        return self.name.removesuffix("_c") if self.is_large else self.name

    def names(self, *without: str) -> str:
        return ", ".join(name for _, name in self.parameters if name not in without)

    def declaration(self, names: bool = True) -> str:
        return ", ".join(f"{kind} {name}" if names else kind for kind, name in self.parameters)


def parsed(text: str) -> tuple[dict[str, str], list[Function]]:
    """Returns the opening comments of generated files, and the functions."""
    files: dict[str, str] = {}
    functions: list[Function] = []
    file = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if section := re.fullmatch(r"\[(\w+)\] (.+)", line):
            file = section[1]
            files[file] = section[2]
        elif detail := re.fullmatch(r"\s+(\w+):\s*(.+)", line):
            functions[-1].details[detail[1]] = detail[2]
        elif row := re.fullmatch(r"(\w+)\s+(\w+)\((.*)\)", line):
            functions.append(Function(row[1], row[2], parameters_of(row[3]), file))
        else:
            raise SystemExit(f"{LIST.name}:{number}: wanted a row, a detail or a section: {line!r}")
    return files, functions


def parameters_of(text: str) -> list[tuple[str, str]]:
    found = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(.+?)\s*(\w+)(\[\])?", one)
        if match is None:
            raise SystemExit(f"{LIST.name}: wanted a type and a name, found {one!r}")
        found.append((match[1] + ("*" if match[3] else ""), match[2]))
    return found


def forms_of(one: Function) -> list[Form]:
    """Returns the forms of a row, in the order of the generated files."""
    request, info = ("MPI_Request*", "request"), ("MPI_Info", "info")
    made: list[tuple[str, str, list[tuple[str, str]]]] = [("", one.name, [])]
    if one.kind in ("served", "staged"):
        made = [
            ("blocking", one.name, []),
            ("nonblocking", f"I{one.name[0].lower()}{one.name[1:]}", [request]),
            ("persistent", f"{one.name}_init", [info, request]),
        ]
    found = []
    for is_large in (False, True) if one.kind in WITH_C_FORM else (False,):
        for mode, name, more in made:
            name += "_c" if is_large else ""
            found.append(Form(name, one.parameters + more, one, mode, is_large))
    return found


def exported_names(functions: list[Function]) -> set[str]:
    """Returns the names that the drop-in exports, without those of plait's own."""
    exported = [one for one in functions if one.kind != "called"]
    names = [form.name for one in exported for form in forms_of(one)]
    return {f"{prefix}_{name}" for name in names for prefix in ("MPI", "PMPI")} | {
        "MPIX_Query_cuda_support"
    }


# Bodies of exported functions.


def native_type(form: Form) -> str:
    """The native function as a type, which exported functions hand to templates."""
    members = [form.name, form.small_name] if form.is_large else [form.name]
    given = [f"&NativeFunctions::{name}" for name in members]
    if form.is_large and form.of.details.get("arrays", "ranks_in") != "ranks_in":
        given.append(form.of.details["arrays"])
    return f"Native<{', '.join(given)}>"


def comm_of(form: Form) -> str:
    """The communicator whose error handler gets errors."""
    return "comm" if "comm" in form.names().split(", ") else "native().abi.world"


def served_body(form: Form) -> str:
    arguments = form.names("info", "request")
    args = f"args_of::{form.of.name}"
    arrays = [
        name
        for kind, name in form.parameters
        if re.fullmatch(r"const (Count|std::intptr_t)\*", kind)
    ]
    text = f"constexpr {native_type(form)} mpi;\n"
    if form.is_large and arrays and "root" in form.names().split(", "):
        text += f"if (mpi.is_missing()) null_unless_root(root, comm, {', '.join(arrays)});\n"
    passed = {
        "blocking": f"has_call_slot() && is_passed_on({args}({arguments}), CallForm::blocking)",
        "nonblocking": f"is_passed_on({args}({arguments}), CallForm::nonblocking)",
        "persistent": "!is_intercepting()",
    }[form.mode]
    call = f"return mpi(comm)({form.names()});"
    if form.mode == "blocking":
        words = f"words_of_collective(mpi, {args}({arguments}))"
        call = f"{{\nconst InCall inside(*call_slot, {words});\n{call}\n}}"
    run = {
        "blocking": f"run_collective(mpi, {args}, {arguments})",
        "nonblocking": f"start_collective(mpi, {args}, request, {arguments})",
        "persistent": f"init_collective(mpi, {args}, info, request, {arguments})",
    }[form.mode]
    return text + f"if ({passed})\n{call}\nreturn {run};"


def staged_body(form: Form, mode: str) -> str:
    text = f"constexpr {native_type(form)} mpi;\n"
    if "dest" in form.names().split(", "):  # a send
        text += f"if (uses_rendezvous()) note_native_send({form.names('request')});\n"
    stage = f"[&](CallStaging& staging) {{ staging.{form.of.details['stage']}; }}"
    rest = form.names("info", "request") + (", info" if form.mode == "persistent" else "")
    run = {"blocking": "staged(", "nonblocking": "start_staged(", "persistent": "init_staged("}[
        mode
    ]
    result = "" if mode == "blocking" else "request, "
    comm = comm_of(form)
    if mode == "blocking" and form.of.kind == "staged":
        text += "const InCall inside(words_of_bare(mpi, comm));\n"
    return text + f"return {run}{comm}, {result}{stage}, mpi({comm}), {rest});"


def message_body(form: Form) -> str:
    may_pass = "are_messages_native()"
    passed = f"mpi({comm_of(form)})({form.names()})"
    if form.of.kind in ("send", "recv", "sendrecv"):
        may_pass = "may_pass(mpi)"
        passed = f"pass_{form.of.kind}(mpi, {form.names()})"
    return (
        f"constexpr {native_type(form)} mpi;\nif ({may_pass})\nreturn {passed};\n"
        f"return run_{form.of.kind}(mpi, {form.names()});"
    )


COMMENTS = {
    "served": "Served by plait, or passed to the MPI.",
    "staged": "Passed to the MPI, with staging buffers for GPU memory.",
    "native": "Passed to the MPI, with staging buffers for GPU memory.",
    "inative": "Passed to the MPI, with staging buffers for GPU memory.",
    "native_init": "Passed to the MPI, with staging buffers for GPU memory.",
    "send": "By rendezvous, or passed to the MPI.",
    "recv": "The message comes by rendezvous, or from the MPI.",
    "sendrecv": "Two messages, each by rendezvous or passed to the MPI.",
}
COMMENTS["isend"] = COMMENTS["send_init"] = COMMENTS["send"]
COMMENTS["irecv"] = COMMENTS["recv_init"] = COMMENTS["recv"]
COMMENTS["isendrecv"] = COMMENTS["sendrecv"]


def comment(form: Form) -> str:
    mode = {"nonblocking": "Non-blocking. ", "persistent": "Persistent. "}
    return f"/// {mode.get(form.mode, '')}{COMMENTS[form.of.kind]}"


def exported(form: Form) -> str:
    kind = form.of.kind
    if kind == "served":
        body = served_body(form)
    elif kind in MESSAGES:
        body = message_body(form)
    else:
        modes = {"native": "blocking", "inative": "nonblocking", "native_init": "persistent"}
        body = staged_body(form, modes.get(kind, form.mode))
    return (
        f"{comment(form)}\nint MPI_{form.name}({form.declaration()}) {{\n{body}\n}}\n"
        f"int PMPI_{form.name}({form.declaration(names=False)})\n"
        f'__attribute__((alias("MPI_{form.name}")));\n'
    )


HEADERS = {"served": "collective_call", "staged": "staged_call"}


def export_file(opening: str, functions: list[Function]) -> str:
    header = HEADERS.get(functions[0].kind, "message_call")
    parts = [f"// {opening} {MADE}", f'#include "shims/mpi/intercept/{header}.hpp"', ""]
    parts += ["namespace plait::mpi {", "#pragma GCC visibility push(default)", 'extern "C" {', ""]
    for one in functions:
        parts += [exported(form) for form in forms_of(one)]
    parts += ['}  // extern "C"', "#pragma GCC visibility pop", "}  // namespace plait::mpi", ""]
    return "\n".join(parts)


def table_header(functions: list[Function]) -> str:
    members = [
        f"int (*{form.name})({form.declaration()}) = nullptr;"
        for one in functions
        for form in forms_of(one)
    ]
    return f"""// The native MPI's functions that the drop-in calls. {MADE}
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "shims/mpi/abi/callbacks.hpp"

namespace plait::mpi {{

/// A pointer is null if the MPI lacks the function.
struct NativeFunctions {{
{chr(10).join(members)}
}};

/// Symbol of a member of NativeFunctions.
struct NativeName {{
  const char* name;
  const char* early_name;  ///< in MPIs before MPI 4; may be null
  std::size_t offset;      ///< of the member
}};
std::span<const NativeName> native_names();

}}  // namespace plait::mpi
"""


def table_source(functions: list[Function]) -> str:
    rows = []
    for one in functions:
        for form in forms_of(one):
            is_new = NEW_IN_MPI_4.match(form.name) and not form.is_large
            early = f'"PMPIX_{form.name}"' if is_new else "nullptr"
            member = f"offsetof(NativeFunctions, {form.name})"
            rows.append(f'{{"PMPI_{form.name}", {early}, {member}}},')
    return f"""// Names of the native MPI's functions. {MADE}
#include "shims/mpi/abi/native_functions.hpp"

namespace plait::mpi {{
namespace {{

constexpr NativeName kNames[] = {{
{chr(10).join(rows)}
}};

}}  // namespace

std::span<const NativeName> native_names() {{ return kNames; }}

}}  // namespace plait::mpi
"""


def formatted(name: str, text: str) -> str:
    beside = Path(sys.executable).with_name("clang-format")
    program = str(beside) if beside.exists() else shutil.which("clang-format")
    if program is None:
        raise SystemExit("mpi_functions: wanted clang-format, found none: pip install .[test]")
    command = [program, f"--assume-filename={ROOT / name}"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def generated() -> dict[str, str]:
    """Returns the text of each generated file."""
    files, functions = parsed(LIST.read_text())
    made = {
        "abi/native_functions.hpp": table_header(functions),
        "abi/native_functions.cpp": table_source(functions),
    }
    for file, opening in files.items():
        of_file = [one for one in functions if one.file == file]
        made[f"intercept/{file}.cpp"] = export_file(opening, of_file)
    return {
        f"shims/mpi/{name}": formatted(f"shims/mpi/{name}", text) for name, text in made.items()
    }


def main() -> int:
    stale = [
        name
        for name, text in generated().items()
        if not (ROOT / name).exists() or (ROOT / name).read_text() != text
    ]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"{name}: run python tools/mpi_functions.py")
        return 1 if stale else 0
    for name, text in generated().items():
        (ROOT / name).write_text(text)
    print(f"mpi_functions: {len(stale)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
