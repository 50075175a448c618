// Proofs for engines' calls, each proved alone before: a call lies between the caller's earlier and
// later work on its stream; all waits end even if a rank's streams are a single hardware queue; the
// next call may reuse slots with no barrier between. Calls in a row are checked for raises of
// shared flags, accesses to shared slots, and that all waits end. Flags only grow, and a call's
// values end where the next call's begin: each wait is for a raise of its own call.
#include "plan/in_a_row.hpp"

#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "verify/phases.hpp"

namespace plait {
namespace {

constexpr const char* kOneQueue = " (in one hardware queue)";

/// Runs the plan with each rank's enqueued ops strictly in order, each ended before the next
/// begins. No hardware runs fewer ops at once: if this run ends, every run does.
class OneQueue {
 public:
  OneQueue(const Plan& plan, Findings& findings)
      : plan_(plan), findings_(findings), next_(plan.lanes.size(), 0), is_enqueued_(next_.size()) {
    for (const std::vector<int>& lanes : plan.enqueued)
      for (const int lane : lanes) is_enqueued_[static_cast<std::size_t>(lane)] = true;
    at_.assign(plan.enqueued.size(), 0);
  }

  void run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (std::size_t rank = 0; rank < at_.size(); ++rank) moves = advance(rank) || moves;
      for (std::size_t lane = 0; lane < next_.size(); ++lane)
        while (!is_enqueued_[lane] && step(lane)) moves = true;
    }
    report();
  }

 private:
  bool advance(std::size_t rank) {
    const std::size_t before = at_[rank];
    const std::vector<int>& lanes = plan_.enqueued[rank];
    while (at_[rank] < lanes.size() && step(static_cast<std::size_t>(lanes[at_[rank]])))
      ++at_[rank];
    return at_[rank] != before;
  }

  bool step(std::size_t lane) {
    const std::vector<Op>& ops = plan_.lanes[lane].ops;
    if (next_[lane] == ops.size()) return false;
    const Op& op = ops[next_[lane]];
    if (op.kind == OpKind::wait && flags_[op.flag] < op.value) return false;
    if (op.kind == OpKind::signal) flags_[op.flag] = std::max(flags_[op.flag], op.value);
    ++next_[lane];
    return true;
  }

  void report() {
    for (std::size_t rank = 0; rank < at_.size(); ++rank)
      if (at_[rank] < plan_.enqueued[rank].size())
        report_wait(static_cast<std::size_t>(plan_.enqueued[rank][at_[rank]]), " blocks the queue");
    for (std::size_t lane = 0; lane < next_.size(); ++lane)
      if (!is_enqueued_[lane] && next_[lane] < plan_.lanes[lane].ops.size())
        report_wait(lane, " waits");
  }

  void report_wait(std::size_t lane, const char* what) {
    const Op& op = plan_.lanes[lane].ops[next_[lane]];
    const int index = static_cast<int>(lane), at = static_cast<int>(next_[lane]);
    findings_.of_op(
        Rule::deadlock, index, at,
        text("wanted flag {} of rank {} by rank {} to reach {}, found that {}{} at {}{}",
             op.flag.index, op.flag.owner, op.flag.writer, op.value, site(plan_, index, at), what,
             flags_[op.flag], kOneQueue));
  }

  const Plan& plan_;
  Findings& findings_;
  std::vector<std::size_t> next_;  // by lane
  std::vector<bool> is_enqueued_;  // by lane
  std::vector<std::size_t> at_;    // by rank: index into Plan::enqueued
  std::map<Flag, std::uint32_t> flags_;
};

void report_stream(const Plan& plan, const OpOrder& order, std::size_t lane, Site home,
                   Findings& findings) {
  const Lane& checked_lane = plan.lanes[lane];
  const int last_home =
      static_cast<int>(plan.lanes[static_cast<std::size_t>(home.lane)].ops.size());
  for (std::size_t i = 0; i < checked_lane.ops.size(); ++i) {
    const Site here{static_cast<int>(lane), static_cast<int>(i)};
    const OpKind kind = checked_lane.ops[i].kind;
    const bool moves = kind == OpKind::copy || kind == OpKind::reduce;
    // CPU cores may raise a last flag after the end of the call: only their data ops count. A
    // stream forked by a graph must be joined.
    const bool is_joined =
        checked_lane.kind == LaneKind::cpu ? moves : i + 1 == checked_lane.ops.size();
    if (i == 0 && !order.before(home, here))
      findings.of_op(Rule::stream, here.lane, here.op,
                     text("wanted {} to begin after the caller's stream has come to the call, "
                          "found no order between them",
                          site(plan, here.lane, here.op)));
    if (is_joined && !order.before(here, {home.lane, last_home - 1}))
      findings.of_op(
          Rule::stream, here.lane, here.op,
          text("wanted the caller's stream to end the call after {}, found no order between them",
               site(plan, here.lane, here.op)));
  }
}

// Joins the calls into a single plan, finds the plan's order, and runs `check`.
template <class Check>
void check_row(const std::vector<const Plan*>& calls, Findings& findings, const Check& check) {
  for (const Plan* call : calls)
    if (call->request.ranks != calls.front()->request.ranks)
      return findings.of_plan(Rule::plan, text("wanted calls of as many ranks, found {} and {}",
                                               calls.front()->request.ranks, call->request.ranks));
  const Plan row = in_a_row(calls);
  Findings found(row);
  check_raises(row, found);
  const OpOrder order(row, found);
  if (order.sequence().size() == op_count(row)) check(row, order, found);
  for (const Finding& finding : found.taken())
    findings.of_row(finding, text(" (in calls in a row: {})", row.strategy));
}

}  // namespace

void check_streams(const Plan& plan, const OpOrder& order, Findings& findings) {
  for (std::size_t home = 0; home < plan.lanes.size(); ++home) {
    if (plan.lanes[home].name != kHomeLane || plan.lanes[home].ops.empty()) continue;
    for (std::size_t lane = 0; lane < plan.lanes.size(); ++lane)
      if (lane != home && plan.lanes[lane].rank == plan.lanes[home].rank)
        report_stream(plan, order, lane, {static_cast<int>(home), 0}, findings);
  }
}

void check_one_queue(const Plan& plan, Findings& findings) {
  if (!plan.enqueued.empty()) OneQueue(plan, findings).run();
}

void check_in_a_row(const std::vector<const Plan*>& calls, Findings& findings) {
  check_row(calls, findings, [](const Plan& row, const OpOrder& order, Findings& found) {
    check_hazards(row, order, Placement::out_of_place, found);
    check_one_queue(row, found);
  });
}

void check_in_a_graph(const std::vector<const Plan*>& calls, Findings& findings) {
  check_row(calls, findings, check_branches);
}

}  // namespace plait
