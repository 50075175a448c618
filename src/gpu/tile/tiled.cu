// Instances of the tiled kernels: 1 per type for any op and number of ranks, and more for sums of
// the common float types over 2, 4 and 8 ranks. Pure moves run the kernel of the element size.
#include "gpu/abi/tile_args.hpp"
#include "gpu/device/ptx.cuh"

#if PLAIT_SM_90
#include "gpu/tile/tiled.cuh"

#define PLAIT_TILED_AS(name, type, op, ranks)                                   \
  extern "C" __global__ void __launch_bounds__(plait::cuda::kTileThreads, 1)    \
      plait_tiled_##name(const __grid_constant__ plait::cuda::TiledArgs args) { \
    if (args.state == nullptr) return; /* an empty launch */                    \
    plait::cuda::tiled<plait::DataType::type, op, ranks>(args);                 \
  }
#define PLAIT_TILED_SUM(type, ranks) \
  PLAIT_TILED_AS(type##_sum_##ranks, type, static_cast<int>(plait::ReduceOp::sum), ranks)
#define PLAIT_TILED_SUMS(type) \
  PLAIT_TILED_SUM(type, 2)     \
  PLAIT_TILED_SUM(type, 4)     \
  PLAIT_TILED_SUM(type, 8)
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) \
  PLAIT_TILED_AS(name##_any_0, name, plait::cuda::kAnyOp, 0)
#include "plait/types.def"
#undef PLAIT_TYPE
PLAIT_TILED_SUMS(fp32)
PLAIT_TILED_SUMS(bf16)
PLAIT_TILED_SUMS(fp16)
#endif  // PLAIT_SM_90
