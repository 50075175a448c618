// Instances of all_reduce_rms_norm in which each row is summed by one rank.
#include "gpu/norm/norm_instances.cuh"

PLAIT_NORM_TYPES(sum_norm_two_shot, 2)
PLAIT_NORM_TYPES(sum_norm_two_shot, 4)
PLAIT_NORM_TYPES(sum_norm_two_shot, 8)
PLAIT_NORM_TYPES(sum_norm_two_shot, 0)
