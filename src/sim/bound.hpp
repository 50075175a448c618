// Request + machine -> a time that no plan can beat. Two arguments, the larger counts:
// 1. Cuts (as ForestColl bounds schedules): for any split of the devices, the bytes that the
//    outputs on one side need from the other, over the capacity of the links that cross.
// 2. For all_reduce, receives: per element n-1 receives must merge n values, and when the first
//    processor has the sum, the n-1 (or more) other ranks must each still receive it. So ranks and
//    reducing hosts receive 2(n-1) times the message in all (Patarasuk and Yuan, 2009).
#pragma once
#include "plait/plan.hpp"
#include "sim/machine.hpp"

namespace plait::sim {

/// `request` must be checked() for the machine's topology.
double lower_bound_ns(const Request& request, const SimMachine& machine);

}  // namespace plait::sim
