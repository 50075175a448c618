// premul_sum: finds the rank whose factor each source of a reduction takes. Data may move through
// scratch before the reduction, so the rank of a source's memory does not tell; the plan's copies
// do.
#pragma once
#include <vector>

#include "plait/plan.hpp"

namespace plait {

inline constexpr int kReduced = -1;  ///< A (scaled) partial result.

/// [lane][op][source] -> rank whose input the source is, or kReduced. Empty rows for other ops.
using Origins = std::vector<std::vector<std::vector<int>>>;

/// Error(unsupported) if a source is partly reduced and partly not; Error(timeout) if the lanes
/// cannot end.
Origins origins_of(const Plan& plan);

/// Factors of a reduction's sources; 1 for partial results.
std::vector<double> scales_of(const std::vector<int>& origins, const std::vector<double>& scalars);

}  // namespace plait
