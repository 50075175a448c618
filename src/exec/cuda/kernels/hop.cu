// The one-hop kernels, one a type. What only moves data runs the kernel of its element size.
#include "exec/cuda/kernels/hop.cuh"

#define PLAIT_TYPE(name, bytes, is_float, nccl_value)                       \
  extern "C" __global__ void __launch_bounds__(512)                         \
      plait_hop_##name(const __grid_constant__ plait::cuda::HopArgs args) { \
    plait::cuda::hop<plait::DataType::name>(args);                          \
  }
#include "plait/types.def"
#undef PLAIT_TYPE
