// Ranks proposals by simulated time.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/communicator.hpp"

namespace plait {

/// Sorts the proposals into the order of ranked() (plait/communicator.hpp).
std::vector<RankedPlan> ranked_of(std::vector<Plan> proposals, const Topology& topology,
                                  std::uint64_t budget_ops);

}  // namespace plait
