"""Reads the matrix of `nvidia-smi topo -m`, as printed or pasted: tabs or spaces, with or without
colors, NICs, legend, and the lines of `nvidia-smi` or `nvidia-smi -L` around it.

The matrix names no GPU model. A model is taken from lines of `nvidia-smi -L` or `nvidia-smi` in the
same file, else from `--model`.
"""

from __future__ import annotations

import re

import plait
from plait.machines.facts import Gpu, Machine, Nic, model_of

LEGEND = {
    "X": "self",
    "NV#": "a bonded set of # NVLinks",
    "PIX": "a single PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "a PCIe host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the bus between NUMA nodes",
}
SAME = {"SOC": "SYS", "PSB": "PIX"}  # older names
MOST_NVLINKS = 18  # of a GPU of unknown model
COLOR = re.compile(r"\x1b\[[0-9;]*m")
LISTED = re.compile(r"^\s*GPU ([0-9]{1,3}): (.+?)(?: \(UUID: .*)?$")  # nvidia-smi -L
TABLED = re.compile(
    r"^\|\s+([0-9]{1,3})\s+((?:NVIDIA|Tesla|Quadro|GeForce)\b.*?)\s+(?:On|Off|N/A)\s+\|"
)
RANGE = re.compile("^N(-N)?(,N(-N)?)*$".replace("N", "[0-9]{1,9}"))


def read(said: str, file: str, model: str = "") -> Machine:
    """Returns the facts of the matrix. model: of GPUs whose model the file does not state.

    Raises ParseError with the line of what cannot be read.
    """
    lines = [COLOR.sub("", line).rstrip() for line in said.splitlines()]
    head = next((i for i, line in enumerate(lines) if re.match(r"^[\s>]*GPU0\b", line)), None)
    if head is None or _is_row(lines[head]):
        raise plait.ParseError(
            f"--from {file}: wanted the matrix of `nvidia-smi topo -m` (a line of names that "
            "begins with GPU0), or an XML file of NCCL or hwloc, found neither"
        )
    names = re.findall(r"\b(?:GPU\d+|NIC\d+|mlx\d+_\w+|[a-z][a-z0-9_]*\d+)\b", lines[head])
    if twice := [name for name in names if names.count(name) > 1]:
        raise plait.ParseError(
            f"--from {file}: line {head + 1}: wanted each name once, found {twice[0]} "
            f"{names.count(twice[0])} times"
        )
    columns = lines[head][lines[head].rfind(names[-1]) + len(names[-1]) :]
    rows = {}
    for number, line in enumerate(lines[head + 1 :], head + 2):
        words = line.replace("\t", " ").split()
        if words and words[0] in names:
            rows[words[0]] = _row(words, names, f"--from {file}: line {number}")
        elif rows and words and words[0].startswith("Legend"):
            break
    gpus = [name for name in names if re.fullmatch(r"GPU\d+", name)]
    if missing := [name for name in gpus if name not in rows]:
        raise plait.ParseError(f"--from {file}: wanted a row for {missing[0]}, found none")
    machine = Machine("nvidia-smi topo -m", [Gpu() for _ in gpus])
    _check_symmetry(rows, gpus, file)
    _add_models(machine, lines)
    for gpu in machine.gpus:
        gpu.model = gpu.model or model
    _add_numa(machine, gpus, rows, "NUMA" in columns)
    _add_nvlinks(machine, gpus, rows)
    _add_switches(machine, gpus, names, rows)
    _add_nics(machine, gpus, names, rows)
    return machine.check(file)


def _is_row(line: str) -> bool:
    """A row has a cell of the legend; the line of names has none."""
    return any(word in LEGEND or word in SAME or _nvlinks(word) for word in line.split())


def _nvlinks(cell: str) -> int:
    match = re.fullmatch("NV([1-9][0-9]{0,3})", cell)
    return int(match.group(1)) if match else 0


def _row(words: list[str], names: list[str], where: str) -> tuple[dict[str, str], list[str]]:
    """Returns the row's cells by column, and the words behind them (affinities)."""
    cells = [SAME.get(word, word) for word in words[1 : len(names) + 1]]
    if len(cells) < len(names):
        raise plait.ParseError(f"{where}: wanted {len(names)} cells, found {len(cells)}")
    for name, cell in zip(names, cells, strict=True):
        if cell not in LEGEND and not _nvlinks(cell):
            raise plait.ParseError(
                f"{where}: wanted one of {', '.join(LEGEND)} for {words[0]} to {name}, found "
                f"{cell[:20]}"
            )
        if words[0].startswith("GPU") and (cell == "X") != (words[0] == name):
            raise plait.ParseError(
                f"{where}: wanted X for {words[0]} to itself alone, found {cell} for {name}"
            )
    return dict(zip(names, cells, strict=True)), words[len(names) + 1 :]


Rows = dict[str, tuple[dict[str, str], list[str]]]


def _check_symmetry(rows: Rows, gpus: list[str], file: str) -> None:
    for one in gpus:
        for other in gpus:
            there, back = rows[one][0][other], rows[other][0][one]
            if there != back:
                raise plait.ParseError(
                    f"--from {file}: wanted the same cell for {one} to {other} and back, found "
                    f"{there} and {back}"
                )


def _add_models(machine: Machine, lines: list[str]) -> None:
    for line in lines:
        match = LISTED.match(line) or TABLED.match(line)
        if match and int(match.group(1)) < len(machine.gpus):
            machine.gpus[int(match.group(1))].model = match.group(2).strip()


def _add_numa(machine: Machine, gpus: list[str], rows: Rows, has_column: bool) -> None:
    """Takes NUMA nodes from their column, else numbers the sets of CPUs, else the islands that
    only SYS joins."""
    sets: list[str] = []
    for index, name in enumerate(gpus):
        words = rows[name][1]  # CPUs, NUMA node, GPU's own NUMA node
        behind = [word for word in words[:1] if RANGE.match(word)]
        if has_column and len(words) >= 2 and RANGE.match(words[1]):
            machine.gpus[index].numa = int(re.split("[-,]", words[1])[0])
            continue
        near = [other for other in gpus if rows[name][0][other] != "SYS"]
        key = behind[0] if behind else near[0]
        if key not in sets:
            sets.append(key)
        machine.gpus[index].numa = sets.index(key)


def _add_nvlinks(machine: Machine, gpus: list[str], rows: Rows) -> None:
    """Takes NVLinks for direct ones, unless a GPU shows more than a GPU has: then each cell counts
    the links into NVSwitch, which all peers share."""
    for index, name in enumerate(gpus):
        counts = [_nvlinks(rows[name][0][other]) for other in gpus]
        if sum(counts) > model_of(machine.gpus[index].model).get("nvlinks", MOST_NVLINKS):
            machine.switch_links[index] = max(counts)
    for i, one in enumerate(gpus):
        for j, other in enumerate(gpus):
            count = _nvlinks(rows[one][0][other])
            if i < j and count and not (i in machine.switch_links and j in machine.switch_links):
                machine.nvlinks[(i, j)] = count


def _add_switches(machine: Machine, gpus: list[str], names: list[str], rows: Rows) -> None:
    """Joins devices that PIX or PXB connects: their paths meet below the host bridge. NVLink hides
    the PCIe path of two GPUs; a NIC at both shows it."""
    root = {name: name for name in names}

    def find(name: str) -> str:
        while root[name] != name:
            name = root[name]
        return name

    for one in gpus:
        for other in names:
            if other != one and rows[one][0][other] in ("PIX", "PXB"):
                root[find(one)] = find(other)
    for index, name in enumerate(gpus):
        machine.gpus[index].switches = (find(name),)
    machine.share_switches()


def _add_nics(machine: Machine, gpus: list[str], names: list[str], rows: Rows) -> None:
    """Lists NICs with the GPUs behind the same bridges; the matrix does not state their speed."""
    for name in names:
        if name in gpus:
            continue
        near = [i for i, gpu in enumerate(gpus) if rows[gpu][0][name] in ("PIX", "PXB")]
        machine.nics.append(Nic(name, 0.0, tuple(near)))
