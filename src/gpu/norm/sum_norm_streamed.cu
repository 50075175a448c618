// Instances of all_reduce_rms_norm of two ranks in which threads of their own send the rows.
#include "gpu/norm/norm_instances.cuh"

#define PLAIT_NORM_STREAMED(type, units) \
  PLAIT_NORM_OF(sum_norm_streamed, type, 2, units, plait::cuda::kMostStreamedThreads)

PLAIT_NORM_STREAMED(bf16, 2)
PLAIT_NORM_STREAMED(fp16, 2)
PLAIT_NORM_STREAMED(bf16, 4)
PLAIT_NORM_STREAMED(fp16, 4)
