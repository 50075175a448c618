// Ranks proposals by simulated time.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/communicator.hpp"

namespace plait {

/// Ranks these proposals as ranked() does.
std::vector<RankedPlan> ranked_of(std::vector<Plan> proposals, const Topology& topology,
                                  std::uint64_t budget_ops);

}  // namespace plait
