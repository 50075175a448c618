// Simulation of plans on a SimMachine that the caller reuses, and prices of plans. The functions of
// plait/timeline.hpp (comm/choose/as_run.cpp) add the engines' prices of calls inside nodes.
#pragma once
#include <vector>

#include "plait/timeline.hpp"
#include "plan/node_step.hpp"
#include "sim/machine.hpp"

namespace plait::sim {

/// Ops of a plan that run as one call with a time of its own, for example as an engine's call. All
/// lanes begin when the last has come, and end `ns` later. Each lane's first op is the wait for the
/// begin. Flags of the other ops are used inside the call alone.
struct PricedCall {
  std::vector<LaneOps> ops;
  double ns = 0.0;
};

/// A plan that starts at `start_ns` of the common clock.
struct SimJob {
  const Plan* plan = nullptr;
  double start_ns = 0.0;
  std::vector<PricedCall> priced = {};
};

/// Simulates plans that share the machine; returns a Timeline for each. Other flows do not slow
/// down priced calls. Error(invalid_argument) if a plan cannot end.
std::vector<Timeline> simulate(const std::vector<SimJob>& jobs, const SimMachine& machine,
                               const SimulateOptions& options = {});
/// Simulates a plan alone. An engine's kernel has the time of kernel_call_ns() in a graph.
Timeline simulate(const Plan& plan, const SimMachine& machine,
                  const std::vector<PricedCall>& priced = {});
/// Predicts the time of a call as plait::predicted_ns() does, with priced calls.
double predicted_ns(const Plan& plan, const Topology& topology, Launch launch = Launch::graph,
                    const std::vector<PricedCall>& priced = {});

}  // namespace plait::sim
