// The fused two_shot kernels, in the same variants as one_shot, and those of reduces.
#include "exec/cuda/lines/fused.cuh"
#include "exec/cuda/lines/instances.cuh"

PLAIT_FUSED_KERNELS(two_shot)
PLAIT_FUSED_SUMS_OF_MORE(two_shot_to_root, fp32, bare, BareLine)
PLAIT_FUSED_SUMS_OF_MORE(two_shot_to_root, bf16, bare, BareLine)
PLAIT_FUSED_SUMS_OF_MORE(two_shot_to_root, fp16, bare, BareLine)
