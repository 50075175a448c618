// Instances of the two_shot kernels, in the same variants as one_shot, and instances that reduce to
// a root.
#include "gpu/ll/fused.cuh"
#include "gpu/ll/instances.cuh"

PLAIT_FUSED_KERNELS(two_shot)
PLAIT_FUSED_SUMS_OF_MORE(two_shot_to_root, fp32, nan_sentinel, NanSentinelPacket)
PLAIT_FUSED_SUMS_OF_MORE(two_shot_to_root, bf16, nan_sentinel, NanSentinelPacket)
PLAIT_FUSED_SUMS_OF_MORE(two_shot_to_root, fp16, nan_sentinel, NanSentinelPacket)
