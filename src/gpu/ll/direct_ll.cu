// Instances of the direct_ll kernels for sums in rank order, other ops, and pure moves (as integers
// of the element's size). Sums of the common floats and moves fit in 64 registers.
#include "gpu/ll/direct_ll_instances.cuh"

#define PLAIT_TYPE(type, bytes, is_float, nccl_value) \
  PLAIT_DIRECT_LL(type, any, 1, plait::cuda::kAnyOp, kReduceParts)
#include "plait/types.def"
#undef PLAIT_TYPE

#define PLAIT_DIRECT_LL_SUM(type) \
  PLAIT_COMMON_DIRECT_LL(type, sum, 2, static_cast<int>(plait::ReduceOp::sum), kReduceParts)
PLAIT_DIRECT_LL_SUM(fp32)
PLAIT_DIRECT_LL_SUM(bf16)
PLAIT_DIRECT_LL_SUM(fp16)

#define PLAIT_DIRECT_LL_PLACE(type) \
  PLAIT_COMMON_DIRECT_LL(type, place, 2, plait::cuda::kAnyOp, kPlaceParts)
PLAIT_DIRECT_LL_PLACE(uint8)
PLAIT_DIRECT_LL_PLACE(uint16)
PLAIT_DIRECT_LL_PLACE(uint32)
PLAIT_DIRECT_LL_PLACE(uint64)
