// The one-hop kernels: plait_hop_TYPE_{any|sum|place}; sums of the common floats, and what is only
// moved (as integers of the element's size), keep within 64 registers.
#include "exec/cuda/lines/hop.cuh"
#include "exec/cuda/lines/line_args.hpp"
#include "exec/cuda/traffic/hop_shape.hpp"

#define PLAIT_HOP(type, name, blocks, op, handling)       \
  PLAIT_HOP_KERNEL(hop, type, name, blocks, op, handling) \
  PLAIT_HOP_KERNEL(short_hop, type, name, blocks, op, handling)
#define PLAIT_HOP_KERNEL(kernel, type, name, blocks, op, handling)                          \
  extern "C" __global__ void __launch_bounds__(512, blocks)                                 \
      plait_##kernel##_##type##_##name(const __grid_constant__ plait::cuda::HopArgs args) { \
    if (args.state == nullptr) return; /* an empty launch */                                \
    plait::cuda::kernel<plait::DataType::type, op, plait::handling>(args);                  \
  }
#define PLAIT_TYPE(type, bytes, is_float, nccl_value) \
  PLAIT_HOP(type, any, 1, plait::cuda::kAnyOp, kReduceParts)
#include "plait/types.def"
#undef PLAIT_TYPE

#define PLAIT_HOP_SUM(type) \
  PLAIT_HOP(type, sum, 2, static_cast<int>(plait::ReduceOp::sum), kReduceParts)
PLAIT_HOP_SUM(fp32)
PLAIT_HOP_SUM(bf16)
PLAIT_HOP_SUM(fp16)

#define PLAIT_HOP_PLACE(type) PLAIT_HOP(type, place, 2, plait::cuda::kAnyOp, kPlaceParts)
PLAIT_HOP_PLACE(uint8)
PLAIT_HOP_PLACE(uint16)
PLAIT_HOP_PLACE(uint32)
PLAIT_HOP_PLACE(uint64)
