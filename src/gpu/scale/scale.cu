// Kernel of pre-multiplied sums, in front of the sum's kernels.
#include "gpu/scale/scale.cuh"

extern "C" __global__ void __launch_bounds__(plait::cuda::kScaleThreads)
    plait_scale(const __grid_constant__ plait::cuda::ScaleArgs args) {
  if (args.input == nullptr) return;  // an empty launch
  plait::cuda::scale(args);
}
