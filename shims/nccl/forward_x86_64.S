// Entry points of plait's libnccl.so.2 on x86-64: each name jumps to the address in its slot. An
// empty slot is filled first (forward.cpp), with all argument registers saved.
#define PLAIT_ENTRY_AT(name, index) \
  .globl name; .type name, @function; .p2align 4; \
  name: endbr64; \
  movq plait_nccl_slots + 8 * index(%rip), %r11; \
  testq %r11, %r11; jz 1f; jmp *%r11; \
  1: movl $index, %eax; jmp plait_nccl_fill; \
  .size name, . - name;
#define PLAIT_ENTRY(name, index) PLAIT_ENTRY_AT(name, index)
#define PLAIT_NCCL_SERVED(name) PLAIT_ENTRY(name, __COUNTER__) PLAIT_ENTRY(p##name, __COUNTER__)
#define PLAIT_NCCL_FORWARDED(name) PLAIT_NCCL_SERVED(name)

  .text
#include "shims/nccl/names.def"

  .type plait_nccl_fill, @function
  .p2align 4
plait_nccl_fill:
  .cfi_startproc
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  subq $192, %rsp
  andq $-16, %rsp
  movq %rdi, 0(%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movups %xmm0, 48(%rsp)
  movups %xmm1, 64(%rsp)
  movups %xmm2, 80(%rsp)
  movups %xmm3, 96(%rsp)
  movups %xmm4, 112(%rsp)
  movups %xmm5, 128(%rsp)
  movups %xmm6, 144(%rsp)
  movups %xmm7, 160(%rsp)
  movl %eax, %edi
  call plait_nccl_find_entry
  movq %rax, %r11
  movq 0(%rsp), %rdi
  movq 8(%rsp), %rsi
  movq 16(%rsp), %rdx
  movq 24(%rsp), %rcx
  movq 32(%rsp), %r8
  movq 40(%rsp), %r9
  movups 48(%rsp), %xmm0
  movups 64(%rsp), %xmm1
  movups 80(%rsp), %xmm2
  movups 96(%rsp), %xmm3
  movups 112(%rsp), %xmm4
  movups 128(%rsp), %xmm5
  movups 144(%rsp), %xmm6
  movups 160(%rsp), %xmm7
  leave
  .cfi_def_cfa %rsp, 8
  jmp *%r11
  .cfi_endproc
  .size plait_nccl_fill, . - plait_nccl_fill

  .section .note.GNU-stack, "", @progbits
