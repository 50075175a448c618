// The happens-before order of a plan: vector clocks over lanes, from a single run of the plan. An
// op's clock gives the number of ops of each lane done before the op starts. Only waits and joins
// advance a clock, so ops between two waits share a row. Source: Fidge/Mattern vector clocks.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/plan.hpp"
#include "verify/findings.hpp"

namespace plait {

/// An op of the plan.
struct Site {
  int lane = -1;
  int op = -1;
};

class OpOrder {
 public:
  /// Runs the plan. Reports lanes that get stuck as deadlock findings, and two unordered raises of
  /// a flag as flag findings. check_flags() must have passed.
  OpOrder(const Plan& plan, Findings& findings);

  /// A run of the plan: every op comes after the ops that it depends on.
  const std::vector<Site>& sequence() const { return sequence_; }
  const Op& op(Site site) const { return lane(site.lane).ops[static_cast<std::size_t>(site.op)]; }
  int rank(Site site) const { return lane(site.lane).rank; }
  /// The join op of each member of a call, in the call's order.
  const std::vector<Site>& members(int call) const {
    return members_[static_cast<std::size_t>(call)];
  }

  /// Whether a is done before b starts.
  bool before(Site a, Site b) const {
    if (a.lane == b.lane) return a.op < b.op;
    return row(b)[a.lane] > static_cast<std::uint32_t>(a.op);
  }
  /// Whether `rank` has begun before the op starts; true for the op's own rank.
  bool after_begin(Site site, int rank) const;
  /// Whether the op is done before `rank` ends.
  bool before_end(Site site, int rank) const;
  /// Whether rank `one` has begun before rank `other` ends.
  bool begins_before_end(int one, int other) const;

 private:
  struct FlagHistory;
  struct PlanRun;
  const Lane& lane(int index) const { return plan_.lanes[static_cast<std::size_t>(index)]; }
  const std::uint32_t* row(Site site) const {
    return &rows_[row_of_[static_cast<std::size_t>(site.lane)][static_cast<std::size_t>(site.op)] *
                  plan_.lanes.size()];
  }
  std::uint32_t joined(std::uint32_t row, Site site, bool is_done);
  bool is_done(Site site) const {
    return row_of_[static_cast<std::size_t>(site.lane)].size() > static_cast<std::size_t>(site.op);
  }
  void run(PlanRun& run, int lane);
  void note_member(int call, Site site);
  bool arrive(PlanRun& run, int lane, int call);
  void report_stuck(const PlanRun& run, Findings& findings) const;
  void report_turns(const PlanRun& run, Findings& findings) const;
  void close(const PlanRun& run);

  const Plan& plan_;
  std::vector<Site> sequence_;
  std::vector<std::vector<Site>> members_;          // by call, member
  std::vector<std::vector<std::uint32_t>> row_of_;  // by lane, op
  std::vector<std::uint32_t> rows_;                 // rows of lanes.size() counts
  std::vector<std::uint64_t> ranks_of_row_;         // by row: ranks that have begun, as bits
  std::vector<std::vector<std::uint32_t>> ends_;    // by rank: ops done at its end, by lane
  std::vector<std::uint64_t> ranks_at_end_;  // by rank: ranks that have begun at its end, as bits
};

}  // namespace plait
