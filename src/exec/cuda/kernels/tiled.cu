// The tiled all_reduce kernels: one a type, and one more for sums of the common float types.
#include "exec/cuda/kernels/tiled.cuh"

#define PLAIT_TILED(type, opname, op)                                                      \
  extern "C" __global__ void __launch_bounds__(512)                                        \
      plait_tiled_##type##_##opname(const __grid_constant__ plait::cuda::TiledArgs args) { \
    plait::cuda::tiled<plait::DataType::type, op>(args);                                   \
  }
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) PLAIT_TILED(name, any, plait::cuda::kAnyOp)
#include "plait/types.def"
#undef PLAIT_TYPE
PLAIT_TILED(fp32, sum, static_cast<int>(plait::ReduceOp::sum))
PLAIT_TILED(bf16, sum, static_cast<int>(plait::ReduceOp::sum))
PLAIT_TILED(fp16, sum, static_cast<int>(plait::ReduceOp::sum))
