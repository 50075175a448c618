// Residual and RMSNorm of rows in host memory, for calls of CPU ranks behind their all_reduce.
#pragma once
#include "plait/rms_norm.hpp"

namespace plait {

/// Adds `sums` (an all_reduce's result) to the residual and stores the normalised rows. Reads no
/// `input` of the buffers; `sums` may be the output.
void rms_norm(const RmsNorm& norm, const void* sums, const RmsNormBuffers& buffers);

}  // namespace plait
