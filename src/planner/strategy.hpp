// The list of strategies: plait's own, named only in strategies.def, and additions by the program.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/strategy.hpp"
#include "plan/node_step.hpp"

namespace plait {

// Every strategy, each defined in the file of the same name.
#define PLAIT_STRATEGY(name) const Strategy& name##_strategy();
#include "planner/strategies.def"
#undef PLAIT_STRATEGY

/// plait's own strategies, the candidates for calls.
const std::vector<const Strategy*>& own_strategies();
/// plait's own strategies, then the added ones.
std::vector<const Strategy*> all_strategies();

/// Stores the steps of a plan of several nodes, and returns the plan without lanes.
Plan plan_and_steps(const Strategy& strategy, const Topology& topology, const Request& request,
                    const Params& params, std::vector<NodeStep>& steps);
/// Stores the steps of a plan of several nodes, with each step's ops, and returns the whole plan.
Plan plan_with_steps(const Strategy& strategy, const Topology& topology, const Request& request,
                     const Params& params, std::vector<NodeStep>& steps);

/// Returns the number of nodes of a request's devices. The request must be checked().
int node_count(const Topology& topology, const Request& request);

/// Plans of longer messages are ranked by plans of a sample, and times are taken of a sample.
inline constexpr std::uint64_t kLongBytes = 1ull << 30;

/// propose() for the given strategies only. limits_ops: refuses plait's own plans of too many ops,
/// which calls may have. takes_samples: of messages above 1 GiB returns only the first plans, as
/// the plans of a shorter message rank them, and at least one in rank order; building all takes
/// many seconds and gigabytes.
std::vector<Plan> propose_of(const std::vector<const Strategy*>& strategies,
                             const Topology& topology, const Request& request,
                             std::vector<Refusal>* refusals = nullptr, bool limits_ops = false,
                             bool takes_samples = true);
/// Throws Error(unsupported) if the plan of one of plait's own strategies would have too many ops.
void check_op_count(const Topology& topology, const Request& request, const std::string& strategy,
                    const Params& params);

}  // namespace plait
