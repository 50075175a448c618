// Proposals in the order that the simulator puts them in.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/communicator.hpp"

namespace plait {

/// ranked() of these proposals.
std::vector<RankedPlan> ranked_of(std::vector<Plan> proposals, const Topology& topology,
                                  std::uint64_t budget_ops);

}  // namespace plait
