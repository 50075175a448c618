// Instances of the long_two_shot kernels that sum in trees of 4, 8 or 16 ranks.
#include "gpu/ll/long_two_shot.cuh"

#define PLAIT_FUSED_ARGS LongShotArgs
#define PLAIT_FUSED_FLAG ClearedFlagPacket
#include "gpu/ll/instances.cuh"

PLAIT_FUSED_TREES(long_two_shot)
