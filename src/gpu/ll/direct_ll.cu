// Instances of the direct_ll kernels: plait_direct_ll_TYPE_{any|sum|place}, and
// plait_short_direct_ll_TYPE_{any|sum|place}_RANKS for at most RANKS ranks. Sums of the common
// floats and pure moves (as integers of the element's size) fit in 64 registers.
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
#define PLAIT_TYPE(type, bytes, is_float, nccl_value) \
  PLAIT_DIRECT_LL(type, any, 1, plait::cuda::kAnyOp, kReduceParts)
#include "plait/types.def"
#undef PLAIT_TYPE

#define PLAIT_COMMON_DIRECT_LL(type, name, op, handling) \
  PLAIT_DIRECT_LL(type, name, 2, op, handling)           \
  PLAIT_SHORT_DIRECT_LL(type, name, op, handling, 8)
#define PLAIT_DIRECT_LL_SUM(type) \
  PLAIT_COMMON_DIRECT_LL(type, sum, static_cast<int>(plait::ReduceOp::sum), kReduceParts)
PLAIT_DIRECT_LL_SUM(fp32)
PLAIT_DIRECT_LL_SUM(bf16)
PLAIT_DIRECT_LL_SUM(fp16)

#define PLAIT_DIRECT_LL_PLACE(type) \
  PLAIT_COMMON_DIRECT_LL(type, place, plait::cuda::kAnyOp, kPlaceParts)
PLAIT_DIRECT_LL_PLACE(uint8)
PLAIT_DIRECT_LL_PLACE(uint16)
PLAIT_DIRECT_LL_PLACE(uint32)
PLAIT_DIRECT_LL_PLACE(uint64)
