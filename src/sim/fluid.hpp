// Fluid: the rates of flows that share capacities, max-min fair by progressive filling. All rates
// rise together until a capacity is full or a flow reaches its own limit. Flows held back by
// either keep their rate, the rest rise further. A start or stop only recomputes flows reached over
// full capacities: a flow with room for its limit runs at that limit, and a flow that leaves no
// full capacity changes no other flow. simulate.cpp drives Fluid. Source: Bertsekas and Gallager,
// Data Networks, section 6.5.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/timeline.hpp"
#include "sim/machine.hpp"

namespace plait::sim {

/// A transfer or reduction in flight. `uses` must outlive the flow.
struct Flow {
  double remaining_bytes = 0.0;
  double rate = 0.0;       ///< bytes per ns
  double limit = 0.0;      ///< largest rate
  double since_ns = 0.0;   ///< time at which remaining_bytes holds
  double finish_ns = 0.0;  ///< end at the present rate
  double queued_ns = 0.0;  ///< earliest Finish that is still queued
  const ResourceUse* uses = nullptr;
  int use_count = 0;
  int link = -1;              ///< link crossed, for the port loss; -1 = none
  int owner = 0;              ///< lane that waits for the end
  std::uint32_t version = 0;  ///< counts flows of this index: a Finish of another version is void
  bool active = false;
  std::vector<int> places;  ///< index in each used resource's list
};

/// The earliest time at which a flow may end, unless an earlier Finish follows.
struct Finish {
  double at_ns = 0.0;
  int flow = 0;
  std::uint32_t version = 0;
};

class Fluid {
 public:
  Fluid(const SimMachine& machine, std::size_t links);

  /// Starts a flow; returns its index. settle() assigns a rate.
  int start(double now_ns, double bytes, double limit, const ResourceUse* uses, int use_count,
            int link, int owner);
  /// Removes a flow; settle() gives the share to other flows.
  void stop(int flow);
  const Flow& flow(int index) const { return flows_[static_cast<std::size_t>(index)]; }
  /// Returns the present Finish of a flow whose queued Finish came too early.
  Finish later(int flow);
  /// Computes the rates of flows that started, and of flows that starts and stops since the last
  /// call reach. Appends Finishes that became earlier to `changed`.
  void settle(double now_ns, std::vector<Finish>& changed);
  /// The rate of a resource over time, from each change to the next.
  const std::vector<Rate>& rates(int resource) const {
    return rates_[static_cast<std::size_t>(resource)];
  }

 private:
  struct Member {
    int flow = 0;
    int use = 0;  ///< index into Flow::uses
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
  std::vector<int> busy_links_;               // by resource: number of links with a flow
  std::vector<int> dirty_;                    // resources whose flows need new rates
  std::vector<int> fresh_;                    // flows without a rate
  std::vector<int> moved_;                    // resources whose use may have changed
  std::vector<double> used_;                  // by resource
  std::vector<char> full_;                    // by resource: full, limits flows
  std::vector<std::vector<Rate>> rates_;      // by resource
  // Scratch of settle(), members to save allocations.
  std::vector<std::uint32_t> resource_mark_, flow_mark_;
  std::uint32_t mark_ = 0;
  std::vector<int> resources_, touched_, rising_;
  std::vector<double> left_, weight_;
  std::vector<double> level_;  // by flow: rate found; < 0 = still rising
};

}  // namespace plait::sim
