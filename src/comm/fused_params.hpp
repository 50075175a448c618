// params= of a fused kernel or of copy engines -> how it is launched; each takes what means
// something to it.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "exec/cuda/cuda_rank.hpp"

namespace plait {

/// True where the strategy is a kernel's or engines' name (one_shot, ..., rotation), not a plan's.
bool is_fused(const std::string& strategy);

/// Error(invalid_argument) for a name that `kernel` does not take, or a number out of range.
cuda::FusedTuning fused_tuning(const std::string& kernel,
                               const std::map<std::string, std::int64_t>& params);

}  // namespace plait
