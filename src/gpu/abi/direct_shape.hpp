// Includes plan/direct_shape.hpp and plan/chain_shape.hpp with functions for host and device code.
#pragma once

#ifdef __CUDACC__
#define PLAIT_ON_BOTH __host__ __device__
#else
#define PLAIT_ON_BOTH
#endif
#include "plan/chain_shape.hpp"
#include "plan/direct_shape.hpp"
