"""Compares plait's declarations of the CUDA driver and NVML with NVIDIA's headers.

A compiler checks constants, layouts and arguments of each function. The headers come with the
packages of `pip install '.[test]'`, with toolkits, and from CUDA_HEADERS; each set is compared.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
TYPES = (SRC / "driver" / "cuda" / "types.hpp").read_text()
NVML = (SRC / "driver" / "nvml" / "real.cpp").read_text()
LOOKED_UP_FOR = 12000  # CUDA version of most look-ups (functions.def)

# plait's name: the driver's; all of types.hpp.
CONSTANTS = {
    "kSuccess": "CUDA_SUCCESS",
    "kNoBinaryForGpu": "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "kUnsupportedPtx": "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    "kNotReady": "CUDA_ERROR_NOT_READY",
    "kPeerAccessAlreadyEnabled": "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
    "kCaptureImplicit": "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
    "kStreamNonBlocking": "CU_STREAM_NON_BLOCKING",
    "kLastDefaultStream": "CU_STREAM_PER_THREAD",  # a handle: _handle() reads it
    "kEventDisableTiming": "CU_EVENT_DISABLE_TIMING",
    "kHostRegisterPortable": "CU_MEMHOSTREGISTER_PORTABLE",
    "kHostRegisterMapped": "CU_MEMHOSTREGISTER_DEVICEMAP",
    "kIpcLazyPeerAccess": "CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS",
    "kCaptureNone": "CU_STREAM_CAPTURE_STATUS_NONE",
    "kCaptureThreadLocal": "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL",
    "kCaptureRelaxed": "CU_STREAM_CAPTURE_MODE_RELAXED",
    "kEventExternal": "CU_EVENT_WAIT_EXTERNAL",
    "kAddCaptureDependencies": "CU_STREAM_ADD_CAPTURE_DEPENDENCIES",
    "kAttributeMultiprocessors": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
    "kAttributeComputeMajor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
    "kAttributeComputeMinor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
    "kAttributeMostSharedBytes": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "kAttributeMapsMemory": "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "kAttributeSharesFiles": "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    "kPinnedMemory": "CU_MEM_ALLOCATION_TYPE_PINNED",
    "kShownByFile": "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
    "kOnDevice": "CU_MEM_LOCATION_TYPE_DEVICE",
    "kLeastGranularity": "CU_MEM_ALLOC_GRANULARITY_MINIMUM",
    "kReadAndWrite": "CU_MEM_ACCESS_FLAGS_PROT_READWRITE",
    "kPointerMemoryType": "CU_POINTER_ATTRIBUTE_MEMORY_TYPE",
    "kPointerBufferId": "CU_POINTER_ATTRIBUTE_BUFFER_ID",
    "kPointerContext": "CU_POINTER_ATTRIBUTE_CONTEXT",
    "kPointerDeviceOrdinal": "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL",
    "kPointerRangeStart": "CU_POINTER_ATTRIBUTE_RANGE_START_ADDR",
    "kPointerRangeBytes": "CU_POINTER_ATTRIBUTE_RANGE_SIZE",
    "kMemoryOnDevice": "CU_MEMORYTYPE_DEVICE",
    "kSourceInStreamOrder": "CU_MEMCPY_SRC_ACCESS_ORDER_STREAM",
    "kCopyOverlapCompute": "CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE",
    "kFixedSharedBytes": "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES",
    "kMadeForPtx": "CU_FUNC_ATTRIBUTE_PTX_VERSION",
    "kMostDynamicSharedBytes": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
    "kClusterDimension": "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION",
    "kProgrammaticSerialization": "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
}

# plait's structs: the driver's, and fields with equal offsets.
STRUCTS = {
    "IpcHandle": ("CUipcMemHandle", {}),
    "MemoryProperties": (
        "CUmemAllocationProp",
        {
            "type": "type",
            "handle_types": "requestedHandleTypes",
            "location": "location",
            "flags": "allocFlags",
        },
    ),
    "MemoryAccessRights": ("CUmemAccessDesc", {"location": "location", "flags": "flags"}),
    "CopyAttributes": (
        "CUmemcpyAttributes",
        {
            "source_order": "srcAccessOrder",
            "source_location": "srcLocHint",
            "target_location": "dstLocHint",
            "flags": "flags",
        },
    ),
    "LaunchAttribute": ("CUlaunchAttribute", {"id": "id", "value": "value"}),
    "LaunchConfig": (
        "CUlaunchConfig",
        {
            "grid_x": "gridDimX",
            "grid_z": "gridDimZ",
            "block_x": "blockDimX",
            "block_z": "blockDimZ",
            "shared_bytes": "sharedMemBytes",
            "stream": "hStream",
            "attributes": "attrs",
            "attribute_count": "numAttrs",
        },
    ),
}

# alike<Ours, Theirs>: the same arguments in the ABI.
ALIKE = """
#include <cstddef>
#include <type_traits>
template <class T, class = void>
inline constexpr bool is_sized = false;
template <class T>
inline constexpr bool is_sized<T, std::void_t<decltype(sizeof(T))>> = true;
template <class T>
inline constexpr bool is_bytes = std::is_same_v<std::remove_cv_t<T>, char> || std::is_void_v<T>;
template <class A, class B>
constexpr bool same_argument() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using To = std::remove_pointer_t<A>;
    using There = std::remove_pointer_t<B>;
    if constexpr (is_bytes<To> || is_bytes<There> || std::is_function_v<To>) return true;
    else if constexpr (is_sized<To> && is_sized<There>)
      return sizeof(To) == sizeof(There) && std::is_pointer_v<To> == std::is_pointer_v<There>;
    else return true;
  } else {
    return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
           std::is_floating_point_v<A> == std::is_floating_point_v<B>;
  }
}
template <class A, class B>
struct Alike : std::false_type {};
template <class R, class... A, class S, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct Alike<R (*)(A...), S (*)(B...)>
    : std::bool_constant<sizeof(R) == sizeof(S) && (same_argument<A, B>() && ...)> {};
"""


def _folders(name: str) -> list[Path]:
    """Returns the folders with a header: CUDA_HEADERS, those of wheels and of toolkits."""
    folders = [Path(entry) / "nvidia" for entry in sys.path]
    places = [place for folder in folders for place in sorted(folder.glob("*/include"))]
    if compiler := shutil.which(os.environ.get("CUDACXX", "nvcc")) or shutil.which("nvcc"):
        places.append(Path(compiler).resolve().parents[1] / "include")
    places += [*sorted(Path("/usr/local").glob("cuda*/include")), Path("/usr/include")]
    if named := os.environ.get("CUDA_HEADERS"):
        places.insert(0, Path(named))
    found = list(dict.fromkeys(place.resolve() for place in places if (place / name).exists()))
    if not found:
        pytest.skip(f"no {name} (pip install '.[test]' brings one; CUDA_HEADERS names a folder)")
    return found


def _compile(source: str, folder: Path, tmp_path: Path) -> str:
    """Returns the compiler's errors."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    path = tmp_path / "abi.cpp"
    path.write_text(source)
    flags = ["-std=c++20", "-fsyntax-only", f"-I{ROOT / 'include'}", f"-I{SRC}", "-isystem"]
    done = subprocess.run(
        [compiler, *flags, str(folder), str(path)], capture_output=True, text=True, timeout=300
    )
    return done.stderr if done.returncode != 0 else ""


def _holds(condition: str, what: str) -> str:
    return f'static_assert({condition}, "{what}");\n'


def _handle(folder: Path, name: str) -> str:
    """Returns the value of a handle constant."""
    text = (folder / "cuda.h").read_text()
    match = re.search(rf"define {name}\s+\(\(CUstream\)(0x\w+)\)", text)
    assert match, name
    return match.group(1)


def _functions() -> list[tuple[str, str, int]]:
    """Returns (field, symbol, CUDA version of the look-up)."""
    all_of_them = (SRC / "driver" / "cuda" / "functions.def").read_text()
    later = (SRC / "driver" / "cuda" / "later_functions.def").read_text()
    found = [
        (field, symbol, LOOKED_UP_FOR)
        for field, symbol in re.findall(r"^PLAIT_CUDA_FUNCTION\((\w+), (\w+),", all_of_them, re.M)
    ]
    return found + [
        (field, symbol, int(version))
        for version, field, symbol in re.findall(
            r"^PLAIT_CUDA_LATER_FUNCTION\((\d+), (\w+), (\w+),", later, re.M
        )
    ]


def test_every_constant_of_the_driver_is_compared():
    ours = set(re.findall(r"inline constexpr [\w:]+ (k\w+) =", TYPES))
    assert ours == set(CONSTANTS)
    structs = set(re.findall(r"^struct (\w+) \{", TYPES, re.M))
    assert structs == set(STRUCTS)


def test_constants_and_layouts_of_the_driver(tmp_path):
    for folder in _folders("cuda.h"):
        _check_constants(folder, tmp_path)


def _check_constants(folder: Path, tmp_path: Path) -> None:
    source = '#include <cuda.h>\n#include <cstddef>\n#include "driver/cuda/types.hpp"\n'
    for ours, theirs in CONSTANTS.items():
        value = _handle(folder, theirs) if theirs == "CU_STREAM_PER_THREAD" else theirs
        both = f"(long long)plait::cuda::{ours} == (long long){value}"
        source += _holds(both, f"{ours} is {theirs}")
    for ours, (theirs, fields) in STRUCTS.items():
        mine = f"plait::cuda::{ours}"
        source += _holds(f"sizeof({mine}) == sizeof({theirs})", f"{ours} is as long as {theirs}")
        for field, there in fields.items():
            both = f"offsetof({mine}, {field}) == offsetof({theirs}, {there})"
            source += _holds(both, f"{ours}::{field} is {theirs}::{there}")
    assert _compile(source, folder, tmp_path) == "", folder
    wrong = source + _holds("(int)plait::cuda::kNotReady == CUDA_SUCCESS", "a wrong one")
    assert "a wrong one" in _compile(wrong, folder, tmp_path)


def test_arguments_of_the_drivers_functions(tmp_path):
    for folder in _folders("cudaTypedefs.h"):
        _check_arguments(folder, tmp_path)


def _check_arguments(folder: Path, tmp_path: Path) -> None:
    named = re.findall(
        r"\(CUDAAPI \*(PFN_(\w+?)_v(\d+))\)", (folder / "cudaTypedefs.h").read_text()
    )
    source = "#include <cuda.h>\n#include <cudaTypedefs.h>\n" + ALIKE
    source += '#include "driver/cuda/api.hpp"\n'
    functions = _functions()
    assert len(functions) > 60
    for field, symbol, version in functions:
        there = [(int(since), name) for name, of, since in named if of == symbol]
        known = [one for one in there if one[0] <= version]
        assert known, f"{symbol} is in no header for CUDA {version}"
        both = f"Alike<decltype(plait::cuda::Api::{field}), {max(known)[1]}>::value"
        source += _holds(both, f"{symbol} takes what {field} is given")
    assert _compile(source, folder, tmp_path) == "", folder


def test_nvmls_constants_layouts_and_functions(tmp_path):
    constants = {
        "kSuccess": "NVML_SUCCESS",
        "kPeerRead": "NVML_P2P_CAPS_INDEX_READ",
        "kPeerNvlink": "NVML_P2P_CAPS_INDEX_NVLINK",
        "kPeerOk": "NVML_P2P_STATUS_OK",
        "kRemoteGpu": "NVML_NVLINK_DEVICE_TYPE_GPU",
        "kRemoteCpu": "NVML_NVLINK_DEVICE_TYPE_IBMNPU",
        "kRemoteSwitch": "NVML_NVLINK_DEVICE_TYPE_SWITCH",
    }
    levels = ["INTERNAL", "SINGLE", "MULTIPLE", "HOSTBRIDGE", "NODE", "SYSTEM"]
    distances = ["one_board", "one_switch", "switches", "host_bridge", "node", "system"]
    fields = {
        "legacy_bus_id": "busIdLegacy",
        "domain": "domain",
        "device_id": "pciDeviceId",
        "subsystem_id": "pciSubSystemId",
        "bus_id": "busId",
    }
    source = "#include <nvml.h>\n" + ALIKE
    source += '#include "driver/nvml/real.cpp"\nnamespace plait {\n'
    for ours, theirs in constants.items():
        source += _holds(f"(int){ours} == (int){theirs}", f"{ours} is {theirs}")
    source += _holds("kMostLinks >= NVML_NVLINK_MAX_LINKS", "no link is left out")
    for level, distance in zip(levels, distances, strict=True):
        both = f"(int)NVML_TOPOLOGY_{level} == 10 * (int)PciDistance::{distance}"
        source += _holds(both, f"{distance} is {level}")
    source += _holds("sizeof(PciInfo) == sizeof(nvmlPciInfo_t)", "PciInfo is nvmlPciInfo_t")
    for ours, theirs in fields.items():
        both = f"offsetof(PciInfo, {ours}) == offsetof(nvmlPciInfo_t, {theirs})"
        source += _holds(both, f"PciInfo::{ours} is {theirs}")
    functions = re.findall(r'int \(\*(\w+)\)\(.*\) = named\("(\w+)"\);', NVML)
    assert len(functions) == 13
    for field, symbol in functions:
        both = f"Alike<decltype(NvmlFunctions::{field}), decltype(&::{symbol})>::value"
        source += _holds(both, f"{symbol} takes what {field} is given")
    for folder in _folders("nvml.h"):
        assert _compile(source + "}\n", folder, tmp_path) == "", folder
