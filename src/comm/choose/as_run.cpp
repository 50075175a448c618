// simulate() and predicted_ns() of plait/timeline.hpp: the simulator's, with calls inside nodes of
// GPUs priced by the engines that run them. In src/comm since the price needs planner, selector and
// simulator.
#include "comm/choose/calls_in_nodes.hpp"

namespace plait {

Timeline simulate(const Plan& plan, const Topology& topology) {
  return sim::simulate(plan, sim::SimMachine(topology), calls_in_nodes(plan, topology));
}

std::vector<Timeline> simulate(const std::vector<Job>& jobs, const Topology& topology,
                               const SimulateOptions& options) {
  std::vector<sim::SimJob> priced;
  for (const Job& job : jobs)
    priced.push_back({&job.plan, job.start_ns, calls_in_nodes(job.plan, topology)});
  return sim::simulate(priced, sim::SimMachine(topology), options);
}

double predicted_ns(const Plan& plan, const Topology& topology, Launch launch) {
  return sim::predicted_ns(plan, topology, launch, calls_in_nodes(plan, topology));
}

}  // namespace plait
