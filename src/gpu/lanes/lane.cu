// Instances of the lane kernels: one per type, one more for sums of each common float type, and the
// kernel that ends a call.
#include "gpu/abi/lane_args.hpp"
#include "gpu/lanes/lane.cuh"

#define PLAIT_LANE(type, opname, op)                                                     \
  extern "C" __global__ void __launch_bounds__(512)                                      \
      plait_lane_##type##_##opname(const __grid_constant__ plait::cuda::LaneArgs args) { \
    if (args.state == nullptr) return; /* an empty launch */                             \
    plait::cuda::run_lanes<plait::DataType::type, op>(args);                             \
  }
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) PLAIT_LANE(name, any, plait::cuda::kAnyOp)
#include "plait/types.def"
#undef PLAIT_TYPE
PLAIT_LANE(fp32, sum, static_cast<int>(plait::ReduceOp::sum))
PLAIT_LANE(bf16, sum, static_cast<int>(plait::ReduceOp::sum))
PLAIT_LANE(fp16, sum, static_cast<int>(plait::ReduceOp::sum))

/// Runs after all lanes of a call.
extern "C" __global__ void plait_end_call(const __grid_constant__ plait::cuda::LaneEnd end) {
  if (end.state == nullptr) return;  // an empty launch
  plait::cuda::end_lanes(end);
}
