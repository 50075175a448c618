"""Output files of commands. Commands check paths before measuring; all errors have the same
form."""

from __future__ import annotations

import csv
import datetime
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import plait
from plait import gpu

PICTURES = (".png", ".svg", ".pdf")


def check(file: str, option: str, makes_folders: bool = False) -> None:
    """Raises FileError if `file`, the value of `option`, cannot be written. Empty = no file.

    makes_folders: the caller will make missing parent folders.
    """
    if not file:
        return
    path = Path(file)
    folder = path.parent
    while makes_folders and not folder.exists() and folder != folder.parent:
        folder = folder.parent
    wanted = f"{option}: wanted to write {file}"
    if path.is_dir():
        raise plait.FileError(f"{wanted}, found a folder of that name; name a file in it")
    if not folder.is_dir():
        raise plait.FileError(f"{wanted}, found no folder {folder}; make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise plait.FileError(f"{wanted}, found no permission to")


def check_new(file: str, option: str, force: bool) -> None:
    """Checks a file that users edit: also raises FileError if the file exists and `force` is
    false."""
    check(file, option)
    if file and Path(file).is_file() and not force:
        raise plait.FileError(
            f"{option}: wanted to write {file}, found a file of that name; take another name, or "
            "give --force to overwrite it"
        )


def check_picture(file: str, option: str) -> None:
    """Checks a picture: also raises if the suffix is no picture format or matplotlib is missing."""
    check(file, option)
    if not file:
        return
    if Path(file).suffix.lower() not in PICTURES:
        raise plait.InvalidArgumentError(
            f"{option}: wanted a file that ends in {', '.join(PICTURES)}, found {file}"
        )
    load_pyplot()


def human_bytes(size: float) -> str:
    """Returns a size with a unit: 1048576 -> '1 MiB'."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def why(error: OSError) -> str:
    """Returns the words of the system, without number and file."""
    return error.strerror or str(error)


def write_text(file: str, text: str, option: str) -> None:
    """Writes a file, the value of `option`; raises FileError on failure."""
    try:
        Path(file).write_text(text)
    except OSError as error:
        raise plait.FileError(f"{option}: wanted to write {file}: {why(error)}") from None


def write_csv(
    file: str, facts: Mapping[str, Any], fields: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Writes `facts` as comment lines, a header of `fields`, and the rows. Missing fields are
    empty, floats have 3 decimals."""
    try:
        with open(file, "w", newline="") as stream:
            for name, value in facts.items():
                stream.write(f"# {name}: {value}\n")
            writer = csv.writer(stream)
            writer.writerow(fields)
            for row in rows:
                values = [row.get(name, "") for name in fields]
                writer.writerow([f"{v:.3f}" if isinstance(v, float) else v for v in values])
    except OSError as error:
        raise plait.FileError(f"wanted to write {file}: {why(error)}") from None


def time_text(us: float) -> str:
    """Returns text: '4.94 us', '409.88 us', '61.2 ms' or '2.45 s'."""
    if us >= 999.5e3:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1e3:.1f} ms" if us >= 1e4 else f"{us:.2f} us"


def provenance(topology: plait.Topology) -> dict[str, Any]:
    """Returns machine, driver, version and time of a measurement, for comment lines of a file."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "machine": topology.name,
        "fingerprint": topology.fingerprint(),
        "cuda_driver": gpu.driver_version(),
        "plait": plait.__version__,
        "date": now.isoformat(timespec="seconds"),
    }


def load_pyplot() -> Any:
    """Returns matplotlib.pyplot with a backend that needs no screen. Raises UnsupportedError if
    matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise plait.UnsupportedError(
            "wanted matplotlib for a plot, found none; pip install matplotlib"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, file: str, dpi: int) -> None:
    """Writes a figure to `file` and closes it. Raises FileError on failure."""
    try:
        figure.savefig(file, dpi=dpi)
    except OSError as error:
        raise plait.FileError(f"wanted to write {file}: {why(error)}") from None
    finally:
        load_pyplot().close(figure)
