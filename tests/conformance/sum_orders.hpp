// A random order of sums for a request of a test.
#pragma once
#include <random>

#include "plan/sum_order.hpp"

namespace plait_test {

/// Returns rank order, or a tree if the request can be summed so.
inline plait::SumOrder some_order(const plait::Request& request, std::mt19937& random) {
  using plait::SumOrder;
  constexpr SumOrder kOrders[] = {SumOrder::rank_order, SumOrder::tree, SumOrder::tree_rounded};
  const SumOrder order = kOrders[random() % 3];
  return plait::why_not_order(request, order).empty() ? order : SumOrder::rank_order;
}

}  // namespace plait_test
