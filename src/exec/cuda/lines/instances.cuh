// Which fused kernels exist, and their names: plait_KERNEL_TYPE_{sum|any}_RANKS_{flagged|bare}.
// RANKS 0 = known at run time only. exec/cuda/device/kernel_names.cpp builds the same names.
#pragma once
#include "exec/cuda/lines/line_args.hpp"

#ifndef PLAIT_FUSED_ARGS
#define PLAIT_FUSED_ARGS FusedArgs
#define PLAIT_FUSED_FLAGGED FlaggedLine
#endif
#define PLAIT_FUSED(kernel, type, opname, op, ranks, linename, line)                              \
  extern "C" __global__ void __launch_bounds__(512, plait::cuda::is_lean_##kernel(ranks) ? 2 : 1) \
      plait_##kernel##_##type##_##opname##_##ranks##_##linename(                                  \
          const __grid_constant__ plait::cuda::PLAIT_FUSED_ARGS args) {                           \
    if (args.state == nullptr) return; /* an empty launch */                                      \
    plait::cuda::kernel<plait::DataType::type, op, ranks, plait::cuda::line>(args);               \
  }
#define PLAIT_FUSED_SUMS_OF_MORE(kernel, type, linename, line)                              \
  PLAIT_FUSED(kernel, type, sum, static_cast<int>(plait::ReduceOp::sum), 4, linename, line) \
  PLAIT_FUSED(kernel, type, sum, static_cast<int>(plait::ReduceOp::sum), 8, linename, line)
#define PLAIT_FUSED_SUMS(kernel, type, linename, line)                                      \
  PLAIT_FUSED(kernel, type, sum, static_cast<int>(plait::ReduceOp::sum), 2, linename, line) \
  PLAIT_FUSED_SUMS_OF_MORE(kernel, type, linename, line)
#define PLAIT_FUSED_COMMON(kernel, type)                       \
  PLAIT_FUSED_SUMS(kernel, type, flagged, PLAIT_FUSED_FLAGGED) \
  PLAIT_FUSED_SUMS(kernel, type, bare, BareLine)
#define PLAIT_FUSED_ANY(kernel, type, linename, line) \
  PLAIT_FUSED(kernel, type, any, plait::cuda::kAnyOp, 0, linename, line)

#define PLAIT_FUSED_KERNELS(kernel)                              \
  PLAIT_FUSED_COMMON(kernel, fp32)                               \
  PLAIT_FUSED_COMMON(kernel, bf16)                               \
  PLAIT_FUSED_COMMON(kernel, fp16)                               \
  PLAIT_FUSED_ANY(kernel, int8, flagged, PLAIT_FUSED_FLAGGED)    \
  PLAIT_FUSED_ANY(kernel, uint8, flagged, PLAIT_FUSED_FLAGGED)   \
  PLAIT_FUSED_ANY(kernel, int16, flagged, PLAIT_FUSED_FLAGGED)   \
  PLAIT_FUSED_ANY(kernel, uint16, flagged, PLAIT_FUSED_FLAGGED)  \
  PLAIT_FUSED_ANY(kernel, int32, flagged, PLAIT_FUSED_FLAGGED)   \
  PLAIT_FUSED_ANY(kernel, uint32, flagged, PLAIT_FUSED_FLAGGED)  \
  PLAIT_FUSED_ANY(kernel, int64, flagged, PLAIT_FUSED_FLAGGED)   \
  PLAIT_FUSED_ANY(kernel, uint64, flagged, PLAIT_FUSED_FLAGGED)  \
  PLAIT_FUSED_ANY(kernel, fp16, flagged, PLAIT_FUSED_FLAGGED)    \
  PLAIT_FUSED_ANY(kernel, fp32, flagged, PLAIT_FUSED_FLAGGED)    \
  PLAIT_FUSED_ANY(kernel, fp64, flagged, PLAIT_FUSED_FLAGGED)    \
  PLAIT_FUSED_ANY(kernel, bf16, flagged, PLAIT_FUSED_FLAGGED)    \
  PLAIT_FUSED_ANY(kernel, fp8e4m3, flagged, PLAIT_FUSED_FLAGGED) \
  PLAIT_FUSED_ANY(kernel, fp8e5m2, flagged, PLAIT_FUSED_FLAGGED) \
  PLAIT_FUSED_ANY(kernel, fp16, bare, BareLine)                  \
  PLAIT_FUSED_ANY(kernel, fp32, bare, BareLine)                  \
  PLAIT_FUSED_ANY(kernel, fp64, bare, BareLine)                  \
  PLAIT_FUSED_ANY(kernel, bf16, bare, BareLine)                  \
  PLAIT_FUSED_ANY(kernel, fp8e4m3, bare, BareLine)               \
  PLAIT_FUSED_ANY(kernel, fp8e5m2, bare, BareLine)
