// Kernel of the path check, once per communicator, with a block per rank.
#include "gpu/path_check/path_check.cuh"

extern "C" __global__ void __launch_bounds__(plait::cuda::kPathThreads)
    plait_path_check(const __grid_constant__ plait::cuda::PathArgs args) {
  __shared__ plait::cuda::PathShared shared;
  plait::cuda::path_check(args, shared);
}
