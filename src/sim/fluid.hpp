// Flows over shared capacities -> the rate of each, max-min fair by progressive filling: all rates
// rise together until a capacity is full or a flow is at its own limit; its flows stay there, the
// others rise on. Only what a change can reach over full capacities is redone: a flow that finds
// room for its own limit takes it, and one that leaves no full capacity behind changes no other.
// Source: Bertsekas and Gallager, Data Networks, section 6.5.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/timeline.hpp"
#include "sim/machine.hpp"

namespace plait::sim {

/// One transfer or reduction under way. `uses` must outlive it.
struct Flow {
  double remaining_bytes = 0.0;
  double rate = 0.0;  ///< bytes a nanosecond
  double limit = 0.0;
  double since_ns = 0.0;   ///< remaining_bytes is as of then
  double finish_ns = 0.0;  ///< if its rate stays as it is
  double queued_ns = 0.0;  ///< the earliest Finish that was handed out and has not come
  const ResourceUse* uses = nullptr;
  int use_count = 0;
  int link = -1;              ///< the link it crosses, for the port loss; -1 = none
  int owner = 0;              ///< the lane that waits for it
  std::uint32_t version = 0;  ///< which flow of this index: a Finish of another is void
  bool active = false;
  std::vector<int> places;  ///< where it stands in each used resource's list
};

/// When a flow may end: not before, unless an earlier one is handed out.
struct Finish {
  double at_ns = 0.0;
  int flow = 0;
  std::uint32_t version = 0;
};

class Fluid {
 public:
  Fluid(const SimMachine& machine, std::size_t links);

  int start(double now_ns, double bytes, double limit, const ResourceUse* uses, int use_count,
            int link, int owner);
  void stop(int flow);
  const Flow& flow(int index) const { return flows_[static_cast<std::size_t>(index)]; }
  /// Its Finish came too early: the one that holds now.
  Finish later(int flow);
  /// Rates what started, and redoes what the starts and stops since the last call reach; appends
  /// the changed finishes.
  void settle(double now_ns, std::vector<Finish>& changed);
  /// What a resource carried, from each change to the next.
  const std::vector<Rate>& rates(int resource) const {
    return rates_[static_cast<std::size_t>(resource)];
  }

 private:
  struct Member {
    int flow = 0;
    int use = 0;  ///< which of the flow's uses
  };
  void reach(int resource);
  void fill();
  void settle_flow(int flow, double rate);
  int tightest(double& share);
  bool finds_room(int flow);
  void set_rate(int flow, double rate, double now_ns, std::vector<Finish>& changed);
  void record(double now_ns);
  void count_link(int link, int by);
  double capacity(int resource) const;

  const SimMachine& machine_;
  std::vector<Flow> flows_;
  std::vector<int> spare_;
  std::vector<std::vector<Member>> members_;  // by resource
  std::vector<int> link_flows_;               // by link
  std::vector<int> busy_links_;               // by resource: how many of its links carry a flow
  std::vector<int> dirty_;                    // resources whose flows must be rated anew
  std::vector<int> fresh_;                    // flows without a rate
  std::vector<int> moved_;                    // resources whose use may have changed
  std::vector<double> used_;                  // by resource
  std::vector<char> full_;                    // by resource: it holds flows back
  std::vector<std::vector<Rate>> rates_;      // by resource
  // Scratch of settle(), kept to save allocations.
  std::vector<std::uint32_t> resource_mark_, flow_mark_;
  std::uint32_t mark_ = 0;
  std::vector<int> resources_, touched_, rising_;
  std::vector<double> left_, weight_;
  std::vector<double> level_;  // by flow: the rate found, < 0 = still rising
};

}  // namespace plait::sim
