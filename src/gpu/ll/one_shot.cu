// Instances of the one_shot kernels: sums of the common float types with the number of ranks known
// at compile time, and every other type, op and number of ranks looked up at run time.
#include "gpu/ll/fused.cuh"
#include "gpu/ll/instances.cuh"

PLAIT_FUSED_KERNELS(one_shot)
