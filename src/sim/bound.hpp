// Lower bound of a request's time on a machine: the larger of two bounds.
// 1. Cuts (as in ForestColl): for a split of the devices in two sides, the bytes that the outputs
// of
//    one side need from the other, divided by the capacity of the links that cross.
// 2. Receives, for all_reduce: for each element n-1 receives merge n values, and when the first
//    processor has the sum, n-1 other ranks must still receive it. So ranks and reducing hosts
//    receive 2(n-1) times the message in all (Patarasuk and Yuan, 2009).
#pragma once
#include "plait/plan.hpp"
#include "sim/machine.hpp"

namespace plait::sim {

/// `request` must be checked() for the machine's topology.
double lower_bound_ns(const Request& request, const SimMachine& machine);

}  // namespace plait::sim
