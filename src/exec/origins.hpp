// premul_sum: which rank's factor each source of each reduction takes. Data moves through scratch
// before it is reduced, so a source's own rank does not say whose contribution it is; following
// the plan's copies does.
#pragma once
#include <vector>

#include "plait/plan.hpp"

namespace plait {

inline constexpr int kReduced = -1;  ///< already a (scaled) partial result

/// [lane][op][source] -> the rank whose input it is, or kReduced. Empty rows for other ops.
using Origins = std::vector<std::vector<std::vector<int>>>;

/// Error(unsupported) where a source is partly reduced and partly not;
/// Error(timeout) where the lanes cannot end.
Origins origins_of(const Plan& plan);

/// The factors of one reduction's sources; factors of partial results are 1.
std::vector<double> scales_of(const std::vector<int>& origins, const std::vector<double>& scalars);

}  // namespace plait
