// Instances of the one_shot and two_shot kernels that sum in trees of 4, 8 or 16 ranks.
#include "gpu/ll/fused.cuh"
#include "gpu/ll/instances.cuh"

PLAIT_FUSED_TREES(one_shot)
PLAIT_FUSED_TREES(two_shot)
#define PLAIT_TREES_TO_ROOT(type)             \
  PLAIT_FUSED_TREE(two_shot_to_root, type, 4) \
  PLAIT_FUSED_TREE(two_shot_to_root, type, 8)
PLAIT_TREES_TO_ROOT(fp32)
PLAIT_TREES_TO_ROOT(bf16)
PLAIT_TREES_TO_ROOT(fp16)
