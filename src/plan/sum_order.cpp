// Names of orders, and whether a plan's ops can sum in a tree. The verifier proves what is claimed
// here.
#include "plan/sum_order.hpp"

#include <algorithm>
#include <bit>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

/// Whether each reduction takes the inputs of all ranks at once, and no library sums.
bool is_flat(const Plan& plan) {
  const auto takes_part = [&](const Op& op) {
    return op.kind == OpKind::reduce &&
           (op.srcs.size() != static_cast<std::size_t>(plan.request.ranks) || !op.finish);
  };
  return plan.calls.empty() &&
         std::none_of(plan.lanes.begin(), plan.lanes.end(), [&](const Lane& lane) {
           return std::any_of(lane.ops.begin(), lane.ops.end(), takes_part);
         });
}

}  // namespace

SumOrder parse_sum_order(std::string_view what, std::string_view name) {
  if (name == "rank" || name == "rank_order") return SumOrder::rank_order;
  for (const SumOrder order : {SumOrder::tree, SumOrder::tree_rounded})
    if (name == name_of(order)) return order;
  throw Error(ErrorCode::invalid_argument,
              text("{}: wanted rank_order, tree or tree_rounded, found '{}'", what, name));
}

SumOrder demanded_order(const Env& env) {
  return env.sum_order.empty() ? SumOrder::rank_order
                               : parse_sum_order("environment: PLAIT_SUM_ORDER", env.sum_order);
}

bool has_one_order(const Request& request) {
  return !reduces(request.collective) || request.ranks <= 2 ||
         has_no_order(request.type, request.op);
}

std::string why_not_order(const Request& request, SumOrder order) {
  if (!is_tree(order) || has_one_order(request) ||
      std::has_single_bit(static_cast<unsigned>(request.ranks)))
    return {};
  return text(
      "sum order {} wants 2, 4, 8 or another power of two of ranks, found {}; use "
      "rank_order",
      name_of(order), request.ranks);
}

std::optional<Plan> in_order(Plan plan, SumOrder order) {
  if (!reduces(plan.request.collective) || plan.sum_order == order) return plan;
  if (!is_tree(order) || !why_not_order(plan.request, order).empty()) return std::nullopt;
  const bool is_free = has_no_order(plan.request.type, plan.request.op);
  // Types that are not widened are rounded at each sum of a tree anyway.
  const bool is_same_tree = is_tree(plan.sum_order) && !is_widened(plan.request.type);
  if (!is_free && !is_same_tree && (plan.sum_order != SumOrder::rank_order || !is_flat(plan)))
    return std::nullopt;
  plan.sum_order = order;
  return plan;
}

}  // namespace plait
