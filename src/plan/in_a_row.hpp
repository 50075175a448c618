// Calls one behind the other on the same words and slots, as engines make them: what a call's words
// count from, and all of it as one plan whose ranks keep their own order and no barrier between
// calls.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// The lane of the caller's stream: a call begins and ends there. A plan without it begins with all
/// lanes of a rank and ends with them.
inline constexpr const char* kHomeLane = "home";

/// What the calls so far have counted, word by word.
class FlagCounts {
 public:
  /// A signal or wait of the next call, as it counts from here; other ops stay as they are.
  void move(Op& op) const;
  /// The call has ended.
  void add(const Plan& plan);

 private:
  std::uint32_t base_of(const Flag& flag) const;
  std::map<int, std::uint32_t> of_index_;  // Plan::counts
  std::map<Flag, std::uint32_t> of_flag_;  // the others
};

/// All calls as one plan: lane "2:push" is "push" of the second call. Inputs and outputs of
/// different calls lie apart; inboxes by turns in both halves. Fit for proofs of order, not to run.
/// All plans have the same ranks.
Plan in_a_row(const std::vector<const Plan*>& calls);

}  // namespace plait
