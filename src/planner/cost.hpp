// Plan -> nanoseconds, in closed form: the larger of the busiest resource's time and the longest
// chain of ops, each at the speed it has alone. Good enough to rank proposals; simulate() knows
// more.
#pragma once
#include "plait/plan.hpp"

namespace plait {

double estimate_ns(const Plan& plan, const Topology& topology);

}  // namespace plait
