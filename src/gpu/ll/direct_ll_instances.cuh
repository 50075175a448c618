// Defines the instances of the direct_ll kernels: plait_direct_ll_TYPE_KIND, and
// plait_short_direct_ll_TYPE_KIND_RANKS for at most RANKS ranks. KIND: any, sum, place, tree (a sum
// in a tree) or anytree. gpu/ll/ll_memory.cpp builds the same names.
#pragma once
#include "gpu/abi/direct_shape.hpp"
#include "gpu/abi/ll_args.hpp"
#include "gpu/ll/direct_ll.cuh"

#define PLAIT_DIRECT_LL(type, name, blocks, op, handling)                                       \
  PLAIT_DIRECT_LL_KERNEL(direct_ll, DirectLlArgs, 512, blocks, type, name, op, plait::handling) \
  PLAIT_SHORT_DIRECT_LL(type, name, op, handling, 4)
#define PLAIT_SHORT_DIRECT_LL(type, name, op, handling, ranks)                                   \
  PLAIT_DIRECT_LL_KERNEL(short_direct_ll, ShortDirectLlArgs, plait::cuda::kShortDirectLlThreads, \
                         2, type, name##_##ranks, op, plait::handling, ranks)
#define PLAIT_DIRECT_LL_KERNEL(kernel, Args, threads, blocks, type, name, ...)           \
  extern "C" __global__ void __launch_bounds__(threads, blocks)                          \
      plait_##kernel##_##type##_##name(const __grid_constant__ plait::cuda::Args args) { \
    if (args.state == nullptr) return; /* an empty launch */                             \
    plait::cuda::kernel<plait::DataType::type, __VA_ARGS__>(args);                       \
  }
#define PLAIT_COMMON_DIRECT_LL(type, name, blocks, op, handling) \
  PLAIT_DIRECT_LL(type, name, blocks, op, handling)              \
  PLAIT_SHORT_DIRECT_LL(type, name, op, handling, 8)
