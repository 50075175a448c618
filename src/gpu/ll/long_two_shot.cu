// Instances of the long_two_shot kernels, which reuse packets, in the same variants as two_shot.
#include "gpu/ll/long_two_shot.cuh"

#define PLAIT_FUSED_ARGS LongShotArgs
#define PLAIT_FUSED_FLAG ClearedFlagPacket
#include "gpu/ll/instances.cuh"

PLAIT_FUSED_KERNELS(long_two_shot)
