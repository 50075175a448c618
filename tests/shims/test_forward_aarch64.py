"""The entry points of libnccl.so.2 on aarch64, assembled by zig and run by unicorn, an emulator.

`make test-aarch64` installs both and runs this file, which other machines skip.
"""

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

unicorn = pytest.importorskip("unicorn", reason="wanted unicorn (make test-aarch64)")
pytest.importorskip("ziglang", reason="wanted zig (make test-aarch64)")
from unicorn import arm64_const as arm  # noqa: E402

ROOT = Path(__file__).parents[2]
STACK, STACK_BYTES = 0x7000_0000, 1 << 16
END = 0x7FFF_0000  # return address of the caller

# A stand-in for forward.cpp that loses every register which a callee may lose.
STAND_IN = """
  .text
  .globl _start
_start: ret
  .globl plait_nccl_find_entry
  .type plait_nccl_find_entry, %function
plait_nccl_find_entry:
  adrp x9, calls
  add x9, x9, :lo12:calls
  ldr w10, [x9]
  add w10, w10, 1
  str w10, [x9]
  str w0, [x9, 4]
  adrp x11, plait_nccl_slots
  add x11, x11, :lo12:plait_nccl_slots
  adrp x12, callee
  add x12, x12, :lo12:callee
  str x12, [x11, w0, uxtw 3]
  mov x0, x12
  .irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17
  mov x\\n, 77
  .endr
  .irp n, 0, 1, 2, 3, 4, 5, 6, 7
  movi v\\n\\().2d, 0
  .endr
  ret
  .globl callee
callee: ret
  .bss
  .balign 16
  .globl calls
calls: .skip 8
  .balign 16
  .globl plait_nccl_slots
plait_nccl_slots: .skip 8192
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("aarch64")
    (folder / "stand_in.S").write_text(STAND_IN)
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.28"]
    command += ["-nostdlib", "-static", f"-I{ROOT}", "-o", str(folder / "program")]
    sources = [str(ROOT / "shims/nccl/forward_aarch64.S"), str(folder / "stand_in.S")]
    done = subprocess.run([*command, *sources], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return (folder / "program").read_bytes()


def symbols(image: bytes) -> dict[str, int]:
    """Returns the addresses of the names in an ELF file's symbol table."""
    start, size, count = struct.unpack_from("<Q10xHH", image, 0x28)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, start + i * size) for i in range(count)]
    table = next(one for one in sections if one[1] == 2)
    names = image[sections[table[6]][4] :]
    found = {}
    for at in range(table[4], table[4] + table[5], 24):
        name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", image, at)
        found[names[name : names.index(b"\0", name)].decode()] = value
    return found


def loaded(image: bytes):
    """Returns an emulator with the segments of an ELF file and a stack."""
    machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    start, size, count = struct.unpack_from("<Q14xHH", image, 0x20)
    page = 0x10000
    for i in range(count):
        kind, _, offset, address, _, in_file, in_memory, _ = struct.unpack_from(
            "<IIQQQQQQ", image, start + i * size
        )
        if kind != 1:
            continue
        low, high = address // page * page, (address + in_memory + page - 1) // page * page
        taken = [region for region in machine.mem_regions() if region[0] <= low <= region[1]]
        low = max([low, *(region[1] + 1 for region in taken)])
        if high > low:
            machine.mem_map(low, high - low)
        machine.mem_write(address, image[offset : offset + in_file])
    machine.mem_map(STACK, STACK_BYTES)
    machine.mem_map(END, page)
    machine.reg_write(arm.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # allows the vector registers
    return machine


INTEGERS = [getattr(arm, f"UC_ARM64_REG_X{i}") for i in range(9)]
VECTORS = [getattr(arm, f"UC_ARM64_REG_Q{i}") for i in range(8)]


@pytest.mark.parametrize("name", ["ncclAllReduce", "pncclAllReduce", "ncclGetVersion"])
def test_a_call_reaches_the_found_function_with_its_arguments(program, name):
    machine, at = loaded(program), symbols(program)
    for times in (1, 2):
        integers = [0x1000 * times + i for i in range(len(INTEGERS))]
        vectors = [(i << 100) + times for i in range(len(VECTORS))]
        for register, value in zip(INTEGERS + VECTORS, integers + vectors, strict=True):
            machine.reg_write(register, value)
        stack = STACK + STACK_BYTES - 64
        machine.reg_write(arm.UC_ARM64_REG_SP, stack)
        machine.reg_write(arm.UC_ARM64_REG_X29, 0x29)
        machine.reg_write(arm.UC_ARM64_REG_X30, END)
        machine.emu_start(at[name], at["callee"], count=400)
        assert machine.reg_read(arm.UC_ARM64_REG_PC) == at["callee"]
        assert [machine.reg_read(one) for one in INTEGERS] == integers
        assert [machine.reg_read(one) for one in VECTORS] == vectors
        assert machine.reg_read(arm.UC_ARM64_REG_SP) == stack
        assert machine.reg_read(arm.UC_ARM64_REG_X29) == 0x29
        assert machine.reg_read(arm.UC_ARM64_REG_X30) == END
        calls, index = struct.unpack("<II", machine.mem_read(at["calls"], 8))
        assert calls == 1, "the slot is filled once"
        slot = struct.unpack("<Q", machine.mem_read(at["plait_nccl_slots"] + 8 * index, 8))[0]
        assert slot == at["callee"]


def test_every_name_is_an_entry_point(program):
    at = symbols(program)
    listed = (ROOT / "shims/nccl/names.def").read_text()
    names = re.findall(r"^PLAIT_NCCL_(?:SERVED|FORWARDED)\((\w+)\)", listed, re.M)
    assert len(names) > 40
    assert {name for name in names if name not in at or f"p{name}" not in at} == set()
