// Ranks proposals, fastest by simulation first. In src/comm since ranking needs both planner and
// simulator.
#include "comm/choose/ranking.hpp"

#include <algorithm>

#include "comm/choose/calls_in_nodes.hpp"

namespace plait {

std::vector<RankedPlan> ranked(const Topology& topology, const Request& request,
                               std::uint64_t budget_ops, std::vector<Refusal>* refusals) {
  return ranked_of(propose(topology, request, refusals), topology, budget_ops);
}

std::vector<RankedPlan> ranked_of(std::vector<Plan> proposals, const Topology& topology,
                                  std::uint64_t budget_ops) {
  std::vector<RankedPlan> simulated;
  std::vector<RankedPlan> rest;
  std::uint64_t spent = 0;
  const sim::SimMachine machine(topology);
  for (Plan& plan : proposals) {
    // The budget counts ops, not seconds, so that all ranks get the same order.
    const bool affordable = simulated.empty() || spent + op_count(plan) <= budget_ops;
    if (!affordable) {
      rest.push_back({std::move(plan), {}});
      continue;
    }
    spent += op_count(plan);
    Timeline timeline = sim::simulate(plan, machine, calls_in_nodes(plan, topology));
    simulated.push_back({std::move(plan), std::move(timeline)});
  }
  std::stable_sort(simulated.begin(), simulated.end(), [](const auto& one, const auto& other) {
    return one.timeline.total_ns < other.timeline.total_ns;
  });
  std::move(rest.begin(), rest.end(), std::back_inserter(simulated));
  return simulated;
}

}  // namespace plait
