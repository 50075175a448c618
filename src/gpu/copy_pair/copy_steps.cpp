// Walks the lanes in turn, each as far as waits allow. A signal that no other lane waits for
// becomes no event, and a wait for a signal already known to the lane becomes no step.
#include "gpu/copy_pair/copy_steps.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

using Moment = std::pair<Flag, std::uint32_t>;

void check(const Plan& plan) {
  const auto wanted = [&](bool holds, const char* what) {
    if (!holds)
      throw Error(ErrorCode::unsupported,
                  text("plan {} cannot run as copies of one process: {}", label(plan), what));
  };
  for (const std::uint64_t bytes : plan.inbox_bytes) wanted(bytes == 0, "it has inboxes");
  for (const Lane& lane : plan.lanes)
    for (const Op& op : lane.ops) wanted(op.kind != OpKind::reduce, "it reduces");
}

class Walk {
 public:
  explicit Walk(const Plan& plan) : plan_(plan), next_(plan.lanes.size(), 0) {
    choose_lanes();
    for (const Lane& lane : plan.lanes)
      for (const Op& op : lane.ops)
        if (op.kind == OpKind::wait) awaited_.insert({op.flag, op.value});
  }

  CopySteps run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (std::size_t lane = 0; lane < plan_.lanes.size(); ++lane) moves |= advance(lane);
    }
    for (std::size_t lane = 0; lane < plan_.lanes.size(); ++lane)
      if (next_[lane] != plan_.lanes[lane].ops.size())
        throw Error(ErrorCode::internal,
                    text("plan {}: lane {} waits for ever", label(plan_), plan_.lanes[lane].name));
    return std::move(made_);
  }

 private:
  /// The lane called "home", or a rank's first lane, runs on the caller's stream, since that stream
  /// has to wait anyway.
  void choose_lanes() {
    std::map<int, std::size_t> callers;
    for (std::size_t i = 0; i < plan_.lanes.size(); ++i) {
      const Lane& lane = plan_.lanes[i];
      made_.lanes.push_back({lane.rank, false});
      if (lane.name == "home") callers[lane.rank] = i;
      callers.try_emplace(lane.rank, i);
    }
    for (const auto& [rank, lane] : callers) made_.lanes[lane].is_callers = true;
  }

  bool advance(std::size_t lane) {
    const std::vector<Op>& ops = plan_.lanes[lane].ops;
    std::size_t& next = next_[lane];
    const std::size_t before = next;
    for (; next < ops.size(); ++next) {
      const Op& op = ops[next];
      if (op.kind == OpKind::copy) copy(lane, op);
      if (op.kind == OpKind::signal) signal(lane, op);
      if (op.kind == OpKind::wait && !wait(lane, op)) break;
    }
    return next != before;
  }

  void copy(std::size_t lane, const Op& op) {
    const Region& src = op.srcs.front();
    for (const Region* region : {&op.dst, &src})
      made_.borrows |= region->space == Space::scratch || region->space == Space::ring;
    made_.steps.push_back({CopyStep::CopyStepKind::copy, static_cast<int>(lane), op.dst, src, 0});
  }

  void signal(std::size_t lane, const Op& op) {
    const Moment moment{op.flag, op.value};
    raised_[moment] = {lane, made_.event_lanes.size()};
    if (!awaited_.contains(moment)) return;
    made_.steps.push_back(
        {CopyStep::CopyStepKind::record, static_cast<int>(lane), {}, {}, made_.event_lanes.size()});
    made_.event_lanes.push_back(static_cast<int>(lane));
  }

  bool wait(std::size_t lane, const Op& op) {
    const auto raised = raised_.find({op.flag, op.value});
    if (raised == raised_.end()) return false;
    std::uint32_t& known = known_[{lane, op.flag}];
    if (raised->second.first == lane || known >= op.value) return true;
    known = op.value;
    made_.steps.push_back(
        {CopyStep::CopyStepKind::wait, static_cast<int>(lane), {}, {}, raised->second.second});
    return true;
  }

  const Plan& plan_;
  CopySteps made_;
  std::vector<std::size_t> next_;
  std::set<Moment> awaited_;
  std::map<Moment, std::pair<std::size_t, std::size_t>> raised_;  // Lane and event.
  std::map<std::pair<std::size_t, Flag>, std::uint32_t> known_;   // Waits of a lane until now.
};

}  // namespace

CopySteps order_copies(const Plan& plan) {
  check(plan);
  return Walk(plan).run();
}

}  // namespace plait::cuda
