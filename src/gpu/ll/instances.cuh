// Defines the instances of one_shot, two_shot and long_two_shot:
// plait_KERNEL_TYPE_{sum|any|tree}_RANKS_{flag|nan_sentinel}. RANKS 0 = known at run time only.
// gpu/ll/ll_memory.cpp builds the same names.
#pragma once
#include "gpu/abi/ll_args.hpp"

#ifndef PLAIT_FUSED_ARGS
#define PLAIT_FUSED_ARGS FusedArgs
#define PLAIT_FUSED_FLAG FlagPacket
#endif
#define PLAIT_FUSED(kernel, type, opname, op, ranks, format, packet)                              \
  extern "C" __global__ void __launch_bounds__(512, plait::cuda::is_lean_##kernel(ranks) ? 2 : 1) \
      plait_##kernel##_##type##_##opname##_##ranks##_##format(                                    \
          const __grid_constant__ plait::cuda::PLAIT_FUSED_ARGS args) {                           \
    if (args.state == nullptr) return; /* an empty launch */                                      \
    plait::cuda::kernel<plait::DataType::type, op, ranks, plait::cuda::packet>(args);             \
  }
#define PLAIT_FUSED_SUMS_OF_MORE(kernel, type, format, packet)                              \
  PLAIT_FUSED(kernel, type, sum, static_cast<int>(plait::ReduceOp::sum), 4, format, packet) \
  PLAIT_FUSED(kernel, type, sum, static_cast<int>(plait::ReduceOp::sum), 8, format, packet)
#define PLAIT_FUSED_SUMS(kernel, type, format, packet)                                      \
  PLAIT_FUSED(kernel, type, sum, static_cast<int>(plait::ReduceOp::sum), 2, format, packet) \
  PLAIT_FUSED_SUMS_OF_MORE(kernel, type, format, packet)
#define PLAIT_FUSED_COMMON(kernel, type)                 \
  PLAIT_FUSED_SUMS(kernel, type, flag, PLAIT_FUSED_FLAG) \
  PLAIT_FUSED_SUMS(kernel, type, nan_sentinel, NanSentinelPacket)
#define PLAIT_FUSED_ANY(kernel, type, format, packet) \
  PLAIT_FUSED(kernel, type, any, plait::cuda::kAnyOp, 0, format, packet)

#define PLAIT_FUSED_KERNELS(kernel)                                 \
  PLAIT_FUSED_COMMON(kernel, fp32)                                  \
  PLAIT_FUSED_COMMON(kernel, bf16)                                  \
  PLAIT_FUSED_COMMON(kernel, fp16)                                  \
  PLAIT_FUSED_ANY(kernel, int8, flag, PLAIT_FUSED_FLAG)             \
  PLAIT_FUSED_ANY(kernel, uint8, flag, PLAIT_FUSED_FLAG)            \
  PLAIT_FUSED_ANY(kernel, int16, flag, PLAIT_FUSED_FLAG)            \
  PLAIT_FUSED_ANY(kernel, uint16, flag, PLAIT_FUSED_FLAG)           \
  PLAIT_FUSED_ANY(kernel, int32, flag, PLAIT_FUSED_FLAG)            \
  PLAIT_FUSED_ANY(kernel, uint32, flag, PLAIT_FUSED_FLAG)           \
  PLAIT_FUSED_ANY(kernel, int64, flag, PLAIT_FUSED_FLAG)            \
  PLAIT_FUSED_ANY(kernel, uint64, flag, PLAIT_FUSED_FLAG)           \
  PLAIT_FUSED_ANY(kernel, fp16, flag, PLAIT_FUSED_FLAG)             \
  PLAIT_FUSED_ANY(kernel, fp32, flag, PLAIT_FUSED_FLAG)             \
  PLAIT_FUSED_ANY(kernel, fp64, flag, PLAIT_FUSED_FLAG)             \
  PLAIT_FUSED_ANY(kernel, bf16, flag, PLAIT_FUSED_FLAG)             \
  PLAIT_FUSED_ANY(kernel, fp8e4m3, flag, PLAIT_FUSED_FLAG)          \
  PLAIT_FUSED_ANY(kernel, fp8e5m2, flag, PLAIT_FUSED_FLAG)          \
  PLAIT_FUSED_ANY(kernel, fp16, nan_sentinel, NanSentinelPacket)    \
  PLAIT_FUSED_ANY(kernel, fp32, nan_sentinel, NanSentinelPacket)    \
  PLAIT_FUSED_ANY(kernel, fp64, nan_sentinel, NanSentinelPacket)    \
  PLAIT_FUSED_ANY(kernel, bf16, nan_sentinel, NanSentinelPacket)    \
  PLAIT_FUSED_ANY(kernel, fp8e4m3, nan_sentinel, NanSentinelPacket) \
  PLAIT_FUSED_ANY(kernel, fp8e5m2, nan_sentinel, NanSentinelPacket)

/// Sums in trees, of sentinels alone.
#define PLAIT_FUSED_TREE(kernel, type, ranks) \
  PLAIT_FUSED(kernel, type, tree, plait::cuda::kTreeSum, ranks, nan_sentinel, NanSentinelPacket)
#define PLAIT_FUSED_TREES_OF_TYPE(kernel, type) \
  PLAIT_FUSED_TREE(kernel, type, 4)             \
  PLAIT_FUSED_TREE(kernel, type, 8)             \
  PLAIT_FUSED_TREE(kernel, type, 0)
#define PLAIT_FUSED_TREES(kernel)         \
  PLAIT_FUSED_TREES_OF_TYPE(kernel, fp32) \
  PLAIT_FUSED_TREES_OF_TYPE(kernel, bf16) \
  PLAIT_FUSED_TREES_OF_TYPE(kernel, fp16)
