// Instances of the direct_chunks kernels: plait_direct_chunks_TYPE_{any|sum|place|tree}. Pure
// moves run the kernel of the element's size.
#include "gpu/chunk/direct_chunks.cuh"

#define PLAIT_DIRECT_CHUNKS(type, name, op, handling)                             \
  extern "C" __global__ void __launch_bounds__(plait::cuda::kChunkThreads, 2)     \
      plait_direct_chunks_##type##_##name(                                        \
          const __grid_constant__ plait::cuda::DirectChunksArgs args) {           \
    if (args.state == nullptr) return; /* an empty launch */                      \
    plait::cuda::direct_chunks<plait::DataType::type, op, plait::handling>(args); \
  }
#define PLAIT_TYPE(type, bytes, is_float, nccl_value) \
  PLAIT_DIRECT_CHUNKS(type, any, plait::cuda::kAnyOp, kReduceParts)
#include "plait/types.def"
#undef PLAIT_TYPE

#define PLAIT_DIRECT_CHUNKS_SUM(type) \
  PLAIT_DIRECT_CHUNKS(type, sum, static_cast<int>(plait::ReduceOp::sum), kReduceParts)
PLAIT_DIRECT_CHUNKS_SUM(fp32)
PLAIT_DIRECT_CHUNKS_SUM(bf16)
PLAIT_DIRECT_CHUNKS_SUM(fp16)

#define PLAIT_DIRECT_CHUNKS_TREE(type) \
  PLAIT_DIRECT_CHUNKS(type, tree, plait::cuda::kTreeAny, kReduceParts)
PLAIT_DIRECT_CHUNKS_TREE(fp32)
PLAIT_DIRECT_CHUNKS_TREE(fp64)
PLAIT_DIRECT_CHUNKS_TREE(bf16)
PLAIT_DIRECT_CHUNKS_TREE(fp16)
PLAIT_DIRECT_CHUNKS_TREE(fp8e4m3)
PLAIT_DIRECT_CHUNKS_TREE(fp8e5m2)

#define PLAIT_DIRECT_CHUNKS_PLACE(type) \
  PLAIT_DIRECT_CHUNKS(type, place, plait::cuda::kAnyOp, kPlaceParts)
PLAIT_DIRECT_CHUNKS_PLACE(uint8)
PLAIT_DIRECT_CHUNKS_PLACE(uint16)
PLAIT_DIRECT_CHUNKS_PLACE(uint32)
PLAIT_DIRECT_CHUNKS_PLACE(uint64)
