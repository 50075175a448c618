// What a proof of a plan found: all findings at once, each with rule, place and sentence.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// One broken rule. Rules are listed in verify/rules.def.
struct Finding {
  std::string rule;      ///< "contract", "hazard", "deadlock", "bounds", "flag", "path", ...
  int rank = -1;         ///< -1 = the plan as a whole
  int lane = -1;         ///< index into Plan::lanes
  int op = -1;           ///< index into Lane::ops
  std::string path;      ///< the named path concerned, if any
  std::string sentence;  ///< what was wanted, what was found
  bool operator==(const Finding&) const = default;
};

struct Report {
  std::string plan;                 ///< label of the plan
  std::vector<Finding> findings;    ///< empty = proved
  std::vector<std::string> orders;  ///< the distinct summation orders found, "((0+1)+2)" or "0+1+2"
  std::uint64_t ops = 0;            ///< how many were checked
  bool proved() const { return findings.empty(); }
  bool operator==(const Report&) const = default;
};

/// Proves the plan or says all that is wrong with it. Never throws, whatever the plan holds.
/// Checked out of place and in place.
Report verify(const Plan& plan) noexcept;
/// Calls one behind the other, each rank in its own order and with no barrier between them; of
/// each, verify() must have found nothing. Proves that they share slots and words: all waits end,
/// also in one hardware queue, and accesses to the same bytes are ordered. Never throws.
Report verify_in_a_row(const std::vector<const Plan*>& calls) noexcept;
/// Calls in a row in a graph, which may lay all streams of a rank in one branch, in any order that
/// streams and events allow: all waits end. Not so of parts that meet CPU cores or go through host
/// memory, which want branches of their own. Never throws.
Report verify_in_a_graph(const std::vector<const Plan*>& calls) noexcept;
std::string print(const Report& report);
/// "hazard rank 1 lane 2 op 3: wanted ..., found ...".
std::string print(const Finding& finding);
std::string to_json(const Report& report);
Report report_from_json(std::string_view json);

}  // namespace plait
