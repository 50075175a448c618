// The kernels of two_shot whose lines are used again, in the same variants as two_shot.
#include "exec/cuda/lines/long_two_shot.cuh"

#define PLAIT_FUSED_ARGS LongShotArgs
#define PLAIT_FUSED_FLAGGED ClearedFlaggedLine
#include "exec/cuda/lines/instances.cuh"

PLAIT_FUSED_KERNELS(long_two_shot)
