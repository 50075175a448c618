// Proves that calls in a CUDA graph cannot deadlock. A graph may put all streams of a rank in a
// single branch, in any order that streams and events allow; a polling node then blocks all later
// nodes. A poll therefore depends on the awaited signal, and that signal on every poll of the same
// rank that may precede the signal in the branch (every poll not ordered after the signal). If the
// dependencies have no cycle, no order that the graph may choose deadlocks.
#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "verify/phases.hpp"

namespace plait {
namespace {

class Branches {
 public:
  Branches(const Plan& plan, const OpOrder& order, Findings& findings)
      : plan_(plan), order_(order), findings_(findings), is_free_(plan.lanes.size(), true) {
    for (const std::vector<int>& lanes : plan.enqueued)
      for (const int lane : lanes) is_free_[at(lane)] = false;
    number_polls();
  }

  void run() {
    color_.assign(2 * polls_.size(), kNew);
    for (std::size_t node = 0; node < color_.size(); ++node)
      if (color_[node] == kNew && has_circle(node)) return;
  }

 private:
  // Node 2 i is poll i; node 2 i + 1 stands for all polls of that lane up to poll i.
  enum Color : char { kNew, kOpen, kDone };
  struct PolledRaise {
    std::uint32_t value;
    Site site;
  };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  void number_polls() {
    for (std::size_t i = 0; i < plan_.lanes.size(); ++i)
      for (std::size_t k = 0; k < plan_.lanes[i].ops.size(); ++k) {
        const Op& op = plan_.lanes[i].ops[k];
        if (op.kind == OpKind::signal)
          raises_[op.flag].push_back({op.value, {static_cast<int>(i), static_cast<int>(k)}});
      }
    for (auto& [flag, raises] : raises_)
      std::stable_sort(
          raises.begin(), raises.end(),
          [](const PolledRaise& a, const PolledRaise& b) { return a.value < b.value; });
    of_lane_.resize(plan_.lanes.size());
    for (std::size_t i = 0; i < plan_.lanes.size(); ++i)
      for (std::size_t k = 0; k < plan_.lanes[i].ops.size(); ++k) {
        const Site here{static_cast<int>(i), static_cast<int>(k)};
        if (!is_poll(here)) continue;
        of_lane_[i].push_back(static_cast<int>(polls_.size()));
        polls_.push_back(here);
      }
  }

  // A wait for an event of another stream of the rank is an edge of the graph, not a poll.
  bool is_poll(Site here) const {
    const Op& op = order_.op(here);
    if (op.kind != OpKind::wait || op.value == 0) return false;
    return op.flag.owner != op.flag.writer || is_free_[at(here.lane)] ||
           is_free_[at(raise_of(op).lane)];
  }

  Site raise_of(const Op& op) const {
    const std::vector<PolledRaise>& raises = raises_.at(op.flag);
    return std::lower_bound(
               raises.begin(), raises.end(), op.value,
               [](const PolledRaise& raise, std::uint32_t least) { return raise.value < least; })
        ->site;
  }

  // Whether `first` has ended before the graph reaches `here`.
  bool leads(Site first, Site here) const {
    if (first.lane == here.lane) return first.op < here.op;
    return here.op > 0 && order_.before(first, {here.lane, here.op - 1});
  }

  std::vector<std::size_t> after(std::size_t node) const {
    const std::size_t poll = node / 2;
    if (node % 2 == 1) {
      std::vector<std::size_t> next{2 * poll};
      if (poll > 0 && polls_[poll - 1].lane == polls_[poll].lane) next.push_back(node - 2);
      return next;
    }
    const Site raise = raise_of(order_.op(polls_[poll]));
    std::vector<std::size_t> next;
    for (std::size_t lane = 0; lane < of_lane_.size(); ++lane) {
      const bool is_own = lane == at(raise.lane);
      const bool shares_branch = plan_.lanes[lane].rank == order_.rank(raise) && !is_free_[lane] &&
                                 !is_free_[at(raise.lane)];
      if (!is_own && !shares_branch) continue;
      const auto end =
          std::partition_point(of_lane_[lane].begin(), of_lane_[lane].end(), [&](int one) {
            return is_own ? polls_[at(one)].op < raise.op : !leads(raise, polls_[at(one)]);
          });
      if (end != of_lane_[lane].begin()) next.push_back(2 * at(*std::prev(end)) + 1);
    }
    return next;
  }

  bool has_circle(std::size_t from) {
    std::vector<std::pair<std::size_t, std::vector<std::size_t>>> path{{from, after(from)}};
    color_[from] = kOpen;
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next.empty()) {
        color_[node] = kDone;
        path.pop_back();
        continue;
      }
      const std::size_t one = next.back();
      next.pop_back();
      if (color_[one] == kOpen) return report_cycle(polls_[one / 2]);
      if (color_[one] == kDone) continue;
      color_[one] = kOpen;
      path.emplace_back(one, after(one));
    }
    return false;
  }

  bool report_cycle(Site here) {
    const Site raise = raise_of(order_.op(here));
    findings_.of_op(Rule::deadlock, here.lane, here.op,
                    text("wanted no cycle of waits if a graph puts a rank's streams in one branch, "
                         "found that {} waits for {}, which may be enqueued behind it",
                         site(plan_, here.lane, here.op), site(plan_, raise.lane, raise.op)));
    return true;
  }

  const Plan& plan_;
  const OpOrder& order_;
  Findings& findings_;
  std::vector<bool> is_free_;              // by lane: runs on CPU cores or inside a kernel
  std::vector<Site> polls_;                // in order of lanes
  std::vector<std::vector<int>> of_lane_;  // by lane: indices into polls_
  std::map<Flag, std::vector<PolledRaise>> raises_;
  std::vector<Color> color_;
};

}  // namespace

void check_branches(const Plan& plan, const OpOrder& order, Findings& findings) {
  Branches(plan, order, findings).run();
}

}  // namespace plait
