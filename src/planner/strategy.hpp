// The list of strategies: plait's own, which strategies.def names and nothing else knows by name,
// and those that the program has added.
#pragma once
#include <vector>

#include "plait/strategy.hpp"
#include "plan/node_step.hpp"

namespace plait {

// Every strategy, each defined in the file of its name.
#define PLAIT_STRATEGY(name) const Strategy& name##_strategy();
#include "planner/strategies.def"
#undef PLAIT_STRATEGY

/// Plait's own: those that calls may choose from.
const std::vector<const Strategy*>& own_strategies();
/// Plait's own, then those added.
std::vector<const Strategy*> all_strategies();

/// The steps of a plan of several nodes, and the plan without its lanes.
Plan plan_and_steps(const Strategy& strategy, const Topology& topology, const Request& request,
                    const Params& params, std::vector<NodeStep>& steps);

/// How many nodes a request's devices are on. request: checked.
int node_count(const Topology& topology, const Request& request);

/// propose() of these strategies alone.
std::vector<Plan> propose_of(const std::vector<const Strategy*>& strategies,
                             const Topology& topology, const Request& request,
                             std::vector<Refusal>* refusals = nullptr);

}  // namespace plait
