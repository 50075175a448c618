// Consecutive calls of engines that share flags and slots, joined into a single plan: each rank
// runs the calls in order, with no barrier between calls. The verifier proves the joined plan.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// The lane of the caller's stream: calls begin and end on this lane. A plan without a home lane
/// begins and ends on all lanes of a rank.
inline constexpr const char* kHomeLane = "home";

/// The value of every flag after the calls so far.
class FlagCounts {
 public:
  /// Adds the values so far to a signal or wait of the next call; leaves other ops unchanged.
  void move(Op& op) const;
  /// Adds the amounts by which `plan` raises its flags.
  void add(const Plan& plan);

 private:
  std::uint32_t base_of(const Flag& flag) const;
  std::map<int, std::uint32_t> of_index_;  // by Flag::index: Plan::counts
  std::map<Flag, std::uint32_t> of_flag_;  // all other flags
};

/// Returns all calls as a single plan: lane "2:push" is "push" of the second call. Inputs and
/// outputs of different calls lie at different offsets; inboxes alternate between two halves. The
/// plan serves proofs of order and is not to be run. All plans must have the same ranks.
Plan in_a_row(const std::vector<const Plan*>& calls);

}  // namespace plait
