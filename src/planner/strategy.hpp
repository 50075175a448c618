// What a strategy is: a name, the parameters worth trying, and a function from request to plan.
// One file a strategy; strategies.def lists them, and nothing else knows them by name.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

using Params = std::map<std::string, std::int64_t>;

struct Strategy {
  StrategyInfo info;
  /// Parameter sets worth trying for this request, the likeliest first. At least one.
  std::vector<Params> (*candidates)(const Topology& topology, const Request& request);
  /// `request` is checked(), `params` may lack any name (each has a default) but holds no unknown
  /// one. Throws Error(unsupported) with the reason to refuse.
  Plan (*build)(const Topology& topology, const Request& request, const Params& params);
  /// The parameters it knows; empty = those that its default plan and its candidates name.
  std::vector<std::string> parameters = {};
};

/// A parameter's value, or `otherwise` where it is not given.
std::int64_t param_or(const Params& params, const std::string& name, std::int64_t otherwise);

// Every strategy, each defined in the file of its name.
#define PLAIT_STRATEGY(name) const Strategy& name##_strategy();
#include "planner/strategies.def"
#undef PLAIT_STRATEGY

const std::vector<const Strategy*>& all_strategies();

}  // namespace plait
