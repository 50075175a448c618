// Defines the instances of the norm kernels: plait_KERNEL_TYPE_RANKS_UNITS, with the most units of
// a row that a thread holds. RANKS 0 = known at run time only. gpu/norm/norm_call.cpp builds the
// same names.
#pragma once
#include "gpu/norm/sum_norm.cuh"

#define PLAIT_NORM(kernel, type, ranks, units)                                      \
  extern "C" __global__ void __launch_bounds__(plait::cuda::norm_threads(units), 2) \
      plait_##kernel##_##type##_##ranks##_##units(                                  \
          const __grid_constant__ plait::cuda::NormArgs args) {                     \
    if (args.state == nullptr) return; /* an empty launch */                        \
    plait::cuda::kernel<plait::DataType::type, ranks, units>(args);                 \
  }
#define PLAIT_NORM_UNITS(kernel, type, ranks) \
  PLAIT_NORM(kernel, type, ranks, 2)          \
  PLAIT_NORM(kernel, type, ranks, 4)          \
  PLAIT_NORM(kernel, type, ranks, 8)
#define PLAIT_NORM_TYPES(kernel, ranks) \
  PLAIT_NORM_UNITS(kernel, bf16, ranks) \
  PLAIT_NORM_UNITS(kernel, fp16, ranks)
