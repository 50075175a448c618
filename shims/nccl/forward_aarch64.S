// Entry points of plait's libnccl.so.2 on aarch64: each name jumps to the address in its slot. An
// empty slot is filled first (forward.cpp), with all argument registers saved. x16 and x17 are the
// registers that a call may lose between caller and callee.
#define PLAIT_ENTRY_AT(name, index) \
  .globl name; .type name, %function; .p2align 4; \
  name: hint 34; /* bti c */ \
  adrp x16, plait_nccl_slots + 8 * index; \
  ldr x16, [x16, :lo12:plait_nccl_slots + 8 * index]; \
  cbz x16, 1f; br x16; \
  1: mov w17, index; b plait_nccl_fill; \
  .size name, . - name;
#define PLAIT_ENTRY(name, index) PLAIT_ENTRY_AT(name, index)
#define PLAIT_NCCL_SERVED(name) PLAIT_ENTRY(name, __COUNTER__) PLAIT_ENTRY(p##name, __COUNTER__)
#define PLAIT_NCCL_FORWARDED(name) PLAIT_NCCL_SERVED(name)

  .text
#include "shims/nccl/names.def"

  .type plait_nccl_fill, %function
  .p2align 4
plait_nccl_fill:
  .cfi_startproc
  stp x29, x30, [sp, -224]!
  .cfi_def_cfa_offset 224
  .cfi_offset x29, -224
  .cfi_offset x30, -216
  mov x29, sp
  stp x0, x1, [sp, 16]
  stp x2, x3, [sp, 32]
  stp x4, x5, [sp, 48]
  stp x6, x7, [sp, 64]
  str x8, [sp, 80]
  stp q0, q1, [sp, 96]
  stp q2, q3, [sp, 128]
  stp q4, q5, [sp, 160]
  stp q6, q7, [sp, 192]
  mov w0, w17
  bl plait_nccl_find_entry
  mov x16, x0
  ldp x0, x1, [sp, 16]
  ldp x2, x3, [sp, 32]
  ldp x4, x5, [sp, 48]
  ldp x6, x7, [sp, 64]
  ldr x8, [sp, 80]
  ldp q0, q1, [sp, 96]
  ldp q2, q3, [sp, 128]
  ldp q4, q5, [sp, 160]
  ldp q6, q7, [sp, 192]
  ldp x29, x30, [sp], 224
  .cfi_restore x29
  .cfi_restore x30
  .cfi_def_cfa_offset 0
  br x16
  .cfi_endproc
  .size plait_nccl_fill, . - plait_nccl_fill

  .section .note.GNU-stack, "", %progbits
