"""Where what C and C++ programs need was installed: headers, libplait, CMake's and pkg-config's."""

from pathlib import Path

_PACKAGE = Path(__file__).absolute().parent


def include() -> Path:
    """The folder that holds plait/plait.h."""
    return _PACKAGE / "include"


def libraries() -> Path:
    """The folder of libplait.so."""
    return _PACKAGE


def cmake() -> Path:
    """The folder of plaitConfig.cmake."""
    return _PACKAGE / "share" / "cmake" / "plait"


def pkgconfig() -> Path:
    """The folder of plait.pc."""
    return _PACKAGE / "share" / "pkgconfig"
