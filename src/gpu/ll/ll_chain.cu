// Instances of the chain kernels: plait_{ll|long}_chain_TYPE_{any|sum|place}, for the same types as
// direct_ll.
#include "gpu/abi/direct_shape.hpp"
#include "gpu/abi/ll_args.hpp"
#include "gpu/ll/ll_chain.cuh"
#include "gpu/ll/long_chain.cuh"

#define PLAIT_CHAIN(type, name, blocks, op, handling)                                             \
  extern "C" __global__ void __launch_bounds__(512, blocks)                                       \
      plait_ll_chain_##type##_##name(const __grid_constant__ plait::cuda::ChainArgs args) {       \
    if (args.state == nullptr) return; /* an empty launch */                                      \
    plait::cuda::ll_chain<plait::DataType::type, op, plait::handling>(args);                      \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(512, blocks)                                       \
      plait_long_chain_##type##_##name(const __grid_constant__ plait::cuda::LongChainArgs args) { \
    if (args.state == nullptr) return; /* an empty launch */                                      \
    plait::cuda::long_chain<plait::DataType::type, op, plait::handling>(args);                    \
  }
#define PLAIT_TYPE(type, bytes, is_float, nccl_value) \
  PLAIT_CHAIN(type, any, 1, plait::cuda::kAnyOp, kReduceParts)
#include "plait/types.def"
#undef PLAIT_TYPE

#define PLAIT_CHAIN_SUM(type) \
  PLAIT_CHAIN(type, sum, 2, static_cast<int>(plait::ReduceOp::sum), kReduceParts)
PLAIT_CHAIN_SUM(fp32)
PLAIT_CHAIN_SUM(fp16)
PLAIT_CHAIN_SUM(bf16)

#define PLAIT_CHAIN_PLACE(type) PLAIT_CHAIN(type, place, 2, plait::cuda::kAnyOp, kPlaceParts)
PLAIT_CHAIN_PLACE(uint8)
PLAIT_CHAIN_PLACE(uint16)
PLAIT_CHAIN_PLACE(uint32)
PLAIT_CHAIN_PLACE(uint64)
