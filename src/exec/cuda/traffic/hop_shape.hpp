// plan/hop_shape.hpp as kernels may call it.
#pragma once

#ifdef __CUDACC__
#define PLAIT_ON_BOTH __host__ __device__
#else
#define PLAIT_ON_BOTH
#endif
#include "plan/hop_shape.hpp"
