// Instances of all_reduce_rms_norm in which a cluster of blocks holds a row (9.0 and later).
#include "gpu/norm/norm_instances.cuh"

#if PLAIT_SM_90
#define PLAIT_NORM_CLUSTER(ranks)              \
  PLAIT_NORM(sum_norm_cluster, bf16, ranks, 1) \
  PLAIT_NORM(sum_norm_cluster, fp16, ranks, 1)

PLAIT_NORM_CLUSTER(2)
PLAIT_NORM_CLUSTER(4)
PLAIT_NORM_CLUSTER(8)
PLAIT_NORM_CLUSTER(0)
#endif  // PLAIT_SM_90
