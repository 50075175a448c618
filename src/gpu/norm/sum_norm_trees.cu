// Instances of all_reduce_rms_norm that sum in trees of 4, 8 or 16 ranks.
#include "gpu/norm/norm_instances.cuh"

namespace plait::cuda {
template <DataType kType, int kRanks, int kUnits>
__device__ void sum_norm_one_shot_tree(const NormArgs& args) {
  sum_norm_one_shot<kType, kRanks, kUnits, kTreeSum>(args);
}
template <DataType kType, int kRanks, int kUnits>
__device__ void sum_norm_two_shot_tree(const NormArgs& args) {
  sum_norm_two_shot<kType, kRanks, kUnits, kTreeSum>(args);
}
}  // namespace plait::cuda

#define PLAIT_NORM_TREES(kernel, type, ranks) \
  PLAIT_NORM(kernel, type, ranks, 4)          \
  PLAIT_NORM(kernel, type, ranks, 8)
#define PLAIT_NORM_TREES_OF_RANKS(ranks)                \
  PLAIT_NORM_TREES(sum_norm_one_shot_tree, bf16, ranks) \
  PLAIT_NORM_TREES(sum_norm_one_shot_tree, fp16, ranks) \
  PLAIT_NORM_TREES(sum_norm_two_shot_tree, bf16, ranks) \
  PLAIT_NORM_TREES(sum_norm_two_shot_tree, fp16, ranks)

PLAIT_NORM_TREES_OF_RANKS(4)
PLAIT_NORM_TREES_OF_RANKS(8)
PLAIT_NORM_TREES_OF_RANKS(0)
