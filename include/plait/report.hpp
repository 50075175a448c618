// Report: the result of verifying a plan (src/verify). A report holds all findings, each with rule,
// op and sentence; no findings = proved.
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
  std::string sentence;  ///< states what was wanted and what was found
  bool operator==(const Finding&) const = default;
};

struct Report {
  std::string plan;                 ///< label of the plan
  std::vector<Finding> findings;    ///< empty = proved
  std::vector<std::string> orders;  ///< the distinct summation orders found, "((0+1)+2)" or "0+1+2"
  std::uint64_t ops = 0;            ///< number of ops checked
  bool proved() const { return findings.empty(); }
  bool operator==(const Report&) const = default;
};

/// Proves a plan, with buffers out of place and in place, or reports every fault. Never throws,
/// whatever the plan holds.
Report verify(const Plan& plan) noexcept;
/// Proves consecutive calls that share slots and flags, with no barrier between them: all waits
/// end, also if a rank's streams are a single hardware queue, and accesses to the same bytes are
/// ordered. Each call must have passed verify(). Never throws.
Report verify_in_a_row(const std::vector<const Plan*>& calls) noexcept;
/// Proves that all waits of consecutive calls end in a CUDA graph. A graph may put all streams of a
/// rank in a single branch, in any order that streams and events allow. Calls with a part through
/// host memory or CPU cores do not pass, since such calls need several branches. Never throws.
Report verify_in_a_graph(const std::vector<const Plan*>& calls) noexcept;
std::string print(const Report& report);
/// "hazard rank 1 lane 2 op 3: wanted ..., found ...".
std::string print(const Finding& finding);
std::string to_json(const Report& report);
Report report_from_json(std::string_view json);

}  // namespace plait
