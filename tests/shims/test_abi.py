"""Compares plait's declarations of NCCL with an installed nccl.h."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from shim_env import ROOT

ABI = (ROOT / "src" / "comm" / "transport" / "nccl" / "abi.hpp").read_text()
NAMES = (ROOT / "shims" / "nccl" / "names.def").read_text()
EXPORTS = (ROOT / "shims" / "nccl" / "exports.hpp").read_text()
TYPES = (ROOT / "include" / "plait" / "types.def").read_text()


# Folders of `make nccl` and of wheels.
PACKAGES = [Path(entry) / "nvidia" / "nccl" for entry in (ROOT / "build" / "nccl", *sys.path)]


@pytest.fixture(scope="module")
def header() -> str:
    """Returns the text of nccl.h: NCCL_HEADER, or the file of a wheel or the system."""
    packages = [package / "include" for package in PACKAGES]
    folders = [*packages, Path("/usr/include"), Path("/usr/local/cuda/include")]
    found = [folder / "nccl.h" for folder in folders if (folder / "nccl.h").exists()]
    if named := os.environ.get("NCCL_HEADER"):
        found.insert(0, Path(named))
    if not found:
        pytest.skip("no nccl.h installed (make nccl fetches one)")
    return re.sub(r"/\*.*?\*/", "", found[0].read_text(), flags=re.S)


def _value(header: str, name: str) -> int:
    match = re.search(rf"\b{name}\s*(?:=\s*|\s)(-?(?:0x)?[0-9a-fA-F]+)", header)
    assert match, name
    return int(match.group(1), 0)


def test_results(header):
    ours = dict(re.findall(r"\b(nccl\w+) = (\d+),", ABI))
    assert len(ours) == 8
    for name, value in ours.items():
        assert _value(header, name) == int(value), name


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("kSum", "ncclSum"),
        ("kProd", "ncclProd"),
        ("kMax", "ncclMax"),
        ("kMin", "ncclMin"),
        ("kAvg", "ncclAvg"),
        ("kBuiltInOps", "ncclNumOps"),
        ("kUint8", "ncclUint8"),
        ("kScalarDevice", "ncclScalarDevice"),
        ("kScalarHost", "ncclScalarHostImmediate"),
        ("kSplitNoColor", "NCCL_SPLIT_NOCOLOR"),
        ("kShrinkAbort", "NCCL_SHRINK_ABORT"),
        ("kRevokeDefault", "NCCL_REVOKE_DEFAULT"),
        ("kStatPersistent", "ncclStatGpuMemPersist"),
        ("kStatTotal", "ncclStatGpuMemTotal"),
    ],
)
def test_constants(header, ours, theirs):
    if theirs not in header:
        pytest.skip(f"a header without {theirs}")
    match = re.search(rf"\b{ours} = (-?(?:0x)?[0-9a-f]+)", ABI)
    assert match and int(match.group(1), 0) == _value(header, theirs)


def test_types(header):
    theirs = {
        **{name: f"nccl{name.capitalize()}" for name in ("int8", "uint8", "int32", "uint32")},
        **{name: f"nccl{name.capitalize()}" for name in ("int64", "uint64")},
        **{"fp16": "ncclFloat16", "fp32": "ncclFloat32", "fp64": "ncclFloat64"},
        **{"bf16": "ncclBfloat16", "fp8e4m3": "ncclFloat8e4m3", "fp8e5m2": "ncclFloat8e5m2"},
    }
    rows = re.findall(r"PLAIT_TYPE\((\w+),[^)]*?(-?\d+)\)", TYPES)
    assert len(rows) == 14
    for name, value in rows:
        if int(value) >= 0:
            assert _value(header, theirs[name]) == int(value), name
        else:
            assert name in ("int16", "uint16")


def test_every_public_function_is_in_the_table(header):
    public = set(re.findall(r"\b(nccl[A-Z]\w+)\s*\(", header)) - {"ncclResetDebugInit"}
    table = set(re.findall(r"^PLAIT_NCCL_(?:SERVED|FORWARDED)\((\w+)\)", NAMES, re.M))
    assert public - table == set()


def test_the_magic_of_configurations(header):
    match = re.search(r"sizeof\(ncclConfig_t\),[\s\\]*(0x\w+|NCCL_API_MAGIC)", header)
    assert match
    magic = match.group(1)
    if magic == "NCCL_API_MAGIC":
        magic = re.search(r"define NCCL_API_MAGIC (0x\w+)", header).group(1)
    assert f"kConfigMagic = {magic};" in ABI


def test_how_configurations_begin(header):
    """Checks the offsets of configuration fields that the drop-in reads, if the header has them."""
    names = re.findall(r"\b(\w+)(?: = \w+)?;", ABI.split("struct ConfigHead {")[1].split("}")[0])
    struct = re.search(r"typedef struct ncclConfig_v\d+ \{(.*?)\} ncclConfig_t;", header, re.S)
    if not struct:
        pytest.skip("a header without configurations")
    body = re.sub(r"/\*.*?\*/", "", struct.group(1), flags=re.S)
    theirs = re.findall(r"\b(\w+);", body)
    as_ours = [re.sub(r"(?<=[a-z])([A-Z]+)", lambda m: "_" + m[1].lower(), one) for one in theirs]
    if len(theirs) > 4:
        assert as_ours[: len(names)] == names


def test_the_configuration_of_a_call(header):
    """Compares names, order and widths of the fields, and the policy by default."""
    pattern = r"typedef struct ncclCollConfig_v\d+ \{(.*?)\} ncclCollConfig_t;"
    struct = re.search(pattern, header, re.S)
    if not struct:
        pytest.skip("a header without configurations of calls")
    body = re.sub(r"/\*.*?\*/", "", struct.group(1), flags=re.S)
    theirs = re.findall(r"([\w ]+?\**)\s*\b(\w+);", body)
    ours = ABI.split("struct CallConfig {")[1].split("};")[0]
    ours = re.findall(r"([\w: ]+?\**)\s*\b(\w+)(?: = \w+)?;", ours)

    def width(kind: str) -> int:
        return 8 if re.search(r"\*|size_t|64_t|Event_t", kind) else 4

    as_ours = [(width(kind), _snake_case(name)) for kind, name in theirs]
    assert as_ours == [(width(kind), name) for kind, name in ours][: len(theirs)]
    for name, ours_is in (("DEFAULT", "Default"), ("EFFICIENCY", "Efficient"), ("ZERO", "Zero")):
        if policy := re.search(rf"define NCCL_CTA_POLICY_{name} (\w+)", header):
            found = re.search(rf"k{ours_is}CtaPolicy = (\w+)", ABI)
            assert found and int(found.group(1), 0) == int(policy.group(1), 16), name


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z]+)|^(CTA)(?=[A-Z])", _lower_part, name).lower()


def _lower_part(found: re.Match) -> str:
    return "_" + found[1].lower() if found[1] else found[2].lower() + "_"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("kConfigCtaPolicy", "CTAPolicy"),
        ("kConfigGraphUsage", "graphUsageMode"),
        ("kConfigLaunchOrder", "launchOrderImplicit"),
    ],
)
def test_where_later_fields_of_configurations_lie(header, ours, theirs):
    struct = re.search(r"typedef struct ncclConfig_v\d+ \{(.*?)\} ncclConfig_t;", header, re.S)
    if not struct or theirs not in struct.group(1):
        pytest.skip(f"a header without {theirs}")
    at = 0
    for kind, name in re.findall(r"([\w ]+?\**)\s*\b(\w+);", struct.group(1)):
        size = 8 if "*" in kind or "size_t" in kind else 4
        at = (at + size - 1) // size * size
        if name == theirs:
            break
        at += size
    assert f"{ours} = {at};" in ABI


def _parameters(text: str, name: str) -> int:
    match = re.search(rf"\b{name}\s*\(([^)]*)\)", text)
    assert match, name
    inside = match.group(1).strip()
    return 0 if inside in ("", "void") else inside.count(",") + 1


def test_served_functions_take_as_many_arguments(header):
    served = re.findall(r"^PLAIT_NCCL_SERVED\((\w+)\)", NAMES, re.M)
    for name in served:
        if re.search(rf"\b{name}\s*\(", header):  # older headers lack the newest
            assert _parameters(EXPORTS, name) == _parameters(header, name), name


def test_config_begins_as_ours_does(header):
    match = re.search(r"typedef struct ncclConfig_v\w+ \{(.*?)\} ncclConfig_t;", header, re.S)
    assert match
    fields = re.findall(r"(\w+)\s+\*?(\w+);", match.group(1))[:4]
    assert [name for _, name in fields] == ["size", "magic", "version", "blocking"]


def test_every_exported_function_is_in_the_table(header):
    """A function missing in the table would be hidden by the forwarding library."""
    elf = pytest.importorskip("plait.elf")
    found = [package / "lib" / "libnccl.so.2" for package in PACKAGES]
    if named := os.environ.get("NCCL_HEADER"):
        found.insert(0, Path(named).parent.parent / "lib" / "libnccl.so.2")
    library = next((path for path in found if path.exists()), None)
    if library is None:
        pytest.skip("no libnccl.so.2 beside the header")
    table = set(re.findall(r"^PLAIT_NCCL_(?:SERVED|FORWARDED)\((\w+)\)", NAMES, re.M))
    exported = {name for name in elf.exported(library) if re.match("p?nccl[A-Z]", name)}
    assert {name.removeprefix("p") for name in exported} - table == set()
