// The fused two_shot kernels, in the same variants as one_shot.
#include "exec/cuda/kernels/fused.cuh"
#include "exec/cuda/kernels/instances.cuh"

PLAIT_FUSED_KERNELS(two_shot)
