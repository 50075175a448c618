// Orders of summation on demand, and plans in an order. A plan in rank order and its tree have the
// same ops: in the tree an op sums its sources in pairs.
#pragma once
#include <optional>
#include <string>

#include "base/env.hpp"
#include "plait/plan.hpp"

namespace plait {

/// Returns the order that PLAIT_SUM_ORDER demands, else rank order.
SumOrder demanded_order(const Env& env);
/// Returns why sums of a request cannot take an order; empty = sums can. A tree wants a power of
/// two of ranks.
std::string why_not_order(const Request& request, SumOrder order);
/// Returns the plan with sums in `order`, or nothing if an op cannot sum in `order`. A plan in rank
/// order becomes a tree if each sum is a single op over all ranks.
std::optional<Plan> in_order(Plan plan, SumOrder order);

}  // namespace plait
