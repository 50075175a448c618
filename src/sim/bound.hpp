// Lower bound of a request's time on a machine: the larger of two bounds.
// 1. Cuts (as in ForestColl): for a split of the devices in two sides, the bytes that a side's
//    outputs need from the opposite side, divided by the capacity of the crossing links.
// 2. Receives, for all_reduce: for each element n-1 receives merge n values, and when the first
//    processor has the sum, n-1 other ranks must still receive it. Ranks and reducing hosts
//    together receive 2(n-1) times the message (Patarasuk and Yuan, 2009).
#pragma once
#include "plait/plan.hpp"
#include "sim/machine.hpp"

namespace plait::sim {

/// `request` must be checked() for the machine's topology.
double lower_bound_ns(const Request& request, const SimMachine& machine);

}  // namespace plait::sim
