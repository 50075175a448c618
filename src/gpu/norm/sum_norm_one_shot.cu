// Instances of all_reduce_rms_norm in which every rank sums all rows, and of the norm alone.
#include "gpu/norm/norm_instances.cuh"

namespace plait::cuda {
/// The norm knows no ranks.
template <DataType kType, int kRanks, int kUnits>
__device__ void norm_alone(const NormArgs& args) {
  rms_norm<kType, kUnits>(args);
}
}  // namespace plait::cuda

PLAIT_NORM_TYPES(sum_norm_one_shot, 2)
PLAIT_NORM_TYPES(sum_norm_one_shot, 4)
PLAIT_NORM_TYPES(sum_norm_one_shot, 8)
PLAIT_NORM_TYPES(sum_norm_one_shot, 0)
PLAIT_NORM_TYPES(norm_alone, 0)
