// Collects the findings of a proof: at most 64 for each rule, further ones are counted.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plait/report.hpp"

namespace plait {

enum class Rule : std::uint8_t {
#define PLAIT_RULE(name, text) name,
#include "verify/rules.def"
#undef PLAIT_RULE
};
#define PLAIT_RULE(name, text) +1
inline constexpr std::size_t kRules = 0
#include "verify/rules.def"
    ;
#undef PLAIT_RULE

const char* name_of(Rule rule);

class Findings {
 public:
  explicit Findings(const Plan& plan) : plan_(plan) {}

  void of_plan(Rule rule, const std::string& sentence) { add(rule, -1, -1, -1, sentence); }
  void of_rank(Rule rule, int rank, const std::string& sentence) {
    add(rule, rank, -1, -1, sentence);
  }
  void of_lane(Rule rule, int lane, const std::string& sentence) {
    add(rule, rank_of(lane), lane, -1, sentence);
  }
  void of_op(Rule rule, int lane, int op, const std::string& sentence) {
    add(rule, rank_of(lane), lane, op, sentence);
  }
  /// Adds a finding about several calls, without lane and op; `suffix` names the calls.
  void of_row(Finding finding, const std::string& suffix) {
    finding.lane = finding.op = -1;
    finding.sentence += suffix;
    findings_.push_back(finding);
    ++total_;
  }
  bool none() const { return total_ == 0; }
  std::uint64_t total() const { return total_; }
  /// Returns all findings, with "and N more" for rules broken more than 64 times.
  std::vector<Finding> taken();

 private:
  int rank_of(int lane) const { return plan_.lanes[static_cast<std::size_t>(lane)].rank; }
  void add(Rule rule, int rank, int lane, int op, const std::string& sentence);

  const Plan& plan_;
  std::vector<Finding> findings_;
  std::array<std::uint64_t, kRules> count_{};
  std::uint64_t total_ = 0;
};

/// Names an op in sentences: "r0.push#3".
std::string site(const Plan& plan, int lane, int op);

}  // namespace plait
