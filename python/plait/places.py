"""Folders of the installed headers, libplait, CMake package and pkg-config file."""

from pathlib import Path

_PACKAGE = Path(__file__).absolute().parent


def include() -> Path:
    """Returns the folder of plait/plait.h."""
    return _PACKAGE / "include"


def libraries() -> Path:
    """Returns the folder of libplait.so."""
    return _PACKAGE


def cmake() -> Path:
    """Returns the folder of plaitConfig.cmake."""
    return _PACKAGE / "share" / "cmake" / "plait"


def pkgconfig() -> Path:
    """Returns the folder of plait.pc."""
    return _PACKAGE / "share" / "pkgconfig"
