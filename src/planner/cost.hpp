// Closed-form estimate of a plan's time in ns: the larger of the busiest resource's time and the
// longest chain of ops, each op at its speed when alone. propose() ranks by this estimate;
// simulate() is more precise.
#pragma once
#include "plait/plan.hpp"

namespace plait {

double estimate_ns(const Plan& plan, const Topology& topology);

}  // namespace plait
