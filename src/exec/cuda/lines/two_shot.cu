// The fused two_shot kernels, in the same variants as one_shot.
#include "exec/cuda/lines/fused.cuh"
#include "exec/cuda/lines/instances.cuh"

PLAIT_FUSED_KERNELS(two_shot)
